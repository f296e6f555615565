"""Sets of characters as sorted ranges of code points, and the terms of one character in UTF-8."""

from collections.abc import Iterable
from functools import lru_cache

from gesso.constraints.term import Term
from gesso.constraints.terms import alt, literal, one_of, seq

Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
SURROGATES: Ranges = ((0xD800, 0xDFFF),)


def chars(text: str) -> Ranges:
    return union((ord(c), ord(c)) for c in text)


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(r for s in sets for r in s):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)


def complement(ranges: Ranges) -> Ranges:
    """Return all other characters except surrogates, which UTF-8 cannot encode."""
    free: list[tuple[int, int]] = []
    at = 0
    for low, high in union(ranges, SURROGATES):
        if at < low:
            free.append((at, low - 1))
        at = high + 1
    return tuple(free) if at > LAST else (*free, (at, LAST))


def minus(ranges: Ranges, other: Ranges) -> Ranges:
    return complement(union(complement(ranges), other))


ANY = complement(())


# The code points that UTF-8 writes with one to four bytes.
_LENGTHS = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, LAST))


@lru_cache(maxsize=1024)
def char_class(ranges: Ranges) -> Term:
    """Return the term of one character of the set, in UTF-8."""
    parts: list[Term] = []
    for low, high in minus(ranges, SURROGATES):
        for first, last in _LENGTHS:
            if low <= last and first <= high:
                lowest = chr(max(low, first)).encode()
                highest = chr(min(high, last)).encode()
                parts.append(_between(lowest, highest))
    return alt(parts)


def _between(low: bytes, high: bytes) -> Term:
    """Return the characters between two that have the same number of bytes."""
    if len(low) == 1:
        return one_of((2 << high[0]) - (1 << low[0]))
    if low[0] == high[0]:
        return seq(literal(low[:1]), _between(low[1:], high[1:]))
    lowest, highest = b"\x80" * (len(low) - 1), b"\xbf" * (len(low) - 1)
    parts: list[Term] = []
    first, last = low[0], high[0]
    if low[1:] != lowest:
        parts.append(seq(literal(low[:1]), _between(low[1:], highest)))
        first += 1
    if high[1:] != highest:
        parts.append(seq(literal(high[:1]), _between(lowest, high[1:])))
        last -= 1
    if first <= last:
        parts.append(seq(one_of((2 << last) - (1 << first)), _between(lowest, highest)))
    return alt(parts)
