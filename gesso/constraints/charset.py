"""Sets of characters as sorted ranges of code points, and their notation in a regular expression."""

from collections.abc import Iterable

from gesso.constraints.regex import ATOM, Regex

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
    free, at = [], 0
    for low, high in union(ranges, SURROGATES):
        if at < low:
            free.append((at, low - 1))
        at = high + 1
    return tuple(free) if at > LAST else (*free, (at, LAST))


def minus(ranges: Ranges, other: Ranges) -> Ranges:
    return complement(union(complement(ranges), other))


ANY = complement(())


def char_class(ranges: Ranges) -> Regex | None:
    """Return the class that matches one character of the set; None for the empty set."""
    ranges = minus(ranges, SURROGATES)
    if not ranges:
        return None
    inside = "".join(_escape(low) if low == high else f"{_escape(low)}-{_escape(high)}" for low, high in ranges)
    # A character beyond ASCII has two to four bytes, each with its own states.
    states = 1 + sum(5 for low, high in ranges if high > 0x7F)
    return Regex(f"[{inside}]", states, 1, ATOM)


def _escape(code: int) -> str:
    if chr(code).isalnum() and code < 0x80:
        return chr(code)
    return f"\\x{code:02X}" if code < 0x80 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
