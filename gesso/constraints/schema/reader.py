"""JSON schema, draft 2020-12, to facts: references are followed, `allOf` is joined, `anyOf` and `oneOf` become a list.

A keyword that is not known here is refused by name. Ignored are only those that constrain nothing.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from gesso.constraints.limits import Limits
from gesso.constraints.schema.facts import TYPES, Facts, Place, Shape, identity, join, kept, type_of
from gesso.constraints.schema.formats import FORMATS
from gesso.constraints.schema.numbers import DIGITS, LONGEST, Bound
from gesso.errors import InputError

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$id", "$comment", "$defs", "definitions"}
    | {"discriminator"}  # OpenAPI's; it names the property that tells the members of oneOf apart, and adds nothing
)
APPLIED = frozenset({"$ref", "allOf", "anyOf", "oneOf"})

LEVELS = 64
"""Schemas within schemas, references included."""
NEST = 128
"""Lists and objects of a schema within each other."""
BRANCHES = 1000
"""Alternatives at one place, after anyOf and allOf are multiplied out."""


def measure(schema: Any, limits: Limits) -> None:
    """Refuse what is too large, too deep or no JSON, without ever recursing into it."""
    waiting: list[tuple[Any, int]] = [(schema, 0)]
    size = 0
    while waiting:
        value, level = waiting.pop()
        if level > NEST:
            raise InputError(f"the schema nests deeper than {NEST} levels")
        size += _size(value)
        if size > limits.schema_bytes:
            raise InputError(
                f"the schema is larger than {limits.schema_bytes:,} bytes (limits.schema_bytes); "
                "shorten it or raise the limit"
            )
        if isinstance(value, Mapping):
            waiting.extend((inner, level + 1) for pair in value.items() for inner in pair)
            if any(not isinstance(name, str) for name in value):
                raise InputError("the schema has a key that is no string")
        elif isinstance(value, list | tuple):
            waiting.extend((inner, level + 1) for inner in value)


def _size(value: Any) -> int:
    """About the characters a value takes, without what is inside of it."""
    if isinstance(value, str | list | tuple | Mapping):
        return len(value) + 2
    if value is None or isinstance(value, bool):
        return 4
    if isinstance(value, int):
        if value.bit_length() > 13_000:  # Python itself does not write numbers of more than 4,300 digits
            raise InputError("the schema holds a number of about 4,000 digits or more")
        return value.bit_length() // 3 + 1
    if isinstance(value, float) and math.isfinite(value):
        return len(repr(value))
    raise InputError(f"the schema holds {value!r}, which is no JSON value")


class Reader:
    """Reads one schema; `cut` tells whether a recursion was ended on the way."""

    def __init__(self, root: Any, limits: Limits) -> None:
        self.root, self.limits = root, limits
        self.cut = False
        self.visits = 0
        self.facts: dict[Any, tuple[list[Facts], bool]] = {}
        self.joined: dict[Any, tuple[list[Facts], bool]] = {}
        self.reading: set[str] = set()
        self.told_apart: set[str] = set()

    def read(self, places: tuple[Place, ...]) -> list[Facts]:
        """The alternatives of what all these places say at once."""
        name = tuple(place.key for place in places)
        if name not in self.joined:
            before, self.cut = self.cut, False
            found = [Facts()]
            for place in places:
                found = self._both(found, self._place(place), place)
            self.joined[name] = [facts for facts in map(kept, found) if facts.possible], self.cut
            self.cut = before
        found, cut = self.joined[name]
        self.cut = self.cut or cut
        return found

    def _both(self, some: list[Facts], others: list[Facts], place: Place) -> list[Facts]:
        if len(some) * len(others) > BRANCHES:
            raise InputError(f"{place.pointer}: more than {BRANCHES:,} alternatives once everything is multiplied out")
        joined = (join(a, b) if a.about or not a.free else b for a in some for b in others)
        return [facts for facts in joined if facts.possible]

    def _place(self, place: Place) -> list[Facts]:
        if place.key not in self.facts:
            if place.pointer in self.reading:
                raise InputError(f"{place.pointer} refers to itself for the same value, which has no end")
            self.reading.add(place.pointer)
            before, self.cut = self.cut, False
            self.facts[place.key] = self._read(place), self.cut
            self.cut = before
            self.reading.discard(place.pointer)
        found, cut = self.facts[place.key]
        self.cut = self.cut or cut
        return found

    def _read(self, place: Place) -> list[Facts]:
        self.visits += 1
        if self.visits > self.limits.regex_chars // 80:
            raise InputError(f"{place.pointer}: the schema has too many parts, counted with its references followed")
        if place.level > LEVELS:
            raise InputError(f"{place.pointer}: schemas nest deeper than {LEVELS} levels, references included")
        schema = place.schema
        if isinstance(schema, bool):
            return [Facts(place.pointer)] if schema else []
        if not isinstance(schema, Mapping):
            raise InputError(f"{place.pointer} is {_short(schema)}: a schema is an object, true or false")
        found = [self._own(place, schema)]
        if "$ref" in schema:
            target = self._follow(place, schema["$ref"])
            found = self._both(found, self._place(target) if target else [], place)
        for i, member in enumerate(_schemas(place, "allOf")):
            found = self._both(found, self._place(place.child(member, "allOf", i)), place)
        if "anyOf" in schema:
            members = [place.child(member, "anyOf", i) for i, member in enumerate(_schemas(place, "anyOf"))]
            found = self._both(found, [facts for member in members for facts in self._place(member)], place)
        if "oneOf" in schema:
            found = self._one_of(place, found)
        return found

    def _one_of(self, place: Place, found: list[Facts]) -> list[Facts]:
        before, self.cut = self.cut, False
        members = [
            self._both(found, self._place(place.child(member, "oneOf", i)), place)
            for i, member in enumerate(_schemas(place, "oneOf"))
        ]
        members = [[kept(facts) for facts in member] for member in members]
        for i, first in enumerate(members):
            for j, second in enumerate(members[:i]):
                if not all(self.apart(a, b) for a in first for b in second):
                    raise InputError(
                        f"{place.pointer}/oneOf: a value may fit both {j} and {i}, and then fits oneOf no more. Give "
                        "the members different types, or a required property with a const of its own, or use anyOf."
                    )
        # Where recursion ends members are missing; they have been told apart on the way there.
        if not self.cut:
            self.told_apart.add(place.pointer)
        elif place.pointer not in self.told_apart:
            raise InputError(f"{place.pointer}/oneOf: its members cannot be told apart within limits.depth; raise it")
        self.cut = before or self.cut
        return [facts for member in members for facts in member]

    def apart(self, a: Facts, b: Facts, level: int = 0) -> bool:
        """No value fits both; False where that cannot be told."""
        if not a.possible or not b.possible or not a.types & b.types:
            return True
        if a.values is not None and b.values is not None:
            return not {identity(v) for v in a.values} & {identity(v) for v in b.values}
        for some, other in ((a, b), (b, a)):
            if some.values is not None and all(type_of(v) not in other.types for v in some.values):
                return True
        if a.values is not None or b.values is not None:
            return False
        return all(self._type_apart(a, b, kind, level) for kind in a.types & b.types)

    def _type_apart(self, a: Facts, b: Facts, kind: str, level: int) -> bool:
        if kind in ("integer", "number"):
            return _beyond(a.high, b.low) or _beyond(b.high, a.low)
        if kind == "string":
            return _over(a.min_length, b.max_length) or _over(b.min_length, a.max_length)
        if kind == "array":
            return _over(a.min_items, b.max_items) or _over(b.min_items, a.max_items)
        if kind != "object" or level > 3:
            return False
        for name in a.required | b.required:
            first, second = (tuple(p for shape in x.shapes for p in shape.of(name)) for x in (a, b))
            cut, self.cut = self.cut, False
            reading, self.reading = self.reading, set()
            one, two = self.read(first), self.read(second)
            whole, self.cut, self.reading = not self.cut, cut or self.cut, reading
            if whole and all(self.apart(x, y, level + 1) for x in one for y in two):
                return True
        return False

    def _follow(self, place: Place, ref: Any) -> Place | None:
        where = f"{place.pointer}/$ref"
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise InputError(f"{where} is {_short(ref)}: only references within the schema (#/$defs/...) are followed")
        target: Any = self.root
        for step in (unquote(part).replace("~1", "/").replace("~0", "~") for part in ref.split("/")[1:]):
            if isinstance(target, Mapping) and step in target:
                target = target[step]
            elif isinstance(target, list | tuple) and step.isdecimal() and int(step[:9]) < len(target):
                target = target[int(step[:9])]
            else:
                raise InputError(f"{where}: there is no {ref!r} in the schema")
        times = dict(place.entered)
        times[ref] = times.get(ref, 0) + 1
        if times[ref] > self.limits.depth:
            self.cut = True
            return None
        return Place(target, ref, frozenset(times.items()), place.level + 1)

    def _own(self, place: Place, schema: Mapping[str, Any]) -> Facts:
        """What the keywords of this very schema say."""
        fields: dict[str, Any] = {}
        about: set[str] = set()
        for keyword, value in schema.items():
            if keyword in KEYWORDS:
                kind, reader = KEYWORDS[keyword]
                about |= {"integer", "number"} if kind == "number" else {kind} if kind else set()
                for name, fact in reader(place, keyword, value).items():
                    if name in fields:  # enum and const, minimum and exclusiveMinimum
                        fact = getattr(join(Facts(**{name: fields[name]}), Facts(**{name: fact})), name)
                    fields[name] = fact
            elif keyword not in ANNOTATIONS and keyword not in APPLIED:
                raise InputError(f"{place.pointer}/{keyword}: the keyword {keyword!r} is not supported")
            elif keyword == "$id" and place.pointer != "#":
                raise InputError(f"{place.pointer}/$id: a name for a part of the schema moves its references; drop it")
        if "properties" in schema or "additionalProperties" in schema:
            fields["shapes"] = (_shape(place, schema),)
        return Facts(place.pointer, about=frozenset(about), **fields)


Fields = dict[str, Any]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def _bad(place: Place, keyword: str, value: Any, expected: str) -> InputError:
    return InputError(f"{place.pointer}/{keyword} is {_short(value)}: expected {expected}")


def _schemas(place: Place, keyword: str) -> list[Any]:
    members = place.schema.get(keyword, [])
    if keyword in place.schema and (not isinstance(members, list | tuple) or not members):
        raise _bad(place, keyword, members, "a list of at least one schema")
    return list(members)


def _shape(place: Place, schema: Mapping[str, Any]) -> Shape:
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise _bad(place, "properties", properties, "an object of schemas")
    others = schema.get("additionalProperties", True)
    return Shape(
        {name: place.child(inner, "properties", name) for name, inner in properties.items()},
        None if others is True else place.child(others, "additionalProperties"),
    )


def _count(field: str) -> Callable[[Place, str, Any], Fields]:
    def read(place: Place, keyword: str, value: Any) -> Fields:
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
            raise _bad(place, keyword, value, "a whole number that is not negative")
        return {field: int(value)}

    return read


def _bound(field: str, strict: bool) -> Callable[[Place, str, Any], Fields]:
    def read(place: Place, keyword: str, value: Any) -> Fields:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _bad(place, keyword, value, "a number")
        if abs(value) > 10**LONGEST or (bound := Bound.read(value, strict)).digits() > (DIGITS if strict else LONGEST):
            raise _bad(place, keyword, value, f"a bound of at most {DIGITS if strict else LONGEST} digits")
        return {field: bound}

    return read


def _type(place: Place, keyword: str, value: Any) -> Fields:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(n in TYPES for n in names if isinstance(n, str)):
        raise _bad(place, keyword, value, f"one or more of {', '.join(sorted(TYPES))}")
    if not all(isinstance(name, str) for name in names):
        raise _bad(place, keyword, value, "names of types")
    return {"types": frozenset(names) | ({"integer"} if "number" in names else set())}


def _enum(place: Place, keyword: str, value: Any) -> Fields:
    if not isinstance(value, list | tuple) or not value:
        raise _bad(place, keyword, value, "a list of at least one value")
    return {"values": tuple({identity(v): v for v in value}.values())}


def _multiple(place: Place, keyword: str, value: Any) -> Fields:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise _bad(place, keyword, value, "a number above zero")
    if value != int(value):
        raise _bad(place, keyword, value, "a whole number: others cannot be checked reliably in floating point")
    return {"step": int(value), "whole": True}


def _pattern(place: Place, keyword: str, value: Any) -> Fields:
    if not isinstance(value, str):
        raise _bad(place, keyword, value, "a regular expression")
    return {"pattern": value}


def _format(place: Place, keyword: str, value: Any) -> Fields:
    if not isinstance(value, str) or value not in FORMATS:
        raise _bad(place, keyword, value, f"one of {', '.join(FORMATS)}")
    return {"format": value}


def _unique(place: Place, keyword: str, value: Any) -> Fields:
    if not isinstance(value, bool):
        raise _bad(place, keyword, value, "true or false")
    return {"unique": value}


def _prefix(place: Place, keyword: str, value: Any) -> Fields:
    return {"prefix": tuple(place.child(inner, keyword, i) for i, inner in enumerate(_schemas(place, keyword)))}


def _items(place: Place, keyword: str, value: Any) -> Fields:
    if isinstance(value, list | tuple):
        raise _bad(place, keyword, value, "one schema; a list of them is written prefixItems")
    return {"items": (place.child(value, keyword),)}


def _required(place: Place, keyword: str, value: Any) -> Fields:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise _bad(place, keyword, value, "a list of names")
    return {"required": dict.fromkeys(value)}


def _nothing(place: Place, keyword: str, value: Any) -> Fields:
    return {}


KEYWORDS: dict[str, tuple[str, Callable[[Place, str, Any], Fields]]] = {
    "type": ("", _type),
    "enum": ("", _enum),
    "const": ("", lambda place, keyword, value: {"values": (value,)}),
    "minimum": ("number", _bound("low", False)),
    "maximum": ("number", _bound("high", False)),
    "exclusiveMinimum": ("number", _bound("low", True)),
    "exclusiveMaximum": ("number", _bound("high", True)),
    "multipleOf": ("number", _multiple),
    "minLength": ("string", _count("min_length")),
    "maxLength": ("string", _count("max_length")),
    "pattern": ("string", _pattern),
    "format": ("string", _format),
    "prefixItems": ("array", _prefix),
    "items": ("array", _items),
    "minItems": ("array", _count("min_items")),
    "maxItems": ("array", _count("max_items")),
    "uniqueItems": ("array", _unique),
    "properties": ("object", _nothing),  # read together, as a shape
    "additionalProperties": ("object", _nothing),
    "required": ("object", _required),
    "minProperties": ("object", _count("min_properties")),
    "maxProperties": ("object", _count("max_properties")),
}


def _beyond(high: Bound | None, low: Bound | None) -> bool:
    if high is None or low is None:
        return False
    return low.exact > high.exact or (low.exact == high.exact and (low.strict or high.strict))


def _over(low: int, high: int | None) -> bool:
    return high is not None and low > high
