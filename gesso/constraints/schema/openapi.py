"""Translate `nullable`, a keyword of OpenAPI 3.0, to JSON Schema."""

from collections.abc import Mapping
from typing import Any


def standard_schema(schema: Any) -> Any:
    """Return the same schema with null among the types where `nullable` is true.

    Validators of JSON Schema ignore `nullable`, so give them the result. In a schema that names its draft with
    `$schema`, the keyword has no meaning, and the schema is returned as it is.
    """
    if isinstance(schema, Mapping) and "$schema" not in schema and _is_nullable(schema):
        return _translated(schema)
    return schema


def _is_nullable(schema: Any) -> bool:
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if value.get("nullable") is True:
                return True
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    return False


def _translated(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_translated(inner) for inner in value]
    if not isinstance(value, Mapping):
        return value
    found = {name: _translated(inner) for name, inner in value.items()}
    types = value.get("type")
    types = [types] if isinstance(types, str) else types
    if value.get("nullable") is True and isinstance(types, list) and "null" not in types:
        del found["nullable"]
        found["type"] = [*types, "null"]
        if isinstance(found.get("enum"), list) and None not in found["enum"]:
            found["enum"] = [*found["enum"], None]
    return found
