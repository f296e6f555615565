"""Schemas of request bodies in /openapi.json. Handlers take raw bytes, so FastAPI cannot derive them."""

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from gesso.serve.fields import Fields

SCHEMAS = "#/components/schemas/"
_documented: list[type[Fields]] = []


def document(fields: type[Fields]) -> dict[str, Any]:
    """Return the `openapi_extra` of a route whose body has these fields."""
    if fields not in _documented:
        _documented.append(fields)
    content = {"application/json": {"schema": {"$ref": SCHEMAS + fields.__name__}}}
    return {"requestBody": {"required": True, "content": content}}


def install_schemas(app: FastAPI) -> None:
    """Add the schemas of all documented bodies to the app's OpenAPI description."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = describe()
            _, schemas = models_json_schema(
                [(fields, "validation") for fields in _documented], ref_template=SCHEMAS + "{model}"
            )
            description.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
