"""References lead to the schema that the specification names."""

import json
from typing import Any

import pytest

from gesso import SchemaOptions
from gesso.constraints.schema.compile import schema_term
from gesso.constraints.validate import value_problem
from tests.constraints.walks import has

DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
NUMBER, TEXT = {"type": "integer"}, {"type": "string"}
# Each schema allows a number where it stands first, and no text.
TARGETS: dict[str, Any] = {
    "$id in an unknown keyword": {
        "$id": "http://x/",
        "$ref": "i",
        "x-y": {"z": {"$id": "i", **TEXT}},
        "$defs": {"i": {"$id": "i", **NUMBER}},
    },
    "$anchor in an unknown keyword": {
        "$ref": "#i",
        "x-y": {"z": {"$anchor": "i", **TEXT}},
        "$defs": {"i": {"$anchor": "i", **NUMBER}},
    },
    "$id in a value": {
        "$id": "http://x/",
        "$ref": "i",
        "examples": [{"$id": "i", **TEXT}],
        "$defs": {"i": {"$id": "i", **NUMBER}},
    },
    "$id on the way through an unknown keyword": {
        "$id": "http://x/",
        "$ref": "#/x-y/z",
        "x-y": {"$id": "http://y/", "z": {"$ref": "i"}},
        "$defs": {"i": {"$id": "i", **NUMBER}, "j": {"$id": "http://y/i", **TEXT}},
    },
    "$id beside $ref": {
        "$id": "http://x/",
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"$id": "d/", "$ref": "e/i", "$defs": {"i": {"$id": "e/i", **NUMBER}}},
            "b": {"$id": "e/i", **TEXT},
        },
    },
    "$id beside $ref, twice": {
        "$id": "http://x/",
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$id": "d/", "allOf": [{"$id": "d/", "$ref": "i", "$defs": {"i": {"$id": "i", **NUMBER}}}]}},
    },
    "$id beside $ref, negated": {
        "$id": "http://x/",
        "not": {"$id": "d/", "not": {"$id": "e/", "$ref": "i"}},
        "$defs": {"i": {"$id": "http://x/d/e/i", **NUMBER}},
    },
}
TREE = {
    "$schema": DRAFT_2019,
    "$id": "http://x/named",
    "$recursiveAnchor": True,
    "$ref": "tree",
    "properties": {"name": TEXT},
    "required": ["name"],
    "$defs": {
        "tree": {
            "$id": "tree",
            "$recursiveAnchor": True,
            "type": "object",
            "properties": {"child": {"$recursiveRef": "#"}},
        }
    },
}
TWO_WAYS = {
    "$schema": DRAFT_2019,
    "$id": "http://x/either",
    "type": "object",
    "properties": {"a": {"$ref": "numbers"}, "b": {"$ref": "texts"}},
    "$defs": {
        "list": {"$id": "list", "$recursiveAnchor": True, "type": ["array", "null"], "items": {"$recursiveRef": "#"}},
        "numbers": {"$id": "numbers", "$recursiveAnchor": True, "anyOf": [NUMBER, {"$ref": "list"}]},
        "texts": {"$id": "texts", "$recursiveAnchor": True, "anyOf": [TEXT, {"$ref": "list"}]},
    },
}


@pytest.mark.parametrize("schema", TARGETS.values(), ids=TARGETS)
def test_a_reference_leads_to_the_schema_with_its_uri(schema):
    found = schema_term(schema, options=SchemaOptions(open=True))
    for value, valid in ((1, True), ("s", False)):
        assert (value_problem(schema, value) is None) == valid
        assert has(found.term, json.dumps(value)) == valid
    assert not found.checked


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        ({"name": "a"}, True),
        ({"name": "a", "child": {"name": "b", "child": {"name": "c"}}}, True),
        ({"name": "a", "child": {}}, False),
        ({"child": {"name": "b"}}, False),
    ],
)
def test_a_recursive_reference_leads_to_the_schema_that_extends_its_own(value, valid):
    found = schema_term(TREE, options=SchemaOptions(any_order=True))
    assert has(found.term, json.dumps(value)) == valid == (value_problem(TREE, value) is None)
    assert not found.checked


def test_no_value_is_refused_where_the_way_to_a_recursive_reference_decides():
    found = schema_term(TWO_WAYS)
    for value in ({"a": [1, [2, None]]}, {"b": ["s", [None]]}, {"a": 1, "b": "s"}):
        assert has(found.term, json.dumps(value)) and value_problem(TWO_WAYS, value) is None
    assert not has(found.term, '{"a": [true]}')
    assert found.checked and value_problem(TWO_WAYS, {"a": ["s"]}) is not None


@pytest.mark.parametrize(
    "uri",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ],
)
def test_a_schema_may_be_any_schema_of_a_draft(uri):
    term = schema_term({"$ref": uri}, options=SchemaOptions(any_order=True)).term
    assert has(term, '{"items": {"minLength": 1}}')
    assert not has(term, '{"items": {"minLength": -1}}')


def test_an_unknown_dialect_is_reported():
    (warning,) = schema_term({"$schema": "http://example.com/mine", "type": "integer"}).warnings
    assert "'http://example.com/mine' of $schema is not known; the schema is read as draft 2020-12" in warning
    assert not schema_term({"$schema": DRAFT_2019, "type": "integer"}).warnings
