"""How values are written, as regular expressions: in JSON, or as the arguments of a tool call."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gesso.chat import answer
from gesso.constraints.charset import Ranges, char_class, chars, minus, union
from gesso.constraints.regex import ATOM, SEQUENCE, Piece, alt, quote, raw, repeat, seq

COMMA = raw(", ?", 2)
COLON = raw(": ?", 2)

# Special tokens stand in an expression as characters of a private plane, which no text may contain: see `tools`.
CALL, CALL_END, CALL_QUOTE = (chr(0xF0000 + i) for i in range(3))
MARKS: Ranges = ((0xF0000, 0xF0002),)


@dataclass(frozen=True, eq=False)
class Dialect:
    """A way to write strings; all else is written alike."""

    quote: Piece
    free: Piece  # a string of any length, between the quotes
    counted: Piece  # one character, where they are counted
    never: Ranges  # characters that are not written as they are
    escapes: Mapping[str, str]  # how some of them are written instead
    scalar: Callable[[Any], str]
    name: Callable[[str], str]  # of a member of an object

    def quoted(self, content: Piece | None) -> Piece | None:
        return None if content is None else seq(self.quote, content, self.quote)

    def string(self, low: int = 0, high: int | None = None) -> Piece | None:
        """Any string of `low` to `high` characters."""
        if high is not None and low > high:
            return None
        return self.quoted(self.free if low == 0 and high is None else repeat(self.counted, low, high))

    @cache  # noqa: B019 (there are two dialects)
    def char(self, ranges: Ranges) -> Piece | None:
        """One character of the set, the way it stands inside a string."""
        parts: list[Piece | None] = [char_class(minus(ranges, self.never))]
        for low, high in ranges:
            parts += [quote(how) for char, how in self.escapes.items() if low <= ord(char) <= high]
        return alt(parts)

    def literal(self, value: Any) -> Piece:
        """A value as it is usually written; one space after `,` and `:` is left to the writer."""
        if isinstance(value, list | tuple):
            return seq(raw("\\["), *joined([self.literal(v) for v in value]), raw("\\]"))
        if isinstance(value, Mapping):
            members = [seq(self.key(k), self.literal(v)) for k, v in value.items()]
            return seq(raw("\\{"), *joined(members), raw("\\}"))
        return quote(self.scalar(value))

    def key(self, name: str) -> Piece:
        return seq(quote(self.name(name)), COLON)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """With commas between."""
    return [p for piece in pieces for p in (COMMA, piece)][1:]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _marked(text: str) -> str:
    return text.replace(answer.QUOTE, CALL_QUOTE)


_CONTROL = {chr(code): f"\\u{code:04x}" for code in range(0x20)}
JSON = Dialect(
    scalar=_json,
    name=_json,
    quote=Piece('"', 1),
    # A short escape counts as one character. Escapes by number are in free strings only: where lengths are counted they
    # would double the automaton, and there is little they alone can say. Halves of surrogate pairs are left out.
    free=repeat(
        Piece(
            '(?:[^"\\\\\\x00-\\x1F]|\\\\(?:["\\\\/bfnrt]|u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})))',
            16,
            10,
            ATOM,
        ),
        0,
        None,
    ),
    counted=Piece('(?:[^"\\\\\\x00-\\x1F]|\\\\["\\\\/bfnrt])', 9, 4, ATOM),
    never=union(((0x00, 0x1F),), chars('"\\')),
    escapes={
        **_CONTROL, '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"
    },
)  # fmt: skip

# A call has no escapes: its quotes are special tokens. What would read as one of the other tags is not to be spelled
# out either; all of them hold "<|" or "|>".
_PLAIN = f"[^<|{CALL}-{CALL_QUOTE}]"
_NO_TAGS = rf"(?:{_PLAIN}|\|+[^|<>{CALL}-{CALL_QUOTE}]|\|*<+{_PLAIN})*\|*<*"
CALLS = Dialect(
    scalar=lambda value: _marked(answer.format_value(value)),
    name=lambda key: _marked(answer.format_key(key)),
    quote=Piece(CALL_QUOTE, 4),
    free=Piece(_NO_TAGS, 24, 6, SEQUENCE),
    counted=Piece(_PLAIN, 5, 1, ATOM),
    never=union(chars("<|"), MARKS),
    escapes={},
)
