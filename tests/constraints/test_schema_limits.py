"""Schemas that are refused, and the work until then."""

from typing import Any

import pytest

from gesso.constraints.schema.compile import schema_term
from gesso.errors import InputError
from tests.waiting import bounded


@pytest.mark.parametrize(("schema", "place"), [
    ({"type": "strin"}, "#/type is 'strin'"),
    ({"properties": {"a/b": {"items": {"minItems": "1"}}}}, "#/properties/a~1b/items/minItems is '1'"),
    ({"anyOf": []}, "#/anyOf is .*at least one"),
    ({"type": "integer", "multipleOf": 0}, "#/multipleOf is 0"),
    ({"type": "string", "minLength": -1}, "#/minLength is -1"),
    ({"type": "number", "minimum": 1e-41}, "#/minimum is 1e-41: expected a number of at most 40 digits"),
    ({"type": "string", "pattern": "(a)\\1"}, "#/pattern"),
    ({"$ref": "https://example.org/schema"}, r"#/\$ref: 'https://example.org/schema' is not in the schema"),
    ({"$ref": "#/$defs/none"}, r"#/\$ref: there is no"),
    ({"$ref": "#none"}, r"#/\$ref: there is no anchor"),
    ({"dependentRequired": {"a": [1]}}, "#/dependentRequired"),
    ({"const": "\ud800"}, "surrogate"),
    ({"const": float("nan")}, "nan"),
    ([1], "a schema is an object"),
])  # fmt: skip
def test_wrong_schema_is_rejected_with_its_pointer(schema: Any, place: str) -> None:
    with pytest.raises(InputError, match=place):
        schema_term(schema)


@pytest.mark.parametrize("schema", [
    False,
    {"type": "integer", "minimum": 3, "maximum": 2},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "string", "pattern": "^a+$", "allOf": [{"pattern": "b"}]},
    {"allOf": [{"type": "string"}, {"type": "null"}]},
    {"enum": ["a", 1], "type": "null"},
    {"not": {}},
    {"oneOf": [{"type": "integer"}, {"type": "integer"}]},
    {"properties": {"a": False}, "required": ["a"]},
    {"required": ["a"], "additionalProperties": False},
    {"required": ["a"], "propertyNames": {"maxLength": 0}},
    {"type": "array", "items": False, "minItems": 1},
    {"type": "integer", "multipleOf": 7, "minimum": 8, "maximum": 13},
])  # fmt: skip
def test_contradictory_schema_is_rejected(schema: Any) -> None:
    with pytest.raises(InputError, match="contradicts itself"):
        schema_term(schema)


@pytest.mark.parametrize("schema", [
    {"$ref": "#"},
    {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
])  # fmt: skip
def test_endless_recursion_in_schema_is_rejected(schema: Any) -> None:
    with pytest.raises(InputError, match="has no end"):
        schema_term(schema)


def nested(depth: int) -> Any:
    schema: Any = True
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def chained(length: int, link: Any, end: Any) -> Any:
    return {
        "$defs": {f"d{i}": link(f"#/$defs/d{i + 1}") for i in range(length)} | {f"d{length}": end},
        "$ref": "#/$defs/d0",
    }


def both(ref: str) -> Any:
    return {"prefixItems": [{"$ref": ref}, {"$ref": ref}], "minItems": 2}


CROWD = {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(12)}
REFUSED = {
    "10 MB of values": {"enum": [str(i) for i in range(1_400_000)]},
    "10 MB of text": {"const": "x" * 10_000_000},
    "10,000 levels": nested(10_000),
    "a chain of references": chained(9_999, lambda ref: {"$ref": ref}, True),
    "a bomb of references": chained(80, both, {"type": "string"}),
    "many items needed": {"type": "array", "minItems": 10**19},
    "a bomb that never goes off": chained(30, both, False),
    "a number of many digits": {"type": "string", "maxLength": 10**5000},
    "many properties": {"properties": {f"k{i}": {"type": "string"} for i in range(20_000)}, "required": ["k0"]},
    "a pattern of groups": {"type": "string", "pattern": "(" * 50_000},
    "a long pattern": {"type": "string", "pattern": "a" * 500_000},
}  # fmt: skip
COMPILED = {
    "everything refers to everything": {
        "$defs": {f"d{i}": {"type": "object", "properties": CROWD} for i in range(12)}, "$ref": "#/$defs/d0"
    },
    "many items": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9},
    "many within many": {"maxItems": 999, "items": {"maxItems": 999, "items": {"maxItems": 999}}},
    "long strings": {"type": "string", "maxLength": 10**9},
    "a pattern of many": {"type": "string", "pattern": "^((a{1000}){1000}){1000}$"},
    "many products": {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": 99}]} for i in range(40)]},
    "many conditions": {"allOf": [{"if": {"required": [f"k{i}"]}, "then": {"required": ["x"]}} for i in range(40)]},
    "a long oneOf": {"oneOf": [{"properties": {f"k{i}": {"const": i}}} for i in range(300)]},
    "deep negations": {"not": {"not": {"not": {"not": {"not": {"not": {"type": "string"}}}}}}},
    "patterns of names": {"patternProperties": {f"^.*{i}.*{i + 1}": {"type": "null"} for i in range(8)}},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_schema_is_rejected_after_limited_work(name: str) -> None:
    with bounded(), pytest.raises(InputError):
        schema_term(REFUSED[name])


@pytest.mark.parametrize("name", COMPILED)
def test_counts_and_combinations_compile_with_limited_work(name: str) -> None:
    with bounded():
        schema_term(COMPILED[name])
