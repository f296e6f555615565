"""Check a finished answer against its JSON schema with the `jsonschema-rs` package.

The automaton of a constraint enforces most of a schema, but not all of it: for example, that the values of an array
differ, or that a key occurs only once. Every answer is therefore checked before it is returned.

A schema is read as the constraint reads it: OpenAPI's `nullable` counts, a pattern that the package cannot read is left
to the constraint, and nothing is ever fetched from another host.

Functions import `jsonschema_rs` when they need it: processes that check no answers save its 15 MB.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from gesso.chat.calls import ToolCall
from gesso.constraints.schema.drafts import draft_read, validator_class
from gesso.constraints.schema.openapi import standard_schema
from gesso.constraints.schema.walk import mapped

CACHED_VALIDATORS = 64  # of the schemas used last
# The package recurses on the stack of the thread. With 60 subschemas of each value, 800 levels fit into 8 MB.
MAX_DEPTH = 500
TOO_DEEP = "$: it is nested too deeply to be checked"
MESSAGE_CHARACTERS = 200
UNREADABLE = "it cannot be checked"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Keywords that never decide whether a value is valid. Some schemas give them values that the standard forbids.
NOTES = ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment")
# Keywords that depend on the names that patterns match.
OTHER_NAMES = ("patternProperties", "additionalProperties", "unevaluatedProperties")


def warm_up() -> None:
    """Import the package now instead of with the first check: in a process that forks, once for all its children."""
    import jsonschema_rs  # noqa: F401


def schema_problem(schema: Mapping[str, Any] | bool, text: str) -> str | None:
    """Return the place and the reason why a text is not valid JSON under a schema; None if it is."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_reject_constant)
    except ValueError as error:
        return f"$: not JSON: {error}"
    except RecursionError:
        return TOO_DEEP
    return value_problem(schema, value)


def value_problem(schema: Mapping[str, Any] | bool, value: Any) -> str | None:
    """Return the place and the reason why a JSON value is not valid under a schema; None if it is."""
    if _is_deep(value):
        return TOO_DEEP
    try:
        validator = _validator(json.dumps(schema))
        if validator.is_valid(value):
            return None
        violation = next(iter(validator.iter_errors(value)))
    except Exception as error:  # of a schema that the package cannot read: the answer must not pass unchecked
        return f"$: {UNREADABLE}: {_short(str(error))}"
    return f"{_path(violation.instance_path)}: {_short(violation.message)}"


def calls_problem(
    parameters: Mapping[str, Mapping[str, Any]], calls: Sequence[ToolCall], *, required: bool
) -> str | None:
    """Return what is wrong with the calls of an answer; None if nothing is. `parameters` are the tools' schemas."""
    if required and not calls:
        return "it has no tool call that can be read"
    for call in calls:
        problem = value_problem({"type": "object", **parameters[call.name]}, call.arguments)
        # A call that the model was free to make is not constrained either if its schema cannot be read.
        if problem and (required or UNREADABLE not in problem):
            return f"tool {call.name}, argument {problem}"
    return None


def _is_deep(value: Any) -> bool:
    """Return whether lists and objects nest beyond the limit. Does not recurse, so any depth is safe."""
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = [inner for inner in level if isinstance(inner, list | dict)]
        if not containers:
            return False
        level = []
        for container in containers:
            level += container.values() if isinstance(container, dict) else container
    return True


def _path(steps: Sequence[str | int]) -> str:
    parts = ["$"]
    for step in steps:
        parts.append(f".{step}" if isinstance(step, str) and NAME.fullmatch(step) else f"[{step!r}]")
    return "".join(parts)


def _short(message: str) -> str:
    first = message.partition("\n")[0]
    return first if len(first) <= MESSAGE_CHARACTERS else f"{first[:MESSAGE_CHARACTERS]}…"


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) < len(members):
        keys = [key for key, _ in members]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} occurs twice in an object")
    return value


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


# --- validators -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=CACHED_VALIDATORS)
def _validator(source: str) -> Any:
    """Return the validator of a schema, given as JSON."""
    import jsonschema_rs

    schema = standard_schema(json.loads(source))
    kind = validator_class(draft_read(schema))
    if isinstance(schema, dict):
        # The class is chosen; a `$schema` that names no draft would have to be fetched.
        schema.pop("$schema", None)
    try:
        return kind(schema, validate_formats=True, retriever=_not_fetched)
    except jsonschema_rs.ValidationError:
        return kind(mapped(schema, _readable), validate_formats=True, retriever=_not_fetched)


def _not_fetched(uri: str) -> Any:
    """Return a schema that cannot be compiled: an error if a value can reach it, and none if it is never used."""
    return {"$ref": f"#/not-fetched/{uri}"}


def _readable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without annotations and without patterns that the package cannot read.

    The constraint enforces these patterns.
    """
    readable = {keyword: value for keyword, value in schema.items() if keyword not in NOTES}
    if isinstance(readable.get("required"), bool):  # draft 3
        del readable["required"]
    pattern = readable.get("pattern")
    if isinstance(pattern, str) and not _is_readable(pattern):
        del readable["pattern"]
    patterns = readable.get("patternProperties")
    if isinstance(patterns, dict) and not all(map(_is_readable, patterns)):
        for keyword in OTHER_NAMES:
            readable.pop(keyword, None)
    return readable


def _is_readable(pattern: str) -> bool:
    import jsonschema_rs

    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern})
    except jsonschema_rs.ValidationError:
        return False
    return True
