"""What a JSON schema says at one place, as plain facts that can be joined (`allOf`) and told apart (`oneOf`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from gesso.constraints.schema.numbers import Bound
from gesso.errors import InputError

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
"""Each value is of one of these: "number" is a number that is not whole."""


@dataclass(frozen=True, slots=True)
class Place:
    """A schema, where it stands, and how often each definition has been entered on the way there."""

    schema: Any
    pointer: str
    entered: frozenset[tuple[str, int]] = frozenset()
    level: int = 0

    def child(self, schema: Any, *steps: str | int) -> "Place":
        path = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
        return Place(schema, self.pointer + path, self.entered, self.level + 1)

    @property
    def key(self) -> tuple[str, frozenset[tuple[str, int]]]:
        return self.pointer, self.entered


@dataclass(frozen=True, slots=True)
class Shape:
    """`properties` and `additionalProperties` of one schema: the second speaks of what the first does not name."""

    properties: Mapping[str, Place]
    others: Place | None

    def of(self, name: str) -> tuple[Place, ...]:
        found = self.properties.get(name, self.others)
        return () if found is None else (found,)


@dataclass(frozen=True, slots=True)
class Facts:
    pointer: str = "#"
    types: frozenset[str] = TYPES
    values: tuple[Any, ...] | None = None
    about: frozenset[str] = frozenset()
    """The types that some keyword speaks of."""
    low: Bound | None = None
    high: Bound | None = None
    step: int = 1
    whole: bool = False
    """Numbers are multiples of `step`."""
    min_length: int = 0
    max_length: int | None = None
    pattern: str | None = None
    format: str | None = None
    prefix: tuple[Place, ...] = ()
    items: tuple[Place, ...] = ()
    min_items: int = 0
    max_items: int | None = None
    unique: bool = False
    shapes: tuple[Shape, ...] = ()
    required: dict[str, None] = field(default_factory=dict)
    min_properties: int = 0
    max_properties: int | None = None

    @property
    def free(self) -> bool:
        """Nothing is said: any value will do."""
        return self.types == TYPES and self.values is None and not self.about

    @property
    def possible(self) -> bool:
        return bool(self.types) and self.values != ()


def type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list | tuple) else "object"


def identity(value: Any) -> Any:
    """Equal for equal JSON values: 1 is 1.0, but not true."""
    kind = type_of(value)
    if kind in ("integer", "number"):
        return "number", value
    if kind == "array":
        return kind, tuple(identity(v) for v in value)
    return (kind, frozenset((k, identity(v)) for k, v in value.items())) if kind == "object" else (kind, value)


def join(a: Facts, b: Facts) -> Facts:
    """Both at once. What cannot be joined is refused."""
    values = a.values if b.values is None else b.values
    if a.values is not None and b.values is not None:
        known = {identity(v) for v in b.values}
        values = tuple(v for v in a.values if identity(v) in known)
    if a.pointer != b.pointer and ((a.prefix and (b.prefix or b.items)) or (b.prefix and a.items)):
        raise InputError(f"{a.pointer} and {b.pointer} both say what stands in an array, one of them with prefixItems")
    if a.step != 1 and b.step != 1 and a.step != b.step:
        raise InputError(f"{a.pointer} and {b.pointer} have different multipleOf")
    return Facts(
        pointer=a.pointer,
        types=a.types & b.types,
        values=values,
        about=a.about | b.about,
        low=_tighter(a.low, b.low, 1),
        high=_tighter(a.high, b.high, -1),
        step=max(a.step, b.step),
        whole=a.whole or b.whole,
        min_length=max(a.min_length, b.min_length),
        max_length=_least(a.max_length, b.max_length),
        pattern=_same(a, b, "pattern"),
        format=_same(a, b, "format"),
        prefix=a.prefix or b.prefix,
        items=a.items + b.items,
        min_items=max(a.min_items, b.min_items),
        max_items=_least(a.max_items, b.max_items),
        unique=a.unique or b.unique,
        shapes=a.shapes + b.shapes,
        required=a.required | b.required,
        min_properties=max(a.min_properties, b.min_properties),
        max_properties=_least(a.max_properties, b.max_properties),
    )


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _tighter(a: Bound | None, b: Bound | None, sign: int) -> Bound | None:
    if a is None or b is None:
        return a or b
    return max(a, b, key=lambda bound: (sign * bound.exact, bound.strict))


def _same(a: Facts, b: Facts, name: str) -> str | None:
    first, second = getattr(a, name), getattr(b, name)
    if first is not None and second is not None and first != second:
        raise InputError(f"{a.pointer} and {b.pointer} have different {name}s for one string; only one can be followed")
    return first if first is not None else second


def kept(facts: Facts) -> Facts:
    """With an `enum`, only the values that the other keywords allow."""
    if facts.values is None:
        return facts
    return replace(facts, values=tuple(v for v in facts.values if _allowed(facts, v)))


def _allowed(facts: Facts, value: Any) -> bool:
    kind = type_of(value)
    if kind not in facts.types:
        return False
    said = facts.about & ({"integer", "number"} if kind in ("integer", "number") else {kind})
    hard = facts.pattern is not None or facts.format is not None if kind == "string" else kind in ("array", "object")
    if said and hard:
        raise InputError(
            f"{facts.pointer}: enum or const stands beside other keywords for a value of type {kind}; "
            "leave in only the values that are meant, and drop the other keywords"
        )
    if kind in ("integer", "number"):
        number = Fraction(value)
        above = facts.low is None or number > facts.low.exact or (number == facts.low.exact and not facts.low.strict)
        below = (
            facts.high is None or number < facts.high.exact or (number == facts.high.exact and not facts.high.strict)
        )
        return above and below and (not facts.whole or number % facts.step == 0)
    if kind == "string":
        return facts.min_length <= len(value) and (facts.max_length is None or len(value) <= facts.max_length)
    return True
