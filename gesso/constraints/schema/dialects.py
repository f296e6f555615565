"""Two notations for values: JSON, and the arguments of a tool call."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gesso.chat import answer
from gesso.constraints.charset import Ranges, char_class, chars, minus, union
from gesso.constraints.regex import ATOM, REPETITION, SEQUENCE, Regex, alt, literal, raw, repeat, seq

COMMA = raw(", ?", 2)
COLON = raw(": ?", 2)

# In an expression, special tokens are characters of a private plane, which no text may contain. See `tools`.
CALL, CALL_END, CALL_QUOTE = (chr(0xF0000 + i) for i in range(3))
MARKS: Ranges = ((0xF0000, 0xF0002),)


@dataclass(frozen=True, eq=False)
class Dialect:
    """A notation for strings and keys. Both dialects write all other values in the same way."""

    quote: Regex
    any_content: Regex  # of a string of any length, between the quotes
    counted_char: Regex  # one character of a string whose length is limited
    excluded: Ranges  # characters that a string cannot contain as they are
    escapes: Mapping[str, str]  # for some of the excluded characters
    write_scalar: Callable[[Any], str]
    write_key: Callable[[str], str]

    def quoted(self, content: Regex | None) -> Regex | None:
        return seq(self.quote, content, self.quote)

    def string(self, low: int = 0, high: int | None = None) -> Regex | None:
        """Match any string of `low` to `high` characters."""
        return self.quoted(self.any_content if low == 0 and high is None else repeat(self.counted_char, low, high))

    @cache  # noqa: B019 (there are two dialects)
    def char(self, ranges: Ranges) -> Regex | None:
        """Match one character of a set inside a string."""
        parts: list[Regex | None] = [char_class(minus(ranges, self.excluded))]
        for low, high in ranges:
            parts += [literal(escape) for char, escape in self.escapes.items() if low <= ord(char) <= high]
        return alt(parts)

    def value(self, value: Any) -> Regex | None:
        """Match one value, with an optional space after each `,` and `:`."""
        if isinstance(value, list | tuple):
            return seq(raw("\\["), *joined(map(self.value, value)), raw("\\]"))
        if isinstance(value, Mapping):
            members = (self.member(key, self.value(inner)) for key, inner in value.items())
            return seq(raw("\\{"), *joined(members), raw("\\}"))
        return literal(self.write_scalar(value))

    def member(self, key: str, value: Regex | None) -> Regex | None:
        return seq(literal(self.write_key(key)), COLON, value)


def joined(parts: Iterable[Regex | None]) -> list[Regex | None]:
    """Put commas between the parts."""
    return [p for part in parts for p in (COMMA, part)][1:]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _mark_quotes(text: str) -> str:
    return text.replace(answer.QUOTE, CALL_QUOTE)


# A short escape such as \n counts as one character. Numeric escapes are allowed only in strings of any length: where
# the length is limited they would double the automaton, for few additional texts. No escape is half a surrogate pair.
_NUMERIC_ESCAPE = "u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})"
JSON = Dialect(
    write_scalar=_json,
    write_key=_json,
    quote=Regex('"', 1),
    any_content=Regex(f'(?:[^"\\\\\\x00-\\x1F]|\\\\(?:["\\\\/bfnrt]|{_NUMERIC_ESCAPE}))*', 17, 11, REPETITION),
    counted_char=Regex('(?:[^"\\\\\\x00-\\x1F]|\\\\["\\\\/bfnrt])', 9, 4, ATOM),
    excluded=union(((0x00, 0x1F),), chars('"\\')),
    escapes={
        **{chr(code): f"\\u{code:04x}" for code in range(0x20)},
        '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t",
    },
)  # fmt: skip

# A tool call has no escapes, because its quotes are special tokens. Its strings must not spell out any other tag
# either; all tags contain "<|" or "|>".
_PLAIN = f"[^<|{CALL}-{CALL_QUOTE}]"
_NO_TAGS = rf"(?:{_PLAIN}|\|+[^|<>{CALL}-{CALL_QUOTE}]|\|*<+{_PLAIN})*\|*<*"
CALLS = Dialect(
    write_scalar=lambda value: _mark_quotes(answer.format_value(value)),
    write_key=lambda key: _mark_quotes(answer.format_key(key)),
    quote=Regex(CALL_QUOTE, 4),
    any_content=Regex(_NO_TAGS, 24, 6, SEQUENCE),
    counted_char=Regex(_PLAIN, 5, 1, ATOM),
    excluded=union(chars("<|"), MARKS),
    escapes={},
)
