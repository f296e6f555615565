"""A finished answer is checked as its schema is read by the constraint."""

import json
import socket

import pytest

from gesso.chat.answer import ToolCall
from gesso.constraints.validate import calls_problem, schema_problem

DRAFT4, DRAFT7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 7))
NESTED = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": 1}'),
        ({"type": "string", "nullable": True}, "null"),
        ({"properties": {"a": {"$ref": "#"}}, "type": "object", "nullable": True}, '{"a": null}'),
        ({"$schema": DRAFT7, "definitions": {"a": {}}, "items": {"$ref": "#/definitions/a", "type": "null"}}, "[1]"),
        ({"minimum": 0, "exclusiveMinimum": True}, "1"),
        ({"items": [{"type": "string"}, {"type": "integer"}]}, '["a", 1]'),
        ({"type": "string", "pattern": r"\p{L}+"}, '"ä"'),
        ({"patternProperties": {r"^\p{L}": {}}, "additionalProperties": False}, '{"a": 1}'),
        ({"format": "someday", "x-mine": 3}, '"never"'),
        (True, "1"),
    ],
)
def test_valid_answers_have_no_problem(schema, text):
    assert schema_problem(schema, text) is None


@pytest.mark.parametrize(
    ("schema", "text", "place", "reason"),
    [
        ({"properties": {"a": {"items": {"type": "integer"}}}}, '{"a": [1, "b"]}', "$.a[1]", "not of type 'integer'"),
        ({"uniqueItems": True}, "[1, 1]", "$", "non-unique"),
        ({"format": "ipv4"}, '"1.2.3.999"', "$", "ipv4"),
        ({"$schema": DRAFT4, "minimum": 0, "exclusiveMinimum": True}, "0", "$", "minimum"),
        ({"items": [{"type": "string"}]}, "[1]", "$[0]", "string"),
        ({"type": "string", "nullable": False}, "null", "$", "string"),
        ({"$schema": DRAFT7, "type": "string", "nullable": True}, "null", "$", "string"),
        ({}, '{"a": 1, "a": 2}', "$", "'a' occurs twice"),
        ({}, "[NaN]", "$", "NaN"),
        ({}, '{"a"', "$", "not JSON"),
        ({"maxLength": 1}, f'"{"x" * 999}"', "$", "…"),
        ({"pattern": 3}, '"x"', "$", "cannot be checked"),
        (False, "1", "$", "False"),
    ],
)
def test_problem_has_the_place_and_the_reason(schema, text, place, reason):
    problem = schema_problem(schema, text)
    assert problem.startswith(f"{place}: ")
    assert reason in problem
    assert len(problem) < 300


def test_nothing_is_fetched_to_check_an_answer(monkeypatch):
    monkeypatch.setattr(socket, "create_connection", None)
    assert "Unresolvable" in schema_problem({"$ref": "http://example.com/schema"}, "1")


def test_deeply_nested_answers_are_checked_or_refused():
    for depth in (100, 300):
        assert schema_problem(NESTED, "[" * depth + "1" + "]" * depth) is None
        assert schema_problem(NESTED, "[" * depth + "true" + "]" * depth) is not None
    assert "too deeply" in schema_problem(NESTED, "[" * 5000 + "]" * 5000)
    assert "too deeply" in schema_problem({"$ref": "#"}, "1")


def test_calls_are_checked_by_the_parameters_of_their_tool():
    parameters = {"add": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}, "ping": {}}
    good, bad = ToolCall("add", {"n": 1}), ToolCall("add", json.loads('{"n": "1"}'))
    assert calls_problem(parameters, [good, ToolCall("ping", {})], required=True) is None
    assert calls_problem(parameters, [], required=False) is None
    assert "no tool call" in calls_problem(parameters, [], required=True)
    assert calls_problem(parameters, [good, bad], required=False).startswith("tool add, argument $.n: ")
