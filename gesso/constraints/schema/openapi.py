"""Translate `nullable`, a keyword of OpenAPI 3.0, to JSON Schema."""

from collections.abc import Mapping
from typing import Any

from gesso.constraints.schema.walk import mapped


def standard_schema(schema: Any) -> Any:
    """Return the same schema with null among the types where `nullable` is true.

    Validators of JSON Schema ignore `nullable`, so give them the result. In a schema that names its draft with
    `$schema`, the keyword has no meaning, and the schema is returned as it is.
    """
    if isinstance(schema, Mapping) and "$schema" not in schema and _is_nullable(schema):
        return mapped(schema, _with_null)
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


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types
    if schema.get("nullable") is not True or not isinstance(types, list) or "null" in types:
        return schema
    changed = {**schema, "type": [*types, "null"]}
    del changed["nullable"]
    if isinstance(changed.get("enum"), list) and None not in changed["enum"]:
        changed["enum"] = [*changed["enum"], None]
    return changed
