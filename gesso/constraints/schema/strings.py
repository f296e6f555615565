"""Terms of the contents of strings."""

from collections.abc import Callable

from gesso.constraints.regex import pattern_term
from gesso.constraints.schema.dialects import Dialect
from gesso.constraints.schema.facts import Facts
from gesso.constraints.schema.formats import format_term
from gesso.constraints.term import FAR, NOTHING, Term
from gesso.constraints.terms import Repeat, alt, both, complement, repeat
from gesso.errors import InputError


def string_content(facts: Facts, dialect: Dialect, check: Callable[[str], None]) -> Term:
    """Return the contents of the strings that satisfy the facts."""
    low, high = facts.min_length, facts.max_length
    if facts.values is not None:
        return alt(dialect.content(value) for value in facts.values if isinstance(value, str))
    parts: list[Term] = []
    for pattern in facts.patterns:
        content = pattern_content(pattern, dialect, facts.pointer)
        if isinstance(content, Repeat) and dialect.is_char(content.item):  # a class of characters: join its counts
            low, high = _limited(content, low, high)
            content = repeat(content.item, low, high)
            low, high = 0, None
        parts.append(content)
    parts += [format_term(name, dialect) for name in facts.formats]
    refused = [pattern_content(pattern, dialect, facts.pointer, every=False) for pattern in facts.other_patterns]
    refused += [dialect.content(value) for value in facts.excluded if isinstance(value, str)]
    if low or high is not None:
        parts.append(repeat(dialect.any_char, low, high))
    if not parts:
        parts.append(dialect.free_content)
    if refused:
        parts.append(complement(alt(refused)))
    all_parts = both(parts)
    if len(parts) == 1:
        return all_parts
    try:
        return NOTHING if all_parts.least >= FAR else all_parts
    except InputError:  # too large to compare: leave the length to the check of the answer
        if len(parts) < 3 and not (low or high is not None):
            raise
        check(f"{facts.pointer}/{'minLength' if low else 'maxLength'}")
        return parts[0]


def _limited(part: Repeat, low: int, high: int | None) -> tuple[int, int | None]:
    highs = [count for count in (part.high, high) if count is not None]
    return max(part.low, low), min(highs, default=None)


def pattern_content(pattern: str, dialect: Dialect, pointer: str, *, every: bool = True) -> Term:
    """Return the contents that match a pattern for every validator, or for any of them."""
    try:
        return pattern_term(pattern, dialect.char, dialect.any_char, every=every)
    except InputError as error:
        raise InputError(f"{pointer}/pattern: {error}") from None


def matches(term: Term, dialect: Dialect, text: str) -> bool:
    """Return whether a content in its shortest spelling is one of a term."""
    content = dialect.content(text)
    for byte in _spelling(content):
        term = term.after(byte)
    return term.nullable


def _spelling(term: Term) -> bytes:
    """Return a shortest text of a term."""
    text = bytearray()
    while not term.nullable:
        byte = next(_lowest(mask) for mask in term.masks if term.after(_lowest(mask)).least < term.least)
        text.append(byte)
        term = term.after(byte)
    return bytes(text)


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1
