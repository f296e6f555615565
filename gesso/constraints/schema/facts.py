"""The content of a subschema as plain facts, which can be intersected (`allOf`) and compared (`oneOf`)."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gesso.constraints.schema.numbers import Bound, none_between
from gesso.errors import InputError

# Each value has exactly one of these types: "number" is a number that is not an integer.
TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


@dataclass(frozen=True, slots=True)
class Subschema:
    """A schema inside the whole schema, at a JSON pointer."""

    schema: Any
    pointer: str
    entered: frozenset[tuple[str, int]] = frozenset()  # how often each reference was followed on the way here
    level: int = 0

    def child(self, schema: Any, *steps: str | int) -> "Subschema":
        path = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
        return Subschema(schema, self.pointer + path, self.entered, self.level + 1)

    @property
    def key(self) -> tuple[str, frozenset[tuple[str, int]]]:
        return self.pointer, self.entered


@dataclass(frozen=True, slots=True)
class Properties:
    """`properties` and `additionalProperties` of one subschema. The second applies to names that the first lacks."""

    named: Mapping[str, Subschema]
    others: Subschema | None

    def of(self, name: str) -> tuple[Subschema, ...]:
        found = self.named.get(name, self.others)
        return () if found is None else (found,)


class _ConflictError(ValueError):
    pass


def _common_values(a: tuple[Any, ...] | None, b: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if a is None or b is None:
        return b if a is None else a
    known = {identity(v) for v in b}
    return tuple(v for v in a if identity(v) in known)


def _higher(a: Bound | None, b: Bound | None) -> Bound | None:
    return a or b if a is None or b is None else max(a, b, key=lambda bound: (bound.exact, bound.strict))


def _lower(a: Bound | None, b: Bound | None) -> Bound | None:
    return a or b if a is None or b is None else max(a, b, key=lambda bound: (-bound.exact, bound.strict))


def _smaller(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _step(a: int | None, b: int | None) -> int | None:
    if a is None or b is None or 1 in (a, b):
        return max(a or 0, b or 0) or None
    if a != b:
        raise _ConflictError("have different multipleOf; only one is supported")
    return a


def _same(keyword: str) -> Callable[[str | None, str | None], str | None]:
    def same(a: str | None, b: str | None) -> str | None:
        if a is not None and b is not None and a != b:
            raise _ConflictError(f"have different {keyword}s for the same string; only one is supported")
        return b if a is None else a

    return same


def _fact(default: Any, intersect: Callable[[Any, Any], Any]) -> Any:
    return field(default=default, metadata={"intersect": intersect})


@dataclass(frozen=True, slots=True)
class Facts:
    """Conditions on a value. Each field has a default that allows everything, and a rule to intersect two facts."""

    pointer: str = "#"
    types: frozenset[str] = _fact(TYPES, operator.and_)
    values: tuple[Any, ...] | None = _fact(None, _common_values)
    about: frozenset[str] = _fact(frozenset(), operator.or_)  # the types to which some keyword applies
    low: Bound | None = _fact(None, _higher)
    high: Bound | None = _fact(None, _lower)
    step: int | None = _fact(None, _step)  # numbers are multiples of it
    min_length: int = _fact(0, max)
    max_length: int | None = _fact(None, _smaller)
    pattern: str | None = _fact(None, _same("pattern"))
    format: str | None = _fact(None, _same("format"))
    prefix: tuple[Subschema, ...] = _fact((), lambda a, b: a or b)
    items: tuple[Subschema, ...] = _fact((), operator.add)
    min_items: int = _fact(0, max)
    max_items: int | None = _fact(None, _smaller)
    unique: bool = _fact(False, operator.or_)
    properties: tuple[Properties, ...] = _fact((), operator.add)
    required: tuple[str, ...] = _fact((), lambda a, b: tuple(dict.fromkeys(a + b)))
    min_properties: int = _fact(0, max)
    max_properties: int | None = _fact(None, _smaller)

    @property
    def unconstrained(self) -> bool:
        return self.types == TYPES and self.values is None and not self.about

    @property
    def possible(self) -> bool:
        return bool(self.types) and self.values != ()


INTERSECT: dict[str, Callable[[Any, Any], Any]] = {
    f.name: f.metadata["intersect"] for f in fields(Facts) if "intersect" in f.metadata
}


def intersect(a: Facts, b: Facts) -> Facts:
    """Return the facts of values that satisfy both; reject combinations that are not supported."""
    if a.pointer != b.pointer and ((a.prefix and (b.prefix or b.items)) or (b.prefix and a.items)):
        raise InputError(
            f"{a.pointer} and {b.pointer} both describe the items of an array, one of them with prefixItems; "
            "describe the items in one place"
        )
    try:
        found = {name: rule(getattr(a, name), getattr(b, name)) for name, rule in INTERSECT.items()}
    except _ConflictError as error:
        raise InputError(f"{a.pointer} and {b.pointer} {error}") from None
    return Facts(a.pointer, **found)


def type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list | tuple) else "object"


def identity(value: Any) -> Any:
    """Return a key that is equal for equal JSON values: 1 equals 1.0, but not true."""
    kind = type_of(value)
    if kind in ("integer", "number"):
        return "number", value
    if kind == "array":
        return kind, tuple(identity(v) for v in value)
    return (kind, frozenset((k, identity(v)) for k, v in value.items())) if kind == "object" else (kind, value)


def with_allowed_values(facts: Facts) -> Facts:
    """Drop the values of an `enum` that the other keywords forbid."""
    if facts.values is None:
        return facts
    return replace(facts, values=tuple(v for v in facts.values if _allowed(facts, v)))


def _allowed(facts: Facts, value: Any) -> bool:
    kind = type_of(value)
    if kind not in facts.types:
        return False
    is_number = kind in ("integer", "number")
    limited = facts.about & ({"integer", "number"} if is_number else {kind})
    has_pattern = facts.pattern is not None or facts.format is not None
    unchecked = has_pattern if kind == "string" else kind in ("array", "object")
    if limited and unchecked:
        raise InputError(
            f"{facts.pointer}: enum or const is combined with other keywords for a value of type {kind}; "
            "list only the values you need and remove the other keywords"
        )
    if is_number:
        number = Bound.read(value, strict=False)
        if none_between(facts.low, number) or none_between(number, facts.high):
            return False
        return facts.step is None or number.exact % facts.step == 0
    if kind == "string":
        return facts.min_length <= len(value) and (facts.max_length is None or len(value) <= facts.max_length)
    return True
