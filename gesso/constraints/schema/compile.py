"""JSON schema to regular expression: every text that matches is a JSON document valid under the schema.

Not every valid document matches. Keys come in the order of `properties`, and an object that names properties gets no
others; between tokens stands nothing but one optional space after `,` and `:`.
"""

from collections.abc import Mapping
from itertools import permutations
from typing import Any

from gesso.constraints.limits import Limits
from gesso.constraints.regex import EMPTY, Piece, alt, check, optional, raw, repeat, seq
from gesso.constraints.schema.dialects import COLON, COMMA, JSON, Dialect, joined
from gesso.constraints.schema.facts import TYPES, Facts, Place, identity
from gesso.constraints.schema.formats import FORMATS
from gesso.constraints.schema.numbers import integers, multiples, numbers
from gesso.constraints.schema.patterns import pattern_content
from gesso.constraints.schema.reader import Reader, measure
from gesso.errors import InputError

ANYTHING = "*"
"""Stands for "any value" among the definitions entered: free values nest no deeper than the others."""
SCALAR = {"type": ["null", "boolean", "number", "string"]}
"""What is left of "any value" at the deepest level."""
LONG, SHORT, DEEP = 50, 16, 170
"""Optional members in one run, each inside the next: there each is written only twice, but Rust's parser allows no more
than 250 levels. Past DEEP levels runs are short, and more members are written more often."""


def schema_regex(
    schema: Mapping[str, Any] | bool,
    *,
    limits: Limits = Limits(),  # noqa: B008 (immutable)
    dialect: Dialect = JSON,
) -> str:
    """The expression, in the syntax of Rust's `regex` crate, to be matched against the whole text."""
    measure(schema, limits)
    writer = _Writer(Reader(schema, limits), limits, dialect)
    piece = writer.places((Place(schema, "#", frozenset({("#", 1)})),))
    if piece is not None:
        return piece.text
    if writer.reader.cut:
        raise InputError(
            f"the schema refers to itself and has no end within {limits.depth} levels (limits.depth): "
            "make the recursive part optional, or allow null or an empty list in its place"
        )
    raise InputError("the schema contradicts itself: no value satisfies it")


class _Writer:
    def __init__(self, reader: Reader, limits: Limits, dialect: Dialect) -> None:
        self.reader, self.limits, self.dialect = reader, limits, dialect
        self.known: dict[Any, Piece | None] = {}
        self.pattern_chars = 0

    def places(self, places: tuple[Place, ...]) -> Piece | None:
        """A value that fits what all these places say; `None` where there is none."""
        name = tuple(place.key for place in places)
        if name not in self.known:
            found = [self._value(facts, places) for facts in self.reader.read(places)]
            check(found, self.limits, places[0].pointer)
            self.known[name] = alt(found)
        return self.known[name]

    def _value(self, facts: Facts, places: tuple[Place, ...]) -> Piece | None:
        if facts.values is not None:
            return alt(self.dialect.literal(value) for value in facts.values)
        level = max(dict(place.entered).get(ANYTHING, 0) for place in places) + facts.free
        deeper = level + 2 < self.limits.depth
        anything = Place(deeper or SCALAR, ANYTHING, frozenset({(ANYTHING, level + 1)}))
        # {"properties": ...} without a type allows a number, but is meant for objects.
        meant = facts.about if facts.types == TYPES and facts.about else facts.types
        return alt(self._typed(kind, meant, facts, anything) for kind in sorted(meant))

    def _typed(self, kind: str, types: frozenset[str], facts: Facts, anything: Place) -> Piece | None:
        match kind:
            case "null":
                return raw("null")
            case "boolean":
                return alt([raw("true"), raw("false")])
            case "integer":
                return None if "number" in types and not facts.whole else self._whole(facts)
            case "number":
                return None if facts.whole else numbers(facts.low, facts.high)
            case "string":
                return self._string(facts)
            case "array":
                return self._array(facts, anything)
        return self._object(facts, anything)

    def _whole(self, facts: Facts) -> Piece | None:
        if facts.step == 1:
            return integers(facts.low, facts.high)
        listed = multiples(facts.low, facts.high, facts.step)
        if listed is None:
            raise InputError(f"{facts.pointer}/multipleOf: needs bounds with at most a thousand multiples between them")
        return alt(self.dialect.literal(number) for number in listed)

    def _string(self, facts: Facts) -> Piece | None:
        low, high = facts.min_length, facts.max_length
        if facts.format is not None:
            return self.dialect.quoted(_formatted(facts, facts.format))
        if facts.pattern is None:
            return self.dialect.string(low, high)
        self.pattern_chars += len(facts.pattern)
        if self.pattern_chars > self.limits.regex_chars // 5:
            raise InputError(f"{facts.pointer}/pattern: the patterns of the schema are too long, taken together")
        try:
            return self.dialect.quoted(pattern_content(facts.pattern, low, high, self.dialect.char))
        except InputError as error:
            raise InputError(f"{facts.pointer}/pattern: {error}") from None

    def _array(self, facts: Facts, anything: Place) -> Piece | None:
        low, high = facts.min_items, facts.max_items
        if high is not None and low > high:
            return None
        if facts.unique and (high is None or high > 1):
            return self._unique(facts)
        prefix = [self.places((place,)) for place in facts.prefix[:high]]
        # Behind a prefix nothing more is written unless it must be, or `items` says what.
        more = not prefix or bool(facts.items) or low > len(prefix)
        item = self.places(facts.items or (anything,)) if more else None
        check([*prefix, item], self.limits, facts.pointer)
        if not prefix:
            return _between("[", item, low, high, "]")
        rest: Piece | None
        if item is None:
            rest = EMPTY if low <= len(prefix) else None
        else:
            room = None if high is None else high - len(prefix)
            rest = repeat(seq(COMMA, item), max(low - len(prefix), 0), room)
        for i, piece in reversed(list(enumerate(prefix))):
            here = seq(COMMA if i else EMPTY, piece, rest) if piece is not None and rest is not None else None
            rest = here if low > i else optional(here)
        return None if rest is None else seq(raw("\\["), rest, raw("\\]"))

    def _unique(self, facts: Facts) -> Piece | None:
        """Values that can be listed: in any order where they are few, else in the order they are listed in."""
        choices = self.reader.read(facts.items) if facts.items and not facts.prefix else [Facts()]
        if any(choice.values is None for choice in choices):
            raise InputError(
                f"{facts.pointer}/uniqueItems: can be kept only where `items` is an enum, or maxItems is 1"
            )
        values = list({identity(v): v for choice in choices for v in choice.values or ()}.values())
        low, high = facts.min_items, len(values) if facts.max_items is None else min(facts.max_items, len(values))
        pieces = [self.dialect.literal(value) for value in values]
        if len(values) <= 4:
            orders = [order for size in range(low, high + 1) for order in permutations(pieces, size)]
            listed = [seq(raw("\\["), *joined(order), raw("\\]")) for order in orders]
            return alt(listed)
        if low > high:
            return None
        if low > 1 or high < len(values):
            raise InputError(
                f"{facts.pointer}/uniqueItems: of five values or more, minItems and maxItems cannot be kept"
            )
        return seq(raw("\\["), _some(pieces, low == 0), raw("\\]"))

    def _object(self, facts: Facts, anything: Place) -> Piece | None:
        names = dict.fromkeys(name for shape in facts.shapes for name in shape.properties) | facts.required
        low, high = facts.min_properties, facts.max_properties
        if not names:
            others = tuple(shape.others for shape in facts.shapes if shape.others is not None)
            value = self.places(others or (anything,))
            if low > 1 and value is not None:
                raise InputError(f"{facts.pointer}/minProperties: free keys might repeat; name them in `properties`")
            member = None if value is None else seq(self.dialect.string() or EMPTY, COLON, value)
            return _between("{", member, low, high, "}")
        members: dict[str, Piece] = {}
        for name in names:
            places = tuple(place for shape in facts.shapes for place in shape.of(name)) or (anything,)
            value = self.places(places)
            if value is not None:
                members[name] = seq(self.dialect.key(name), value)
            elif name in facts.required:
                return None
        check(members.values(), self.limits, facts.pointer)
        needed = set(facts.required)
        if low >= len(members):
            needed |= set(members)
        if high is not None and high <= len(needed):
            members = {name: member for name, member in members.items() if name in needed}
        if low > len(members) or (high is not None and high < len(needed)):
            return None
        if low > max(len(needed), 1) or (high is not None and high < len(members)):
            raise InputError(
                f"{facts.pointer}: minProperties and maxProperties can be kept only where they leave no choice of "
                "optional properties; use `required` instead"
            )
        return seq(raw("\\{"), _members(members, needed, low), raw("\\}"))


def _members(members: Mapping[str, Piece], needed: set[str], low: int) -> Piece:
    """The members in order, those not needed left out at will, with commas between."""
    names = list(members)
    first = next((i for i, name in enumerate(names) if name in needed), None)
    if first is None:
        return _some(list(members.values()), low == 0)
    # One member is sure to be there: those before it bring the comma behind them, those after it before them.
    before = [optional(seq(members[name], COMMA)) for name in names[:first]]
    after = [(name in needed, seq(COMMA, members[name])) for name in names[first + 1 :]]
    return seq(*before, members[names[first]], *(piece if sure else optional(piece) for sure, piece in after))


def _some(pieces: list[Piece], none: bool) -> Piece:
    """Some of these, in order, with commas between; `none` of them if that is allowed."""
    if not pieces:
        return EMPTY
    some = _at_least_one(pieces, LONG)
    if some.nest > DEEP:
        some = _at_least_one(pieces, SHORT)
    return optional(some) if none else some


def _at_least_one(pieces: list[Piece], run: int) -> Piece:
    # Choosing the first member would repeat all that may follow it, once for each choice. Choosing whether there was
    # one before the last writes each member twice: E(n) = E(n-1) (, p(n))? | p(n).
    if len(pieces) > run:
        half = len(pieces) // 2
        left, right = pieces[:half], pieces[half:]
        follow = seq(*(optional(seq(COMMA, piece)) for piece in right))
        return _either(seq(_at_least_one(left, run), follow), _at_least_one(right, run))
    found = pieces[0]
    for piece in pieces[1:]:
        found = _either(seq(found, optional(seq(COMMA, piece))), piece)
    return found


def _either(a: Piece, b: Piece) -> Piece:
    return alt([a, b]) or EMPTY


def _between(start: str, item: Piece | None, low: int, high: int | None, end: str) -> Piece | None:
    """`low` to `high` items between brackets, with commas between."""
    if high is not None and low > high:
        return None
    if item is None and low > 0:
        return None
    if item is None or high == 0:
        return raw(f"\\{start}\\{end}")
    more = repeat(seq(COMMA, item), max(low - 1, 0), None if high is None else high - 1)
    inside = seq(item, more)
    return seq(raw(f"\\{start}"), inside if low else optional(inside), raw(f"\\{end}"))


def _formatted(facts: Facts, name: str) -> Piece:
    if facts.pattern is not None:
        raise InputError(f"{facts.pointer}: pattern and format stand beside each other; only one can be followed")
    known, low, high = FORMATS[name], facts.min_length, facts.max_length
    if low > known.low or (high is not None and (known.high is None or high < known.high)):
        raise InputError(
            f"{facts.pointer}: the format {name!r} allows other lengths than minLength and maxLength; drop them"
        )
    return known.content
