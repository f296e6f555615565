"""Find the subschemas of a schema."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# Keywords whose value is a schema, a list of schemas, or an object of schemas by name.
SINGLE = frozenset(
    {"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"}
    | {"propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
)
LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
NAMED = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
VALUES = frozenset({"enum", "const", "default", "example", "examples"})  # whatever they contain is no schema


def subschemas(schema: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the direct subschemas of a schema, each with the steps that lead to it; none of unknown keywords."""
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        if keyword in NAMED and isinstance(value, Mapping):
            yield from (((keyword, name), inner) for name, inner in value.items())
        elif keyword in LISTS and isinstance(value, list | tuple):
            yield from (((keyword, index), inner) for index, inner in enumerate(value))
        elif keyword in SINGLE:
            yield (keyword,), value


def is_subschema(steps: Sequence[str], value: Any) -> bool:
    """Return whether a value is a direct subschema of a schema, at these steps from it."""
    if not isinstance(value, Mapping | bool):
        return False
    return (len(steps) == 1 and steps[0] in SINGLE) or (len(steps) == 2 and steps[0] in NAMED | LISTS)


def all_subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and all its subschemas at any depth, except those that are true or false."""
    waiting = [schema]
    while waiting:
        present = waiting.pop()
        if isinstance(present, Mapping):
            yield present
            waiting += [inner for _, inner in subschemas(present)]


def mapped(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a schema with all its subschemas changed, inner ones first.

    Unknown keywords are changed too: a reference may lead into them, as to `#/components/schemas/name` of OpenAPI.
    """
    if isinstance(schema, list | tuple):
        return [mapped(inner, change) for inner in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in NAMED and isinstance(value, Mapping):
            value = {name: mapped(inner, change) for name, inner in value.items()}
        elif keyword not in VALUES:
            value = mapped(value, change)
        result[keyword] = value
    return change(result)
