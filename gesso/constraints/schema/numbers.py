"""Terms of JSON numbers between bounds.

Integers are compared digit by digit. Fractions need care: `0.49999999999999999999` reads as 0.5 in floating point.
Rounding never swaps the order of two numbers, so inclusive bounds hold for any number of digits. Next to an exclusive
bound, a number must differ within 15 significant digits, which floating point can distinguish.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from gesso.constraints.term import EMPTY, NOTHING, Term
from gesso.constraints.terms import ANYTHING, alt, literal, minus, one_of, optional, repeat, seq

PRECISION = 15  # significant digits that floating point can distinguish
LARGE = 10**PRECISION  # only integers are written next to a bound of this size
MAX_DIGITS = 40  # of a bound


def digit(low: str, high: str) -> Term:
    return one_of((2 << ord(high)) - (1 << ord(low)))


DIGIT = digit("0", "9")
DIGITS = repeat(DIGIT, 1, None)
POINT, MINUS = literal("."), literal("-")
_NATURAL = seq(digit("1", "9"), repeat(DIGIT, 0, None))
_E = seq(alt([literal("e"), literal("E")]))
ANY_INTEGER = seq(optional(MINUS), alt([literal("0"), _NATURAL]))
# Numbers with a fraction or an exponent stay below the overflow of floating point; integers may have any length.
_SHORT = seq(alt([literal("0"), seq(digit("1", "9"), repeat(DIGIT, 0, 14))]), optional(seq(POINT, DIGITS)))
_FAR = alt([repeat(DIGIT, 1, 2), seq(digit("1", "2"), DIGIT, DIGIT), seq(literal("30"), digit("0", "7"))])
_EXPONENT = seq(_E, alt([seq(optional(literal("+")), repeat(DIGIT, 1, 2)), seq(MINUS, repeat(DIGIT, 1, 3))]))
_SCIENTIFIC = seq(digit("1", "9"), optional(seq(POINT, DIGITS)), _E, optional(literal("+")), _FAR)
ANY_NUMBER = seq(optional(MINUS), alt([seq(_SHORT, optional(_EXPONENT)), _SCIENTIFIC, _NATURAL]))
# How Python and JavaScript write very small and very large numbers.
_MANTISSA = seq(digit("1", "9"), optional(seq(POINT, DIGITS)))
_TINY = seq(_MANTISSA, literal("e-"), alt([seq(literal("0"), digit("5", "9")), seq(digit("1", "9"), DIGIT)]))
_HUGE = seq(_MANTISSA, literal("e+"), alt([seq(literal("1"), digit("6", "9")), seq(digit("2", "9"), DIGIT)]))
_NO_E = repeat(one_of(((1 << 256) - 1) & ~(1 << ord("e") | 1 << ord("E"))), 0, None)
_SCIENTIFIC_TEXT = seq(_NO_E, _E, ANYTHING)
# Texts of whole numbers without an exponent.
WHOLE = seq(optional(MINUS), DIGITS, optional(seq(POINT, repeat(literal("0"), 1, None))))


@dataclass(frozen=True, slots=True)
class Bound:
    value: Fraction  # the decimal number in the schema
    exact: Fraction  # the nearest floating-point number, with which a validator compares
    strict: bool

    @classmethod
    def read(cls, number: int | float, strict: bool) -> "Bound":
        return cls(Fraction(Decimal(repr(number))), Fraction(number), strict)

    def mirrored(self) -> "Bound":
        return Bound(-self.value, -self.exact, self.strict)

    def digits(self) -> int:
        """Return the number of significant digits, or more than `MAX_DIGITS` if there are too many to write."""
        scaled, places = abs(self.value), 0
        while scaled.denominator != 1 and places <= MAX_DIGITS:
            scaled, places = scaled * 10, places + 1
        return max(places, len(str(int(scaled))))


ZERO = Bound(Fraction(0), Fraction(0), False)


def none_between(low: Bound | None, high: Bound | None) -> bool:
    """Return whether no number lies between two bounds."""
    if low is None or high is None:
        return False
    return low.exact > high.exact or (low.exact == high.exact and (low.strict or high.strict))


def integers(low: Bound | None, high: Bound | None) -> Term:
    """Match the integers between two bounds."""
    if low is None and high is None:
        return ANY_INTEGER
    first, last = _lowest(low), _highest(high)
    if first is not None and last is not None and first > last:
        return NOTHING
    parts: list[Term] = []
    if first is None or first < 0:
        nearest = 1 if last is None or last >= 0 else -last
        parts.append(seq(MINUS, _natural(nearest, None if first is None else -first)))
    if last is None or last >= 0:
        parts.append(_natural(max(first or 0, 0), last))
    return alt(parts)


def numbers(low: Bound | None, high: Bound | None) -> Term:
    """Match the numbers between two bounds, with or without a fraction."""
    if low is None and high is None:
        return ANY_NUMBER
    whole = integers(low, high)
    if none_between(low, high) or any(bound is not None and abs(bound.value) >= LARGE for bound in (low, high)):
        return whole
    if low is not None and low.value >= 0:
        return alt([whole, _fractions(low, high), _with_exponent(low, high)])
    # Below zero, mirror both bounds.
    nearest = high.mirrored() if high is not None and high.value <= 0 else ZERO
    farthest = low.mirrored() if low is not None else None
    below = alt([_fractions(nearest, farthest), _with_exponent(nearest, farthest)])
    above = alt([_fractions(ZERO, high), _with_exponent(ZERO, high)])
    return alt([whole, above, seq(MINUS, below)])


def _with_exponent(low: Bound, high: Bound | None) -> Term:
    """Match very small and very large numbers between two bounds, `low` >= 0."""
    tiny = low.value == 0 and (high is None or high.value >= Fraction(1, 1000))
    return alt([_TINY if tiny else NOTHING, _HUGE if high is None else NOTHING])


def fractional(low: Bound | None, high: Bound | None) -> Term:
    """Match the numbers between two bounds that are not integers."""
    return minus(numbers(low, high), alt([WHOLE, _SCIENTIFIC_TEXT]))


def spelled(value: int | float) -> Term:
    """Match all texts of a number, and all texts with an exponent."""
    zeros = repeat(literal("0"), 0, None)
    sign, text = ("-", repr(-value)) if value < 0 else ("", repr(value))
    whole, _, places = text.partition(".")
    places = places.rstrip("0")
    fraction = seq(POINT, literal(places), zeros) if places else optional(seq(POINT, zeros))
    return alt([seq(literal(sign), literal(whole), fraction), _SCIENTIFIC_TEXT])


def _lowest(low: Bound | None) -> int | None:
    if low is None:
        return None
    return int(low.exact // 1) + 1 if low.strict else -int(-low.exact // 1)


def _highest(high: Bound | None) -> int | None:
    lowest = _lowest(high.mirrored() if high is not None else None)
    return None if lowest is None else -lowest


def _natural(low: int, high: int | None) -> Term:
    """Match integers from `low` >= 0 to `high`, without leading zeros."""
    if high is not None and low > high:
        return NOTHING
    if low == 0:
        return alt([literal("0"), _natural(1, high)])
    first, last = str(low), str(high)
    if high is not None and len(first) == len(last):
        return _same_length(first, last)
    shortest = _same_length(first, "9" * len(first))
    between = seq(digit("1", "9"), repeat(DIGIT, len(first), None if high is None else len(last) - 2))
    longest = NOTHING if high is None else _same_length("1" + "0" * (len(last) - 1), last)
    return alt([shortest, between, longest])


def _same_length(low: str, high: str) -> Term:
    """Match integers between two bounds with the same number of digits."""
    shared = next((i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), len(low))
    a, b = low[shared:], high[shared:]
    if not a:
        return literal(low)
    # A number above `a` shares some leading digits with it and has a greater digit next; likewise below `b`. If only
    # zeros follow in `a`, or only nines in `b`, any digits may follow its first digit.
    rest = len(a) - 1
    zeros, nines = not a[1:].strip("0"), not b[1:].strip("9")
    parts: list[Term] = []
    if not zeros:
        parts.append(literal(a))
        parts += [_digit_range(a[:i], chr(ord(a[i]) + 1), "9", rest - i) for i in range(rest, 0, -1)]
    parts.append(_digit_range("", chr(ord(a[0]) + (not zeros)), chr(ord(b[0]) - (not nines)), rest))
    if not nines:
        parts += [_digit_range(b[:i], "0", chr(ord(b[i]) - 1), rest - i) for i in range(1, rest + 1)]
        parts.append(literal(b))
    return seq(literal(low[:shared]), alt(parts))


def _digit_range(prefix: str, low: str, high: str, digits: int) -> Term:
    """Match a prefix, one digit from `low` to `high`, and `digits` more digits."""
    if low > high:
        return NOTHING
    return seq(literal(prefix), digit(low, high), repeat(DIGIT, digits, digits))


def _fractions(low: Bound, high: Bound | None) -> Term:
    """Match numbers with a decimal point between two bounds, `low` >= 0."""
    if high is not None and high.value < low.value:
        return NOTHING
    first, above = int(low.value), _places(low.value)
    below: str | None
    if high is None:
        last = LARGE
        below = ""
        strict = True
    else:
        last = int(high.value)
        below = _places(high.value)
        strict = high.strict
        if strict and high.value == last:  # below 5, the last integer part is 4, with any fraction
            last -= 1
            below = None
    if first > last:
        return NOTHING
    if first == last:
        return _with_point(first, above, low.strict, below, strict)
    return alt(
        [
            _with_point(first, above, low.strict, None, False),
            seq(_natural(first + 1, last - 1), POINT, repeat(DIGIT, 1, None)),
            _with_point(last, "", False, below, strict),
        ]
    )


def _places(value: Fraction) -> str:
    """Return the digits after the decimal point, without trailing zeros."""
    rest, digits = value - int(value), ""
    while rest:
        rest *= 10
        digits += str(int(rest))
        rest -= int(rest)
    return digits


def _with_point(whole: int, low: str, low_strict: bool, high: str | None, high_strict: bool) -> Term:
    fraction = _fraction(low, low_strict, high, high_strict, PRECISION - len(str(whole)))
    return seq(literal(str(whole)), POINT, fraction)


def _fraction(
    low: str, low_strict: bool, high: str | None, high_strict: bool, digits: int, required: bool = True
) -> Term:
    """Match the digits after the decimal point of a fraction from 0.`low` to 0.`high` (None: to 1).

    With a strict bound, one of the first `digits` digits must differ from it. `required`: match at least one digit.
    """
    if high == "":
        return NOTHING if low or low_strict or high_strict else repeat(literal("0"), int(required), None)
    if not low and high is None and not (low_strict and high_strict):
        return _differing("0", digit("1", "9"), digits) if low_strict else _below_one(high_strict, digits, required)
    if digits < 1:
        return NOTHING if low or low_strict or required else EMPTY
    parts: list[Term] = [EMPTY] if not low and not low_strict and not required else []
    bottom, top = low[0] if low else "0", high[0] if high else "9"
    after = high[1:] if high else None
    if bottom == top:
        parts.append(seq(literal(bottom), _fraction(low[1:], low_strict, after, high_strict, digits - 1, False)))
    elif bottom < top:
        # A digit whose continuation may round up to the bound: 4 if 0.5 is excluded, because 0.4999... reads as 0.5.
        close = chr(ord(top) - 1) if high_strict and after == "" else ""
        parts.append(seq(literal(bottom), _fraction(low[1:], low_strict, None, bottom == close, digits - 1, False)))
        between = _digit_range("", chr(ord(bottom) + 1), chr(ord(top) - 1 - bool(close)), 0)
        parts.append(seq(between, repeat(DIGIT, 0, None)))
        if bottom < close:
            parts.append(seq(literal(close), _below_one(True, digits - 1, False)))
        parts.append(seq(literal(top), _fraction("", False, after, high_strict, digits - 1, False)))
    return alt(parts)


def _below_one(strict: bool, digits: int, required: bool) -> Term:
    if not strict:
        return repeat(DIGIT, int(required), None)
    return alt([_differing("9", digit("0", "8"), digits), repeat(literal("9"), int(required), digits)])


def _differing(first: str, other: Term, digits: int) -> Term:
    """Match digits, one of the first `digits` of which is not `first`."""
    return seq(repeat(literal(first), 0, digits - 1), other, repeat(DIGIT, 0, None))
