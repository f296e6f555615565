"""Two notations for values, JSON and the arguments of a tool call, and the spaces between their tokens."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gesso.chat.calls import format_key, format_value
from gesso.chat.tags import QUOTE
from gesso.constraints.charset import ANY, Ranges, char_class, chars, minus, union
from gesso.constraints.schema.orders import MAX_SET, in_any_order
from gesso.constraints.term import EMPTY, NOTHING, Term
from gesso.constraints.terms import alt, literal, one_of, optional, repeat, seq

# Special tokens of tool calls are single bytes that UTF-8 never contains. See `tools`.
CALL = 0xF8
CALL_END = 0xF9
CALL_QUOTE = 0xFA
_PLAIN = re.compile(r"[A-Za-z0-9_.:,; -]*")  # characters with one spelling in both dialects
MAX_CHARS = 4096  # sets of characters that are kept
MAX_WHITESPACE = 200  # characters in a row


@dataclass(frozen=True, eq=False)
class Dialect:
    """A notation for strings and keys. Both dialects write all other values in the same way."""

    quote: Term
    free_content: Term  # of a string of any length, between the quotes
    excluded: Ranges  # characters that a string cannot contain as they are
    escape: Callable[[Ranges], Term]  # the other ways to write one character of a set
    write_text: Callable[["Dialect", str], Term]  # a string with its quotes
    write_key: Callable[["Dialect", str], Term]
    _chars: dict[Ranges, Term] = field(default_factory=dict)

    def char(self, ranges: Ranges) -> Term:
        """Return the term of one character of a set inside a string."""
        if ranges not in self._chars:
            if len(self._chars) > MAX_CHARS:
                self._chars.clear()
            self._chars[ranges] = alt([char_class(minus(ranges, self.excluded)), self.escape(ranges)])
        return self._chars[ranges]

    def is_char(self, term: Term) -> bool:
        """Return whether a term is known to be one character."""
        return any(term is char for char in self._chars.values())

    @property
    def any_char(self) -> Term:
        return self.char(ANY)

    def quoted(self, content: Term) -> Term:
        return seq(self.quote, content, self.quote)

    def content(self, text: str) -> Term:
        """Return one text inside a string, in all its spellings."""
        if _PLAIN.fullmatch(text):
            return literal(text)
        literal(text)  # rejects half of a surrogate pair
        return seq(*(self.char(chars(char)) for char in text))


def _hex(low: int, high: int) -> Term:
    """Return the numbers from one to another as four hexadecimal digits."""
    return _hex_digits(f"{low:04x}", f"{high:04x}")


def _hex_digits(low: str, high: str) -> Term:
    if not low:
        return EMPTY
    first, last = int(low[0], 16), int(high[0], 16)
    if first == last:
        return seq(_hex_digit(first, first), _hex_digits(low[1:], high[1:]))
    lowest, highest = "0" * (len(low) - 1), "f" * (len(low) - 1)
    parts: list[Term] = []
    if low[1:] != lowest:
        parts.append(seq(_hex_digit(first, first), _hex_digits(low[1:], highest)))
        first += 1
    if high[1:] != highest:
        parts.append(seq(_hex_digit(last, last), _hex_digits(lowest, high[1:])))
        last -= 1
    if first <= last:
        parts.append(seq(_hex_digit(first, last), *[_hex_digit(0, 15)] * (len(low) - 1)))
    return alt(parts)


def _hex_digit(low: int, high: int) -> Term:
    return one_of(sum(1 << ord(sign) for n in range(low, high + 1) for sign in {f"{n:x}", f"{n:X}"}))


_SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_U = literal("\\u")


def _json_escape(ranges: Ranges) -> Term:
    """Return short and numeric escapes. Printable ASCII characters have no numeric ones: nothing writes them."""
    parts: list[Term] = []
    for low, high in ranges:
        parts += [literal(escape) for char, escape in _SHORT.items() if low <= ord(char) <= high]
        for first, last in ((0x00, 0x1F), (0x7F, 0xD7FF), (0xE000, 0xFFFF)):
            if low <= last and first <= high:
                parts.append(seq(_U, _hex(max(low, first), min(high, last))))
        if high > 0xFFFF:
            parts += _surrogate_pairs(max(low, 0x10000) - 0x10000, high - 0x10000)
    return alt(parts)


def _surrogate_pairs(low: int, high: int) -> list[Term]:
    (first, start), (last, end) = divmod(low, 0x400), divmod(high, 0x400)

    def pair(a: int, b: int, c: int, d: int) -> Term:
        return seq(_U, _hex(0xD800 + a, 0xD800 + b), _U, _hex(0xDC00 + c, 0xDC00 + d))

    if first == last:
        return [pair(first, last, start, end)]
    between = [pair(first + 1, last - 1, 0, 0x3FF)] if first + 1 < last else []
    return [pair(first, first, start, 0x3FF), *between, pair(last, last, 0, end)]


def _json_text(dialect: Dialect, text: str) -> Term:
    return dialect.quoted(dialect.content(text))


_JSON_EXCLUDED = union(((0x00, 0x1F),), chars('"\\'))
JSON = Dialect(
    quote=literal('"'),
    free_content=repeat(alt([char_class(minus(ANY, _JSON_EXCLUDED)), _json_escape(ANY)]), 0, None),
    excluded=_JSON_EXCLUDED,
    escape=_json_escape,
    write_text=_json_text,
    write_key=_json_text,
)


# A tool call has no escapes, because its quotes are special tokens. Its strings must not spell out any other tag
# either; all tags contain "<|" or "|>". Where the length or a pattern is given, they contain neither < nor |.
def _call_free_content() -> Term:
    plain, after_bars = char_class(minus(ANY, chars("<|"))), char_class(minus(ANY, chars("|<>")))
    bars, less = repeat(literal("|"), 1, None), repeat(literal("<"), 1, None)
    piece = alt([plain, seq(bars, after_bars), seq(optional(bars), less, plain)])
    return seq(repeat(piece, 0, None), optional(bars), optional(less))


def _marked(text: str) -> Term:
    literal(text)  # rejects half of a surrogate pair
    return literal(text.encode().replace(QUOTE.encode(), bytes([CALL_QUOTE])))


CALLS = Dialect(
    quote=one_of(1 << CALL_QUOTE),
    free_content=_call_free_content(),
    excluded=chars("<|"),
    escape=lambda ranges: NOTHING,
    write_text=lambda dialect, text: _marked(format_value(text)),
    write_key=lambda dialect, key: _marked(format_key(key)),
)


@dataclass(frozen=True, eq=False)
class ValueWriter:
    """Writes whole values: a dialect, and the spaces between tokens."""

    dialect: Dialect
    space: Term
    after: Term  # `,` and `:`
    any_order: bool  # of the members of a given object

    @classmethod
    def of(cls, dialect: Dialect, *, whitespace: bool, any_order: bool = False) -> "ValueWriter":
        space = repeat(one_of(sum(1 << ord(c) for c in " \t\r\n")), 0, MAX_WHITESPACE) if whitespace else EMPTY
        after = space if whitespace else optional(literal(" "))
        return cls(dialect=dialect, space=space, after=after, any_order=any_order)

    @cached_property
    def comma(self) -> Term:
        return seq(self.space, literal(","), self.after)

    @cached_property
    def colon(self) -> Term:
        return seq(self.space, literal(":"), self.after)

    def within(self, brackets: str, content: Term) -> Term:
        if content is EMPTY:
            return seq(literal(brackets[0]), self.space, literal(brackets[1]))
        return seq(literal(brackets[0]), self.space, content, self.space, literal(brackets[1]))

    def joined(self, parts: Iterable[Term]) -> Term:
        """Put commas between the parts."""
        return seq(*[p for part in parts for p in (self.comma, part)][1:])

    def member(self, key: str, value: Term) -> Term:
        return seq(self.dialect.write_key(self.dialect, key), self.colon, value)

    def value(self, value: Any) -> Term:
        """Return the texts of one value."""
        if isinstance(value, str):
            return self.dialect.write_text(self.dialect, value)
        if isinstance(value, list | tuple):
            return self.within("[]", self.joined(map(self.value, value)))
        if isinstance(value, Mapping):
            members = [self.member(key, self.value(inner)) for key, inner in value.items()]
            if self.any_order and len(members) <= MAX_SET:
                every = (1 << len(members)) - 1
                return self.within("{}", in_any_order(members, every, 0, None, self.comma, NOTHING))
            return self.within("{}", self.joined(members))
        if isinstance(value, bool) or value is None:
            return literal(json.dumps(value))
        if value == int(value) and abs(value) < 10**16:
            return literal(str(int(value)))  # 19.0 as 19, which every client reads as an integer
        return literal(json.dumps(value))
