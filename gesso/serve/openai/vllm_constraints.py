"""Constraints under the names of vLLM, which clients such as outlines send, and their translation to ours."""

import json
from typing import Any

from gesso.serve.errors import ApiError

# The kind of each field, by the names that `structured_outputs` has for them.
GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
KINDS = ("json", "json_object", "regex", "choice", "grammar")


def with_own_constraints(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with the constraints of vLLM under our names. Reject those that have no equivalent."""
    names = [name for name in (*GUIDED, "structured_outputs") if name in body]
    if not names:
        return body
    translated = {name: value for name, value in body.items() if name not in names}
    for name in names:
        if name in GUIDED:
            _add(translated, name, GUIDED[name], body[name])
        elif isinstance(body[name], dict):
            for kind, value in body[name].items():
                _add(translated, f"structured_outputs.{kind[:80]}", kind, value)
        elif body[name] is not None:
            raise ApiError(400, "structured_outputs: expected an object", param=name, code="invalid_type")
    return translated


def _add(body: dict[str, Any], name: str, kind: str, value: Any) -> None:
    """Add a constraint to the body, unless it is off."""
    if value is None or value is False or value in ("", []):
        return
    if kind not in KINDS:
        message = f"{name} is not supported; supported are {', '.join(KINDS)}"
        raise ApiError(400, message, param=name, code="unknown_parameter")
    field = "response_format" if kind in ("json", "json_object") else kind
    if body.get(field) is not None:
        raise ApiError(400, f"{field} and {name} were given; only one constraint is allowed", param=name)
    if kind == "json":
        body[field] = {"type": "json_schema", "json_schema": {"schema": _schema(name, value)}}
    elif kind == "json_object":
        body[field] = {"type": "json_object"}
    else:
        body[field] = value


def _schema(name: str, value: Any) -> Any:
    """Return a JSON schema, which may be given as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ApiError(400, f"{name}: not valid JSON: {error}", param=name, code="invalid_value") from None
