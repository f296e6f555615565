"""Read the assertions of one subschema into facts, in all drafts from 4 to 2020-12."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from gesso.constraints.schema.facts import (
    INTERSECT,
    NUMBERS,
    TYPES,
    Contains,
    Facts,
    Items,
    Properties,
    Subschema,
    identity,
)
from gesso.constraints.schema.numbers import MAX_DIGITS, PRECISION, Bound
from gesso.errors import InputError

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
    | {"$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$defs", "definitions"}
    | {"discriminator"}  # of OpenAPI: names the property that distinguishes the members of oneOf, and adds nothing
)
# Keywords of the specification that neither the constraint nor the check of the answer enforces, with the consequence.
NOT_ENFORCED = {
    "contentEncoding": "the string may be in another encoding",
    "contentMediaType": "the content of the string may be of another type",
    "contentSchema": "the content of the string may have another form",
}
# In the drafts 6 and 7, the check of the answer decides these.
CHECKED_CONTENT = {"contentEncoding": "base64", "contentMediaType": "application/json"}
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
APPLICATORS = frozenset(  # evaluated by `reader`
    {*REFERENCES, "allOf", "anyOf", "oneOf", "not", "if", "then", "else"}
    | {"dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems"}
)


def facts_of_keywords(place: Subschema, ignored: Callable[[str, Subschema], None]) -> Facts:
    """Return the facts in the keywords of a subschema, without applicators. Call `ignored` for unknown keywords."""
    facts: dict[str, Any] = {}
    about: set[str] = set()
    schema = place.schema
    for keyword, value in schema.items():
        if keyword in KEYWORDS:
            if isinstance(value, bool) and keyword in ("exclusiveMinimum", "exclusiveMaximum"):
                continue  # draft 4: read with minimum and maximum
            types, name, read = KEYWORDS[keyword]
            about |= types
            if schema.get(f"exclusive{keyword[0].upper()}{keyword[1:]}") is True:
                read = partial(_bound, strict=True)
            try:
                fact = read(value)
            except ValueError as expected:
                raise unexpected(place, keyword, str(expected)) from None
            # enum and const, minimum and exclusiveMinimum: two keywords, one fact
            facts[name] = INTERSECT[name](facts[name], fact) if name in facts else fact
        elif keyword in ("properties", "additionalProperties", "patternProperties"):
            about.add("object")
            facts["properties"] = (_properties(place),)
        elif keyword in ("items", "prefixItems"):
            about.add("array")
            facts["items"] = (_items(place),)
        elif keyword == "contains":
            about.add("array")
            facts["contains"] = (_contains(place),)
        elif keyword == "propertyNames":
            about.add("object")
            facts["names"] = (place.child(value, keyword),)
        elif keyword not in ANNOTATIONS and keyword not in APPLICATORS and keyword not in _READ_ELSEWHERE:
            ignored(keyword, place)
    return Facts(place.pointer, about=frozenset(about), **facts)


def members(place: Subschema, keyword: str) -> list[Subschema]:
    """Return the subschemas in the list of a keyword; none if the keyword is absent."""
    if keyword not in place.schema:
        return []
    schemas = place.schema[keyword]
    if not isinstance(schemas, list | tuple) or not schemas:
        raise unexpected(place, keyword, "a list of at least one schema")
    return [place.child(member, keyword, i) for i, member in enumerate(schemas)]


def named_members(place: Subschema, keyword: str) -> dict[str, Subschema]:
    """Return the subschemas in the object of a keyword, by name."""
    schemas = place.schema.get(keyword, {})
    if not isinstance(schemas, Mapping):
        raise unexpected(place, keyword, "an object of schemas")
    return {name: place.child(inner, keyword, name) for name, inner in schemas.items()}


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def unexpected(place: Subschema, keyword: str, expected: str) -> InputError:
    return InputError(f"{place.pointer}/{keyword} is {short(place.schema[keyword])}: expected {expected}")


def _properties(place: Subschema) -> Properties:
    others = place.child(place.schema.get("additionalProperties"), "additionalProperties")
    given = "additionalProperties" in place.schema
    patterns = named_members(place, "patternProperties")
    return Properties(
        named_members(place, "properties"),
        tuple(patterns.items()),
        others if given else None,
        open=bool(patterns) or (given and others.schema is not False),
    )


def _items(place: Subschema) -> Items:
    schema = place.schema
    first, more = "prefixItems", "items"
    if isinstance(schema.get("items"), list | tuple):  # before 2020-12
        first, more = "items", "additionalItems"
    return Items(
        prefix=tuple(members(place, first)) if schema.get(first) != [] else (),
        rest=place.child(schema[more], more) if more in schema else None,
    )


def _contains(place: Subschema) -> Contains:
    counts: dict[str, int | None] = {"minContains": 1, "maxContains": None}
    for keyword in counts.keys() & place.schema.keys():
        try:
            counts[keyword] = _integer(place.schema[keyword])
        except ValueError as expected:
            raise unexpected(place, keyword, str(expected)) from None
    return Contains(
        place=place.child(place.schema["contains"], "contains"),
        low=counts["minContains"] or 0,
        high=counts["maxContains"],
    )


# Each function returns the fact that a keyword states, or raises ValueError with the expected value.


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(value: Any, least: int = 0) -> int:
    if not _is_number(value) or value < least or value != int(value):
        raise ValueError(f"an integer of at least {least}")
    return int(value)


def _bound(value: Any, strict: bool) -> Bound | None:
    if not _is_number(value):
        raise ValueError("a number")
    if isinstance(value, float) and abs(value) > 10**MAX_DIGITS:
        return None  # such as the largest number in floating point, which limits nothing
    digits = PRECISION if strict else MAX_DIGITS
    if abs(value) > 10**MAX_DIGITS or Bound.read(value, strict).digits() > digits:
        raise ValueError(f"a number of at most {digits} digits")
    return Bound.read(value, strict)


def _types(value: Any) -> frozenset[str]:
    names = [value] if isinstance(value, str) else value
    are_types = isinstance(names, list | tuple) and all(isinstance(name, str) and name in TYPES for name in names)
    if not are_types or not names:
        raise ValueError(f"one or more of {', '.join(sorted(TYPES))}")
    return frozenset(names) | ({"integer"} if "number" in names else set())


def _enum(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("a list of values")
    return tuple({identity(v): v for v in value}.values())


def _step(value: Any) -> Fraction:
    if not _is_number(value) or value <= 0:
        raise ValueError("a number above 0")
    return Fraction(Decimal(repr(value)))


def _instance(value: Any, kind: type, expected: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(expected)
    return value


def _text(value: Any) -> tuple[str, ...]:
    return (_instance(value, str, "text"),)


def _required(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ()  # draft 3: stated in the property itself
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError("a list of names")
    return tuple(dict.fromkeys(value))


_ALL: frozenset[str] = frozenset()
_STRING = frozenset({"string"})
_ARRAY = frozenset({"array"})
_OBJECT = frozenset({"object"})

# Keyword: the types to which it applies in particular, the name of the fact, and the function that reads it.
KEYWORDS: dict[str, tuple[frozenset[str], str, Callable[[Any], Any]]] = {
    "type": (_ALL, "types", _types),
    "enum": (_ALL, "values", _enum),
    "const": (_ALL, "values", lambda value: (value,)),
    "minimum": (NUMBERS, "low", partial(_bound, strict=False)),
    "maximum": (NUMBERS, "high", partial(_bound, strict=False)),
    "exclusiveMinimum": (NUMBERS, "low", partial(_bound, strict=True)),
    "exclusiveMaximum": (NUMBERS, "high", partial(_bound, strict=True)),
    "multipleOf": (NUMBERS, "step", _step),
    "minLength": (_STRING, "min_length", _integer),
    "maxLength": (_STRING, "max_length", _integer),
    "pattern": (_STRING, "patterns", _text),
    "format": (_STRING, "formats", _text),
    "minItems": (_ARRAY, "min_items", _integer),
    "maxItems": (_ARRAY, "max_items", _integer),
    "uniqueItems": (_ARRAY, "unique", partial(_instance, kind=bool, expected="true or false")),
    "required": (_OBJECT, "required", _required),
    "minProperties": (_OBJECT, "min_properties", _integer),
    "maxProperties": (_OBJECT, "max_properties", _integer),
}
_READ_ELSEWHERE = frozenset({"minContains", "maxContains", "additionalItems"})
