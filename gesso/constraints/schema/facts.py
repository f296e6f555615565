"""The content of a subschema as plain facts, which can be intersected (`allOf`) and compared (`oneOf`)."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

from gesso.constraints.schema.multiples import common_multiple
from gesso.constraints.schema.numbers import Bound, none_between

# Each value has exactly one of these types: "number" is a number that is not an integer.
TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
NUMBERS = frozenset({"integer", "number"})


@dataclass(frozen=True, slots=True)
class Subschema:
    """A schema inside the whole schema, at a JSON pointer. `base` is the URI against which it reads references."""

    schema: Any = field(compare=False)  # the pointer identifies it
    pointer: str
    base: str = field(default="", compare=False)
    entered: bool = field(default=False, compare=False)  # whether `base` counts the schema's own `$id`

    def child(self, schema: Any, *steps: str | int) -> "Subschema":
        path = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
        # The child of a negation is the schema that was negated.
        return Subschema(schema, self.pointer + path, self.base, entered=self.is_negation and self.entered)

    def negated(self) -> "Subschema":
        return Subschema({"not": self.schema}, f"{self.pointer}/{NEGATED}", self.base, entered=self.entered)

    @property
    def is_negation(self) -> bool:
        return self.pointer.endswith(f"/{NEGATED}")


NEGATED = "(not)"  # in the pointer of a schema that the reader made itself


@dataclass(frozen=True, slots=True)
class Properties:
    """The conditions of one subschema on members: by name, by pattern, and on all others."""

    named: Mapping[str, Subschema]
    patterns: tuple[tuple[str, Subschema], ...] = ()
    others: Subschema | None = None
    open: bool = False  # whether it asks for further members

    @property
    def closed(self) -> bool:
        return self.others is not None and self.others.schema is False


@dataclass(frozen=True, slots=True)
class Items:
    """The conditions of one subschema on items: on the first ones, and on all others."""

    prefix: tuple[Subschema, ...]
    rest: Subschema | None = None

    def at(self, index: int) -> tuple[Subschema, ...]:
        if index < len(self.prefix):
            return (self.prefix[index],)
        return () if self.rest is None else (self.rest,)


@dataclass(frozen=True, slots=True)
class Contains:
    """From `low` to `high` items satisfy a subschema."""

    place: Subschema
    low: int
    high: int | None


def _common_values(a: tuple[Any, ...] | None, b: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if a is None or b is None:
        return b if a is None else a
    identities = {identity(v) for v in b}
    return tuple(v for v in a if identity(v) in identities)


def _higher(a: Bound | None, b: Bound | None) -> Bound | None:
    return a or b if a is None or b is None else max(a, b, key=lambda bound: (bound.exact, bound.strict))


def _lower(a: Bound | None, b: Bound | None) -> Bound | None:
    return a or b if a is None or b is None else max(a, b, key=lambda bound: (-bound.exact, bound.strict))


def _smaller(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def _step(a: Fraction | None, b: Fraction | None) -> Fraction | None:
    return a or b if a is None or b is None else common_multiple(a, b)


def _together(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    return a + tuple(value for value in b if value not in a) if a and b else a or b


def _fact(default: Any, intersect: Callable[[Any, Any], Any]) -> Any:
    return field(default=default, metadata={"intersect": intersect})


@dataclass(frozen=True, slots=True)
class Facts:
    """Conditions on a value. Each field has a default that allows everything, and a rule to intersect two facts."""

    pointer: str = "#"
    types: frozenset[str] = _fact(TYPES, operator.and_)
    values: tuple[Any, ...] | None = _fact(None, _common_values)
    excluded: tuple[Any, ...] = _fact((), operator.add)
    about: frozenset[str] = _fact(frozenset(), operator.or_)  # the types to which some keyword applies
    low: Bound | None = _fact(None, _higher)
    high: Bound | None = _fact(None, _lower)
    step: Fraction | None = _fact(None, _step)  # numbers are multiples of it
    min_length: int = _fact(0, max)
    max_length: int | None = _fact(None, _smaller)
    patterns: tuple[str, ...] = _fact((), _together)
    other_patterns: tuple[str, ...] = _fact((), _together)  # that do not match
    formats: tuple[str, ...] = _fact((), _together)
    items: tuple[Items, ...] = _fact((), _together)
    contains: tuple[Contains, ...] = _fact((), _together)
    min_items: int = _fact(0, max)
    max_items: int | None = _fact(None, _smaller)
    unique: bool = _fact(False, operator.or_)
    properties: tuple[Properties, ...] = _fact((), _together)
    names: tuple[Subschema, ...] = _fact((), _together)  # which the names of all members satisfy
    required: tuple[str, ...] = _fact((), _together)
    min_properties: int = _fact(0, max)
    max_properties: int | None = _fact(None, _smaller)

    @property
    def unconstrained(self) -> bool:
        return self.types == TYPES and self.values is None and not self.about and not self.excluded

    @property
    def possible(self) -> bool:
        return bool(self.types) and self.values != ()


DEFAULTS = {f.name: f.default for f in fields(Facts)}
INTERSECT: dict[str, Callable[[Any, Any], Any]] = {
    f.name: f.metadata["intersect"] for f in fields(Facts) if "intersect" in f.metadata
}


def intersect(a: Facts, b: Facts) -> Facts:
    """Return the facts of values that satisfy both."""
    if a.unconstrained:
        return b
    if b.unconstrained:
        return a
    values: dict[str, Any] = {}
    for name, rule in INTERSECT.items():
        of_a, of_b = getattr(a, name), getattr(b, name)
        if of_b is DEFAULTS[name]:
            values[name] = of_a
        elif of_a is DEFAULTS[name]:
            values[name] = of_b
        else:
            values[name] = rule(of_a, of_b)
    return Facts(a.pointer, **values)


def joined_values(alternatives: list[Facts]) -> list[Facts]:
    """Join the alternatives that are nothing but values."""
    values = [facts for facts in alternatives if facts.values and not facts.about and not facts.excluded]
    if len(values) < 2:
        return alternatives
    listed = {
        identity(value): value for facts in values for value in facts.values or () if type_of(value) in facts.types
    }
    joined = replace(values[0], types=TYPES, values=tuple(listed.values()))
    joined_ids = {id(facts) for facts in values}
    return [joined, *(facts for facts in alternatives if id(facts) not in joined_ids)]


def type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list | tuple) else "object"


def identity(value: Any) -> Any:
    """Return a key that is equal for equal JSON values: 1 equals 1.0, but not true."""
    kind = type_of(value)
    if kind in NUMBERS:
        return "number", value
    if kind == "array":
        return kind, tuple(identity(v) for v in value)
    return (kind, frozenset((k, identity(v)) for k, v in value.items())) if kind == "object" else (kind, value)


def clearly_apart(a: Facts, b: Facts, kind: str) -> bool:
    """Return whether no value of a type satisfies both, by their bounds alone."""
    if kind in NUMBERS:
        return none_between(b.low, a.high) or none_between(a.low, b.high)
    lows, highs = {
        "string": ((a.min_length, b.min_length), (a.max_length, b.max_length)),
        "array": ((a.min_items, b.min_items), (a.max_items, b.max_items)),
        "object": ((a.min_properties, b.min_properties), (a.max_properties, b.max_properties)),
    }.get(kind, ((0, 0), (None, None)))
    return any(high is not None and low > high for low in lows for high in highs)
