"""With `any_order`, objects have all the orders of their members, and as many members as the schema demands."""

import json
from itertools import permutations

import pytest

from gesso import SchemaOptions
from gesso.constraints.schema.compile import schema_term
from gesso.constraints.validate import value_problem
from tests.constraints.walks import has

ONE = {"type": "integer"}
SCHEMAS = [
    {"type": "object", "minProperties": 1},
    {"type": "object", "minProperties": 1, "additionalProperties": ONE},
    {"type": "object", "minProperties": 2},
    {"type": "object", "maxProperties": 2},
    {"type": "object", "properties": {"a": ONE}, "minProperties": 2},
    {"type": "object", "properties": {"a": ONE, "b": ONE}, "maxProperties": 1},
    {"type": "object", "properties": {"a": ONE, "b": ONE}, "required": ["b"], "minProperties": 2, "maxProperties": 3},
    {"type": "object", "properties": {"a": ONE, "b": ONE, "c": ONE}, "additionalProperties": False, "minProperties": 2},
    {"type": "object", "patternProperties": {"^[ab]$": ONE}, "additionalProperties": False, "minProperties": 1},
    {"const": {"a": 1, "b": 1}},
    {"enum": [{"a": 1}, {"b": 1, "c": 1}]},
]
OBJECTS = [dict.fromkeys(names, 1) for size in range(4) for names in permutations("abcd", size)]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_all_orders_of_valid_members_are_accepted(schema):
    term = schema_term(schema, options=SchemaOptions(any_order=True, open=True)).term
    for value in OBJECTS:
        assert has(term, json.dumps(value)) == (value_problem(schema, value) is None), value


def test_an_optional_map_with_any_member_can_be_written():
    labels = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}
    schema = {"type": "object", "properties": {"labels": labels}}
    term = schema_term(schema, options=SchemaOptions(any_order=True)).term
    assert has(term, '{"labels": {"a": "b", "c": "d"}}') and not has(term, '{"labels": {}}')


def test_an_object_is_open_if_its_named_members_are_too_few():
    schema = {"type": "object", "properties": {"a": ONE}, "minProperties": 2}
    term = schema_term(schema).term
    assert has(term, '{"a": 1, "b": true}') and not has(term, '{"a": 1}')
    assert has(schema_term(schema, options=SchemaOptions(any_order=True)).term, '{"b": true, "a": 1}')


def test_ten_members_of_which_three_are_written_have_any_order():
    """The largest term that is built: 1,024 sets of names, each with zero to three members."""
    names = "abcdefghij"
    schema = {"type": "object", "properties": dict.fromkeys(names, ONE), "additionalProperties": ONE}
    term = schema_term({**schema, "maxProperties": 3}, options=SchemaOptions(any_order=True)).term
    assert has(term, '{"j": 1, "e": 1, "a": 1}') and not has(term, '{"a": 1, "b": 1, "c": 1, "d": 1}')
    more = schema_term({**schema, "maxProperties": 4}, options=SchemaOptions(any_order=True)).term
    assert has(more, '{"a": 1, "e": 1}') and not has(more, '{"e": 1, "a": 1}')
