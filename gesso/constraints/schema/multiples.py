"""Terms of the multiples of a number. R remainders, D digits."""

from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import final

import numpy as np

from gesso.constraints.schema.numbers import DIGIT, MINUS, POINT, digit
from gesso.constraints.term import ALL_BYTES, NOTHING, Masks, Term
from gesso.constraints.terms import alt, both, literal, optional, repeat, seq

MAX_MODULUS = 10_000
MAX_PLACES = 20  # after the decimal point
_POINT = ord(".")


@final
class Digits(Term):
    """Digits that continue a number with a remainder to a multiple. A decimal point, if allowed, changes nothing."""

    __slots__ = ("multiples", "remainder")

    def __init__(self, multiples: "_Multiples", remainder: int) -> None:
        super().__init__()
        self.multiples, self.remainder = multiples, remainder

    def _derive(self, byte: int) -> Term:
        if byte == _POINT and self.multiples.point:
            return self
        if not 0x30 <= byte <= 0x39:
            return NOTHING
        return self.multiples.state((self.remainder * 10 + byte - 0x30) % self.multiples.modulus)

    def _measure(self) -> int:
        return self.multiples.distances[self.remainder]

    def _split(self) -> Masks:
        mask_to: dict[int, int] = {}  # the digits that lead to each remainder
        for number in range(10):
            target = (self.remainder * 10 + number) % self.multiples.modulus
            mask_to[target] = mask_to.get(target, 0) | 1 << 0x30 + number
        used = sum(mask_to.values()) | 1 << _POINT
        return (*mask_to.values(), 1 << _POINT, ALL_BYTES - used)


class _Multiples:
    """The multiples of a modulus. The state of a number is its remainder."""

    def __init__(self, modulus: int, point: bool) -> None:
        self.modulus, self.point = modulus, point
        self.states: dict[int, Digits] = {}
        self.distances = self._distances()

    def state(self, remainder: int) -> Digits:
        if remainder not in self.states:
            self.states.setdefault(remainder, Digits(self, remainder))  # another thread may have added it
        return self.states[remainder]

    def _distances(self) -> list[int]:
        """Return how many digits each remainder needs to become zero."""
        next_RD = (np.arange(self.modulus)[:, None] * 10 + np.arange(10)) % self.modulus
        distance_R = np.full(self.modulus, self.modulus)
        distance_R[0] = 0
        while True:
            nearer_R = np.minimum(distance_R, distance_R[next_RD].min(1) + 1)
            if (nearer_R == distance_R).all():
                return [int(n) for n in distance_R]
            distance_R = nearer_R


_multiples = lru_cache(maxsize=32)(_Multiples)


def digits(modulus: int, remainder: int, point: bool) -> Term:
    """Return the digits that continue a number with a remainder to a multiple of a modulus."""
    return _multiples(modulus, point).state(remainder)


def common_multiple(a: Fraction, b: Fraction) -> Fraction:
    scale = lcm(a.denominator, b.denominator)
    return Fraction(lcm(int(a * scale), int(b * scale)), scale)


def multiples(step: Fraction) -> Term | None:
    """Return the multiples of a positive number, with a decimal point where they need one; None if it is too complex.

    A text with `n` of `places` digits after the point is a multiple of step = m / 10^places if its digits are a
    multiple of m / gcd(m, 10^(places - n)).
    """
    places, scaled = 0, step
    while scaled.denominator != 1 and places <= MAX_PLACES:
        places, scaled = places + 1, scaled * 10
    if scaled.denominator != 1 or scaled > MAX_MODULUS:
        return None
    alternatives: list[Term] = [literal("0")]
    alternatives += [_from_digit(first, scaled.numerator, places) for first in "123456789"]
    whole = alt([literal("0"), seq(digit("1", "9"), repeat(DIGIT, 0, None))])
    for written in range(1, places + 1):
        modulus = scaled.numerator // gcd(scaled.numerator, 10 ** (places - written))
        shape = seq(whole, POINT, repeat(DIGIT, written, written))
        alternatives.append(shape if modulus == 1 else both([shape, digits(modulus, 0, True)]))
    return seq(optional(MINUS), alt(alternatives))


def _from_digit(first: str, scaled: int, places: int) -> Term:
    """Return the multiples without a point that begin with a digit."""
    modulus = scaled // gcd(scaled, 10**places)
    return seq(literal(first), digits(modulus, int(first) % modulus, False))
