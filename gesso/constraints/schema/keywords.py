"""Read the keywords of one subschema, JSON schema draft 2020-12, into facts.

Unknown keywords are rejected by name. Only keywords that constrain nothing are ignored.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gesso.constraints.schema.facts import INTERSECT, TYPES, Facts, Properties, Subschema, identity
from gesso.constraints.schema.formats import FORMATS
from gesso.constraints.schema.numbers import MAX_DIGITS, PRECISION, Bound
from gesso.errors import InputError

IGNORED = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$id", "$comment", "$defs", "definitions"}
    | {"discriminator"}  # of OpenAPI: names the property that distinguishes the members of oneOf, and adds nothing
)
APPLICATORS = frozenset({"$ref", "allOf", "anyOf", "oneOf"})  # evaluated by `reader`


def own_facts(place: Subschema) -> Facts:
    """Return the facts in the keywords of a subschema, without `$ref`, `allOf`, `anyOf` and `oneOf`."""
    found: dict[str, Any] = {}
    about: set[str] = set()
    for keyword, value in place.schema.items():
        if keyword in KEYWORDS:
            types, name, read = KEYWORDS[keyword]
            about |= types
            try:
                fact = read(value)
            except ValueError as expected:
                raise _unexpected(place, keyword, str(expected)) from None
            # enum and const, minimum and exclusiveMinimum: two keywords, one fact
            found[name] = INTERSECT[name](found[name], fact) if name in found else fact
        elif keyword in ("properties", "additionalProperties"):
            about.add("object")
            found["properties"] = (_properties(place),)
        elif keyword == "prefixItems":
            about.add("array")
            found["prefix"] = tuple(members(place, keyword))
        elif keyword == "items":
            if isinstance(value, list | tuple):
                raise _unexpected(place, keyword, "one schema; write a list of schemas as prefixItems")
            about.add("array")
            found["items"] = (place.child(value, keyword),)
        elif keyword not in IGNORED and keyword not in APPLICATORS:
            raise InputError(f"{place.pointer}/{keyword}: the keyword {keyword!r} is not supported")
        elif keyword == "$id" and place.pointer != "#":
            raise InputError(f"{place.pointer}/$id: $id inside a schema changes the meaning of references; remove it")
    return Facts(place.pointer, about=frozenset(about), **found)


def members(place: Subschema, keyword: str) -> list[Subschema]:
    """Return the subschemas in the list of a keyword; none if the keyword is absent."""
    if keyword not in place.schema:
        return []
    found = place.schema[keyword]
    if not isinstance(found, list | tuple) or not found:
        raise _unexpected(place, keyword, "a list of at least one schema")
    return [place.child(member, keyword, i) for i, member in enumerate(found)]


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def _unexpected(place: Subschema, keyword: str, expected: str) -> InputError:
    return InputError(f"{place.pointer}/{keyword} is {short(place.schema[keyword])}: expected {expected}")


def _properties(place: Subschema) -> Properties:
    named = place.schema.get("properties", {})
    if not isinstance(named, Mapping):
        raise _unexpected(place, "properties", "an object of schemas")
    others = place.schema.get("additionalProperties", True)
    return Properties(
        {name: place.child(inner, "properties", name) for name, inner in named.items()},
        None if others is True else place.child(others, "additionalProperties"),
    )


# Each function returns the fact that a keyword states, or raises ValueError with the expected value.


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(value: Any, least: int = 0) -> int:
    if not _is_number(value) or value < least or value != int(value):
        raise ValueError(f"an integer of at least {least}")
    return int(value)


def _bound(value: Any, strict: bool) -> Bound:
    digits = PRECISION if strict else MAX_DIGITS
    if not _is_number(value) or abs(value) > 10**MAX_DIGITS or Bound.read(value, strict).digits() > digits:
        raise ValueError(f"a number of at most {digits} digits")
    return Bound.read(value, strict)


def _types(value: Any) -> frozenset[str]:
    names = [value] if isinstance(value, str) else value
    known = isinstance(names, list | tuple) and all(isinstance(name, str) and name in TYPES for name in names)
    if not known or not names:
        raise ValueError(f"one or more of {', '.join(sorted(TYPES))}")
    return frozenset(names) | ({"integer"} if "number" in names else set())


def _enum(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("a list of at least one value")
    return tuple({identity(v): v for v in value}.values())


def _instance(value: Any, kind: type, expected: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(expected)
    return value


def _format(value: Any) -> str:
    if not isinstance(value, str) or value not in FORMATS:
        raise ValueError(f"one of {', '.join(FORMATS)}")
    return value


def _required(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError("a list of names")
    return tuple(dict.fromkeys(value))


_ALL: frozenset[str] = frozenset()
_NUMBER, _STRING = frozenset({"integer", "number"}), frozenset({"string"})
_ARRAY, _OBJECT = frozenset({"array"}), frozenset({"object"})

# Keyword: the types to which it applies in particular, the name of the fact, and the function that reads it.
KEYWORDS: dict[str, tuple[frozenset[str], str, Callable[[Any], Any]]] = {
    "type": (_ALL, "types", _types),
    "enum": (_ALL, "values", _enum),
    "const": (_ALL, "values", lambda value: (value,)),
    "minimum": (_NUMBER, "low", partial(_bound, strict=False)),
    "maximum": (_NUMBER, "high", partial(_bound, strict=False)),
    "exclusiveMinimum": (_NUMBER, "low", partial(_bound, strict=True)),
    "exclusiveMaximum": (_NUMBER, "high", partial(_bound, strict=True)),
    "multipleOf": (_NUMBER, "step", partial(_integer, least=1)),  # floating point cannot check fractions reliably
    "minLength": (_STRING, "min_length", _integer),
    "maxLength": (_STRING, "max_length", _integer),
    "pattern": (_STRING, "pattern", partial(_instance, kind=str, expected="a regular expression")),
    "format": (_STRING, "format", _format),
    "minItems": (_ARRAY, "min_items", _integer),
    "maxItems": (_ARRAY, "max_items", _integer),
    "uniqueItems": (_ARRAY, "unique", partial(_instance, kind=bool, expected="true or false")),
    "required": (_OBJECT, "required", _required),
    "minProperties": (_OBJECT, "min_properties", _integer),
    "maxProperties": (_OBJECT, "max_properties", _integer),
}
