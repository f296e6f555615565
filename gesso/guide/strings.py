"""JSON strings as regular expressions: free ones of some length, given ones, characters from a set."""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from gesso.guide.charset import Ranges, char_class, chars, minus, union
from gesso.guide.pieces import ATOM, Piece, alt, quote, raw, repeat, seq

QUOTE = Piece('"', 1)

# A short escape counts as one character. Escapes by number are in free strings only: where lengths are counted they
# would double the automaton, and there is little they alone can say. Halves of surrogate pairs are left out.
_SHORT = Piece('(?:[^"\\\\\\x00-\\x1F]|\\\\["\\\\/bfnrt])', 9, 4, ATOM)
_ANY = Piece(
    '(?:[^"\\\\\\x00-\\x1F]|\\\\(?:["\\\\/bfnrt]|u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})))',
    16,
    10,
    ATOM,
)

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED = union(((0x00, 0x1F),), chars('"\\'))


def quoted(content: Piece | None) -> Piece | None:
    return None if content is None else seq(QUOTE, content, QUOTE)


def free_string(low: int = 0, high: int | None = None) -> Piece | None:
    """Any string of `low` to `high` characters."""
    if high is not None and low > high:
        return None
    return quoted(repeat(_ANY if low == 0 and high is None else _SHORT, low, high))


@lru_cache(maxsize=1024)
def json_char(ranges: Ranges) -> Piece | None:
    """One character of the set, the way it stands inside a JSON string."""
    parts: list[Piece | None] = [char_class(minus(ranges, _ESCAPED))]
    for low, high in ranges:
        for code in range(low, min(high, 0x5C) + 1):
            if code < 0x20 or chr(code) in _ESCAPES:
                parts.append(quote(_ESCAPES.get(chr(code), f"\\u{code:04x}")))
    return alt(parts)


def literal(value: Any) -> Piece:
    """A JSON value as it is usually written; one space after `,` and `:` is left to the writer."""
    if isinstance(value, list | tuple):
        return seq(raw("\\["), *joined([literal(v) for v in value]), raw("\\]"))
    if isinstance(value, Mapping):
        members = [seq(quote(_text(k)), COLON, literal(v)) for k, v in value.items()]
        return seq(raw("\\{"), *joined(members), raw("\\}"))
    return quote(_text(value))


def key(name: str) -> Piece:
    return seq(quote(_text(name)), COLON)


COMMA = raw(", ?", 2)
COLON = raw(": ?", 2)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """With commas between."""
    return [p for piece in pieces for p in (COMMA, piece)][1:]


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
