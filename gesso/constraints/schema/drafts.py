"""The drafts of JSON Schema: the draft of a schema, and the classes of `jsonschema-rs` for each."""

from collections.abc import Mapping
from typing import Any

from gesso.constraints.schema.walk import all_subschemas

NAMES = {"draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020}

_SPOKEN = {3: "4", 2020: "2020-12"}


def draft_of(schema: Any) -> int:
    """Return the draft that `$schema` names; 2020 without one."""
    uri = schema.get("$schema") if isinstance(schema, Mapping) else None
    return (_draft_in(uri, "schema") if isinstance(uri, str) else None) or 2020


def draft_warning(schema: Any) -> str | None:
    """Return a warning about a `$schema` that names no draft we read; None if there is none."""
    uri = schema.get("$schema") if isinstance(schema, Mapping) else None
    if uri is None or (isinstance(uri, str) and _draft_in(uri, "schema") not in (None, 3)):
        return None
    return f"the dialect {uri!r:.120} of $schema is not known; the schema is read as draft {_SPOKEN[draft_of(schema)]}"


def draft_read(schema: Any) -> int:
    """Return the draft by which answers are checked: the one in `$schema`, or an older one if the schema needs it."""
    draft = draft_of(schema)
    lists = False
    for subschema in all_subschemas(schema):
        if any(isinstance(subschema.get(keyword), bool) for keyword in ("exclusiveMinimum", "exclusiveMaximum")):
            return 4
        lists = lists or isinstance(subschema.get("items"), list)
    return 7 if lists and draft == 2020 else draft


def validator_class(draft: int) -> Any:
    """Return the class of the validators of a draft."""
    import jsonschema_rs

    return {
        3: jsonschema_rs.Draft4Validator,
        4: jsonschema_rs.Draft4Validator,
        6: jsonschema_rs.Draft6Validator,
        7: jsonschema_rs.Draft7Validator,
        2019: jsonschema_rs.Draft201909Validator,
        2020: jsonschema_rs.Draft202012Validator,
    }[draft]


def standard_schemas(uri: str) -> dict[str, Any]:
    """Return the schema that describes the schemas of a draft, and those it refers to, by URI; none for other URIs."""
    import jsonschema_rs

    draft = _draft_in(uri, "") if "://json-schema.org/" in uri else None
    numbers = {
        4: jsonschema_rs.Draft4,
        6: jsonschema_rs.Draft6,
        7: jsonschema_rs.Draft7,
        2019: jsonschema_rs.Draft201909,
        2020: jsonschema_rs.Draft202012,
    }
    if draft not in numbers:
        return {}
    try:
        together: dict[str, Any] = jsonschema_rs.bundle({"$ref": uri}, draft=numbers[draft], offline=True)
    except jsonschema_rs.ReferencingError:
        return {}
    return dict(together.get("$defs") or together.get("definitions") or {})


def _draft_in(uri: str, document: str) -> int | None:
    return next((draft for name, draft in NAMES.items() if f"/{name}/{document}" in uri), None)
