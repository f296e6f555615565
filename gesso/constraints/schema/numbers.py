"""JSON numbers between bounds, as regular expressions.

Integers are exact, digit by digit. Numbers with a fraction have a trap: `0.49999999999999999999` reads as 0.5 in
floating point. Rounding never swaps two numbers, so inclusive bounds are safe whatever the number of digits; from an
exclusive bound a number must differ within 15 significant digits, which floating point tells apart.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from gesso.constraints.regex import EMPTY, Piece, alt, quote, raw, repeat, seq

DIGIT = Piece("[0-9]", 1, 1)
DIGITS = 15
"""As many significant digits as floating point can tell apart."""
LARGE = 10**DIGITS
"""From here on only whole numbers are written next to a bound."""
LONGEST = 40
"""Digits of the longest bound accepted."""


@dataclass(frozen=True, slots=True)
class Bound:
    value: Fraction
    """What the schema says, as the decimal number it is written as."""
    exact: Fraction
    """What a reader compares with: the floating-point number nearest to it."""
    strict: bool

    @classmethod
    def read(cls, number: int | float, strict: bool) -> "Bound":
        return cls(Fraction(Decimal(repr(number))), Fraction(number), strict)

    def mirrored(self) -> "Bound":
        return Bound(-self.value, -self.exact, self.strict)

    def digits(self) -> int:
        """Significant digits: a bound that is not a decimal number of few digits cannot be written out."""
        scaled, places = abs(self.value), 0
        while scaled.denominator != 1 and places <= LONGEST:
            scaled, places = scaled * 10, places + 1
        return max(places, len(str(int(scaled))))


ZERO = Bound(Fraction(0), Fraction(0), False)


def any_integer() -> Piece:
    return raw("-?(?:0|[1-9][0-9]*)", 4)


def any_number() -> Piece:
    """Exponents and fractions stay where floating point does not overflow; whole numbers may be of any length."""
    return raw("-?(?:(?:0|[1-9][0-9]{0,14})(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?|[1-9][0-9]{15,})", 24)


def integers(low: Bound | None, high: Bound | None) -> Piece | None:
    """The whole numbers between two bounds."""
    if low is None and high is None:
        return any_integer()
    return _signed(_least(low), _most(high))


def numbers(low: Bound | None, high: Bound | None) -> Piece | None:
    """The numbers between two bounds, whole or with a fraction."""
    if low is None and high is None:
        return any_number()
    whole = integers(low, high)
    if any(bound is not None and abs(bound.value) >= LARGE for bound in (low, high)):
        return whole
    above = alt([whole, _fractions(low if low is not None and low.value >= 0 else ZERO, high)])
    if low is not None and low.value >= 0:
        return above
    # Below zero: the same with both bounds mirrored.
    nearest = high.mirrored() if high is not None and high.value <= 0 else ZERO
    below = _fractions(nearest, low.mirrored() if low is not None else None)
    return alt([above, seq(raw("-", 1), below) if below is not None else None])


def multiples(low: Bound | None, high: Bound | None, step: int, most: int = 1000) -> list[int] | None:
    """The multiples of `step` between two bounds; `None` where they are too many to be listed."""
    first, last = _least(low), _most(high)
    if first is None or last is None or (last - first) // step > most:
        return None
    return list(range(-(-first // step) * step, last + 1, step))


def _least(low: Bound | None) -> int | None:
    if low is None:
        return None
    return int(low.exact // 1) + 1 if low.strict else -int(-low.exact // 1)


def _most(high: Bound | None) -> int | None:
    least = _least(high.mirrored() if high is not None else None)
    return None if least is None else -least


def _signed(low: int | None, high: int | None) -> Piece | None:
    if low is not None and high is not None and low > high:
        return None
    parts = []
    if low is None or low < 0:
        below = _natural(1 if high is None or high >= 0 else -high, None if low is None else -low)
        parts.append(seq(raw("-", 1), below) if below is not None else None)
    if high is None or high >= 0:
        parts.append(_natural(max(low or 0, 0), high))
    return alt(parts)


def _natural(low: int, high: int | None) -> Piece | None:
    """Whole numbers from `low` >= 0 on, without leading zeros."""
    if high is not None and low > high:
        return None
    if low == 0:
        return alt([raw("0", 1), _natural(1, high)])
    first = str(low)
    if high is None:
        longer = seq(raw("[1-9]", 1), repeat(DIGIT, len(first), None))
        return alt([_same_length(first, "9" * len(first)), longer])
    last = str(high)
    if len(first) == len(last):
        return _same_length(first, last)
    between = None
    if len(last) - len(first) > 1:
        between = seq(raw("[1-9]", 1), repeat(DIGIT, len(first), len(last) - 2))
    return alt([_same_length(first, "9" * len(first)), between, _same_length("1" + "0" * (len(last) - 1), last)])


def _same_length(low: str, high: str) -> Piece | None:
    """Numbers of as many digits as both bounds have."""
    shared = next((i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), len(low))
    prefix, a, b = low[:shared], low[shared:], high[shared:]
    if not a:
        return quote(low)
    # A number above `a` shares some digits with it and is greater at the next; likewise below `b`. Where only zeros
    # follow in `a`, or nines in `b`, all that begins like them is in.
    rest = len(a) - 1
    zeros, nines = not a[1:].strip("0"), not b[1:].strip("9")
    parts: list[Piece | None] = []
    if not zeros:
        parts.append(quote(a))
        parts += [_then(a[:i], chr(ord(a[i]) + 1), "9", rest - i) for i in range(rest, 0, -1)]
    parts.append(_then("", chr(ord(a[0]) + (not zeros)), chr(ord(b[0]) - (not nines)), rest))
    if not nines:
        parts += [_then(b[:i], "0", chr(ord(b[i]) - 1), rest - i) for i in range(1, rest + 1)]
        parts.append(quote(b))
    body = alt(parts)
    return body if not prefix or body is None else seq(quote(prefix), body)


def _then(prefix: str, low: str, high: str, digits: int) -> Piece | None:
    if low > high:
        return None
    one = raw(low, 1) if low == high else Piece(f"[{low}-{high}]", 1, 1)
    return seq(quote(prefix) if prefix else EMPTY, one, repeat(DIGIT, digits, digits))


def _fractions(low: Bound, high: Bound | None) -> Piece | None:
    """Numbers with a point between two bounds, `low` >= 0."""
    if high is not None and high.value < low.value:
        return None
    first, floor = int(low.value), _places(low.value)
    below: str | None
    if high is None:
        last, below, strict = LARGE, "", True
    else:
        last, below, strict = int(high.value), _places(high.value), high.strict
        if high.strict and high.value == last:  # 5 is out: the last whole part is 4, with any fraction
            last, below = last - 1, None
    if first > last:
        return None
    if first == last:
        return _pointed(first, _fraction(floor, low.strict, below, strict, _room(first)))
    inner = _natural(first + 1, last - 1)
    return alt(
        [
            _pointed(first, _fraction(floor, low.strict, None, False, _room(first))),
            seq(inner, raw("\\.", 1), repeat(DIGIT, 1, None)) if inner is not None else None,
            _pointed(last, _fraction("", False, below, strict, _room(last))),
        ]
    )


def _room(whole: int) -> int:
    return DIGITS - len(str(whole))


def _places(value: Fraction) -> str:
    """The digits after the point, without trailing zeros."""
    rest, digits = value - int(value), ""
    while rest:
        rest *= 10
        digits += str(int(rest))
        rest -= int(rest)
    return digits


def _pointed(whole: int, fraction: Piece | None) -> Piece | None:
    return None if fraction is None else seq(quote(str(whole)), raw("\\.", 1), fraction)


def _fraction(low: str, above: bool, high: str | None, under: bool, room: int, first: bool = True) -> Piece | None:
    """Digits after the point, of which there must be one if `first`, worth at least `low` and at most `high` (None: 1).

    `above` and `under` leave the bounds themselves out: within `room` digits the number must differ from them.
    """
    if high == "":
        return None if low or above or under else repeat(Piece("0", 1, 1), int(first), None)
    if not low and high is None and not (above and under):
        return _differing("0", "[1-9]", room) if above else _below_one(under, room, first)
    if room < 1:
        return None if low or above or first else EMPTY
    parts: list[Piece | None] = [EMPTY] if not low and not above and not first else []
    bottom, top = low[0] if low else "0", high[0] if high else "9"
    after = high[1:] if high else None
    if bottom == top:
        parts.append(_led(bottom, _fraction(low[1:], above, after, under, room - 1, False)))
    elif bottom < top:
        # Digits that lead to just below the bound: 4 where 0.5 is out, for 0.4999... reads as 0.5.
        close = chr(ord(top) - 1) if under and after == "" else ""
        parts.append(_led(bottom, _fraction(low[1:], above, None, bottom == close, room - 1, False)))
        between = _then("", chr(ord(bottom) + 1), chr(ord(top) - 1 - bool(close)), 0)
        parts.append(None if between is None else seq(between, repeat(DIGIT, 0, None)))
        if bottom < close:
            parts.append(_led(close, _below_one(True, room - 1, False)))
        parts.append(_led(top, _fraction("", False, after, under, room - 1, False)))
    return alt(parts)


def _below_one(strictly: bool, room: int, first: bool) -> Piece | None:
    if not strictly:
        return repeat(DIGIT, int(first), None)
    nines = repeat(Piece("9", 1, 1), int(first), room) if room >= first else None
    return alt([_differing("9", "[0-8]", room), nines])


def _differing(digit: str, other: str, room: int) -> Piece | None:
    """Digits of which one of the first `room` is another."""
    if room < 1:
        return None
    return seq(repeat(Piece(digit, 1, 1), 0, room - 1), raw(other, 1), repeat(DIGIT, 0, None))


def _led(digit: str, rest: Piece | None) -> Piece | None:
    return None if rest is None else seq(raw(digit, 1), rest)
