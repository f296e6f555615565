"""Compile a JSON schema to a regular expression. Every text that matches is a JSON document valid under the schema.

Not every valid document matches. Keys come in the order of `properties`, an object that names properties has no others,
and the only whitespace is an optional space after `,` and `:`.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from gesso.constraints.limits import Limits
from gesso.constraints.regex import EMPTY, Regex, alt, check_size, optional, raw, repeat, seq
from gesso.constraints.schema.dialects import COLON, COMMA, JSON, Dialect, joined
from gesso.constraints.schema.facts import TYPES, Facts, Subschema, identity
from gesso.constraints.schema.formats import FORMATS
from gesso.constraints.schema.numbers import MAX_MULTIPLES, integers, multiples, numbers
from gesso.constraints.schema.patterns import pattern_content
from gesso.constraints.schema.reader import Reader, check_json
from gesso.errors import InputError

# The pointer of "any value". It counts as a reference, so that free values nest no deeper than recursive ones.
ANYTHING = "*"
SCALAR = {"type": ["null", "boolean", "number", "string"]}  # "any value" at the deepest level

# Nesting optional members writes each of them only twice, but Rust's parser allows only 250 levels. So a run of nested
# members has at most 50; if the result is deeper than 170 levels, at most 16, and members are written more often.
LONG_RUN, SHORT_RUN, MAX_RUN_NEST = 50, 16, 170


def schema_regex(
    schema: Mapping[str, Any] | bool,
    *,
    limits: Limits = Limits(),  # noqa: B008 (immutable)
    dialect: Dialect = JSON,
) -> str:
    """Return a regular expression, in the syntax of Rust's `regex` crate, for the whole text."""
    check_json(schema, limits)
    compiler = _Compiler(Reader(schema, limits), limits, dialect)
    found = compiler.compile((Subschema(schema, "#", frozenset({("#", 1)})),))
    if found is not None:
        return found.text
    if compiler.reader.truncated:
        raise InputError(
            f"the schema refers to itself and has no end within {limits.depth} levels (limits.depth): "
            "make the recursive part optional, or allow null or an empty list instead"
        )
    raise InputError("the schema contradicts itself: no value satisfies it; relax one of its conditions")


class _Compiler:
    def __init__(self, reader: Reader, limits: Limits, dialect: Dialect) -> None:
        self.reader, self.limits, self.dialect = reader, limits, dialect
        self.known: dict[Any, Regex | None] = {}
        self.pattern_chars = 0

    def compile(self, places: tuple[Subschema, ...]) -> Regex | None:
        """Match a value that satisfies all these subschemas; None if there is no such value."""
        key = tuple(place.key for place in places)
        if key not in self.known:
            found = [self._value(facts, places) for facts in self.reader.read(places)]
            check_size(found, self.limits, places[0].pointer)
            self.known[key] = alt(found)
        return self.known[key]

    def _value(self, facts: Facts, places: tuple[Subschema, ...]) -> Regex | None:
        if facts.values is not None:
            return alt(map(self.dialect.value, facts.values))
        level = max(dict(place.entered).get(ANYTHING, 0) for place in places) + facts.unconstrained
        deeper = level + 2 < self.limits.depth
        anything = Subschema(deeper or SCALAR, ANYTHING, frozenset({(ANYTHING, level + 1)}))
        # {"properties": ...} without a type also allows a number, but its author means an object.
        types = facts.about if facts.types == TYPES and facts.about else facts.types
        return alt(self._typed(kind, types, facts, anything) for kind in sorted(types))

    def _typed(self, kind: str, types: frozenset[str], facts: Facts, anything: Subschema) -> Regex | None:
        match kind:
            case "null":
                return raw("null")
            case "boolean":
                return alt([raw("true"), raw("false")])
            case "integer":  # without multipleOf, "number" matches the integers too
                return None if "number" in types and facts.step is None else self._integer(facts)
            case "number":
                return numbers(facts.low, facts.high) if facts.step is None else None
            case "string":
                return self._string(facts)
            case "array":
                return self._array(facts, anything)
        return self._object(facts, anything)

    def _integer(self, facts: Facts) -> Regex | None:
        if facts.step in (None, 1):
            return integers(facts.low, facts.high)
        listed = multiples(facts.low, facts.high, facts.step or 1)
        if listed is None:
            raise InputError(
                f"{facts.pointer}/multipleOf: add minimum and maximum with at most {MAX_MULTIPLES:,} multiples between"
            )
        return alt(map(self.dialect.value, listed))

    def _string(self, facts: Facts) -> Regex | None:
        low, high, pointer = facts.min_length, facts.max_length, facts.pointer
        if facts.format is not None:
            return self.dialect.quoted(_formatted(facts, facts.format))
        if facts.pattern is None:
            return self.dialect.string(low, high)
        self.pattern_chars += len(facts.pattern)
        if self.pattern_chars > self.limits.regex_chars // 5:
            raise InputError(f"{pointer}/pattern: the patterns of the schema are too long in total; shorten them")
        try:
            return self.dialect.quoted(pattern_content(facts.pattern, low, high, self.dialect.char))
        except InputError as error:
            raise InputError(f"{pointer}/pattern: {error}") from None

    def _array(self, facts: Facts, anything: Subschema) -> Regex | None:
        low, high = facts.min_items, facts.max_items
        if high is not None and low > high:
            return None
        if facts.unique and (high is None or high > 1):
            return self._unique(facts)
        prefix = [self.compile((place,)) for place in facts.prefix[:high]]
        # After a prefix, write more items only if `items` describes them or `minItems` requires them.
        more = not prefix or bool(facts.items) or low > len(prefix)
        item = self.compile(facts.items or (anything,)) if more else None
        check_size([*prefix, item], self.limits, facts.pointer)
        if not prefix:
            return _list("[", item, low, high, "]")
        most = None if high is None else high - len(prefix)
        rest = repeat(seq(COMMA, item), max(low - len(prefix), 0), most)
        for i, first in reversed(list(enumerate(prefix))):
            rest = seq(COMMA if i else EMPTY, first, rest)
            rest = rest if low > i else optional(rest)
        return seq(raw("\\["), rest, raw("\\]"))

    def _unique(self, facts: Facts) -> Regex | None:
        """Match different values of an enum: up to four in any order, more in the order of the enum."""
        choices = self.reader.read(facts.items) if facts.items and not facts.prefix else [Facts()]
        if any(choice.values is None for choice in choices):
            raise InputError(f"{facts.pointer}/uniqueItems: supported only if `items` is an enum or maxItems is 1")
        values = list({identity(v): v for choice in choices for v in choice.values or ()}.values())
        low, high = facts.min_items, len(values) if facts.max_items is None else min(facts.max_items, len(values))
        parts = [self.dialect.value(value) for value in values]
        if len(values) <= 4:
            orders = [order for size in range(low, high + 1) for order in permutations(parts, size)]
            return alt(seq(raw("\\["), *joined(order), raw("\\]")) for order in orders)
        if low > high:
            return None
        if low > 1 or high < len(values):
            raise InputError(
                f"{facts.pointer}/uniqueItems: minItems and maxItems are not supported with five values or more"
            )
        return seq(raw("\\["), _some(parts, low), raw("\\]"))

    def _object(self, facts: Facts, anything: Subschema) -> Regex | None:
        shapes = facts.properties
        names = dict.fromkeys([*(name for shape in shapes for name in shape.named), *facts.required])
        low, high = facts.min_properties, facts.max_properties
        if not names:
            others = tuple(shape.others for shape in shapes if shape.others is not None)
            value = self.compile(others or (anything,))
            if low > 1 and value is not None:
                raise InputError(
                    f"{facts.pointer}/minProperties: free keys could repeat; name the properties in `properties`"
                )
            return _list("{", seq(self.dialect.string(), COLON, value), low, high, "}")
        members: dict[str, Regex] = {}
        for name in names:
            places = tuple(place for shape in shapes for place in shape.of(name)) or (anything,)
            member = self.dialect.member(name, self.compile(places))
            if member is not None:
                members[name] = member
            elif name in facts.required:
                return None
        check_size(members.values(), self.limits, facts.pointer)
        required = set(members) if low >= len(members) else set(facts.required)
        if high is not None and high <= len(required):
            members = {name: member for name, member in members.items() if name in required}
        if low > len(members) or (high is not None and high < len(required)):
            return None
        if low > max(len(required), 1) or (high is not None and high < len(members)):
            raise InputError(
                f"{facts.pointer}: minProperties and maxProperties are supported only if they leave no choice between "
                "optional properties; use `required` instead"
            )
        return seq(raw("\\{"), _members(members, required, low), raw("\\}"))


def _members(members: Mapping[str, Regex], required: set[str], low: int) -> Regex | None:
    """Match the members in order, with commas between them. Those that are not required may be missing."""
    names = list(members)
    first = next((i for i, name in enumerate(names) if name in required), None)
    if first is None:
        return _some(list(members.values()), low)
    # The first required member is always there: each member before it has a comma after it, each one behind it a comma
    # before it.
    before = [optional(seq(members[name], COMMA)) for name in names[:first]]
    after = [repeat(seq(COMMA, members[name]), int(name in required), 1) for name in names[first + 1 :]]
    return seq(*before, members[names[first]], *after)


def _some(parts: Sequence[Regex | None], low: int) -> Regex | None:
    """Match at least `low` (0 or 1) of these, in order, with commas between them."""
    if not parts:
        return EMPTY
    found = _at_least_one(parts, LONG_RUN)
    if found is not None and found.nest > MAX_RUN_NEST:
        found = _at_least_one(parts, SHORT_RUN)
    return found if low else optional(found)


def _at_least_one(parts: Sequence[Regex | None], run: int) -> Regex | None:
    # A choice of the first member would repeat everything after it for each choice. A choice of whether something came
    # before the last member writes each member twice: E(n) = E(n-1) (, p(n))? | p(n).
    if len(parts) > run:
        left, right = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        after = seq(*(optional(seq(COMMA, part)) for part in right))
        return alt([seq(_at_least_one(left, run), after), _at_least_one(right, run)])
    found = parts[0]
    for part in parts[1:]:
        found = alt([seq(found, optional(seq(COMMA, part))), part])
    return found


def _list(start: str, item: Regex | None, low: int, high: int | None, end: str) -> Regex | None:
    """Match `low` to `high` items in brackets, with commas between them."""
    items = seq(item, repeat(seq(COMMA, item), max(low - 1, 0), None if high is None else high - 1))
    return seq(raw(f"\\{start}"), items if low else optional(items), raw(f"\\{end}"))


def _formatted(facts: Facts, name: str) -> Regex:
    if facts.pattern is not None:
        raise InputError(f"{facts.pointer}: pattern and format are combined; only one of them is supported")
    known, low, high = FORMATS[name], facts.min_length, facts.max_length
    if low > known.min_length or (high is not None and (known.max_length is None or high < known.max_length)):
        raise InputError(
            f"{facts.pointer}: the format {name!r} cannot be combined with these minLength and maxLength; remove them"
        )
    return known.content
