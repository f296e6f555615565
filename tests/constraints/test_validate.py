"""A finished answer is checked as its schema is read by the constraint."""

import json
import socket

import pytest

from gesso.chat.calls import ToolCall
from gesso.constraints.validate import TOO_DEEP, calls_problem, schema_problem, value_problem

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
        ({"multipleOf": 0.01}, "19.99"),
        ({"multipleOf": 0.1}, "0.3"),
        ({"multipleOf": 0.0001}, "0.0075"),
        ({"type": "string", "pattern": r"^[A-Z]\Z"}, '"A"'),  # a pattern that the package cannot read
        ({"type": "object", "title": 5, "properties": {"a": {"type": "string", "required": True}}}, '{"a": "x"}'),
        ({"const": {"type": "string", "nullable": True}}, '{"type": "string", "nullable": true}'),
        ({"components": {"a": {"type": "string", "nullable": True}}, "$ref": "#/components/a"}, "null"),
        ({"default": {"items": []}, "dependentRequired": {"a": ["b"]}}, '{"a": 1, "b": 2}'),
    ],
)
def test_valid_answers_have_no_problem(schema, text):
    assert schema_problem(schema, text) is None


@pytest.mark.parametrize(
    ("schema", "text", "place", "reason"),
    [
        ({"properties": {"a": {"items": {"type": "integer"}}}}, '{"a": [1, "b"]}', "$.a[1]", 'not of type "integer"'),
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
        ({"multipleOf": 0.01}, "19.995", "$", "multiple"),
        ({"default": {"items": []}, "dependentRequired": {"a": ["b"]}}, '{"a": 1}', "$", "b"),
        ({"properties": {"a b": {"type": "null"}}}, '{"a b": 1}', "$['a b']", "null"),
        ({"pattern": r"^(a|a)*\1$"}, f'"{"a" * 40}b"', "$", "regex"),  # not in exponential time
    ],
)
def test_problem_has_the_place_and_the_reason(schema, text, place, reason):
    problem = schema_problem(schema, text)
    assert problem.startswith(f"{place}: ")
    assert reason in problem
    assert len(problem) < 300


@pytest.mark.parametrize("scheme", ["http://127.0.0.1:{port}/schema", "file://{path}"])
def test_nothing_is_fetched_to_check_an_answer(tmp_path, scheme):
    path = tmp_path / "schema.json"
    path.write_text('{"type": "integer"}')
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        uri = scheme.format(port=server.getsockname()[1], path=path)
        for reference in (uri, f"{uri}#/definitions/a"):
            assert "cannot be checked" in schema_problem({"$ref": reference}, "1")
            # It does not matter where no value can reach it.
            assert schema_problem({"$defs": {"a": {"$ref": reference}}}, "1") is None
        with pytest.raises(BlockingIOError):
            server.accept()


def test_deeply_nested_answers_are_checked_or_refused():
    for depth in (100, 300):
        assert schema_problem(NESTED, "[" * depth + "1" + "]" * depth) is None
        assert schema_problem(NESTED, "[" * depth + "true" + "]" * depth) is not None
    assert "too deeply" in schema_problem(NESTED, "[" * 5000 + "]" * 5000)
    allowed = {"$defs": {"value": _wrapped({"items": {"$ref": "#/$defs/value"}}, 60)}, "$ref": "#/$defs/value"}
    for depth, problem in ((499, None), (600, TOO_DEEP)):
        assert schema_problem(allowed, "[" * depth + "]" * depth) == problem
    assert "too deeply" in value_problem({}, _nested(100_000))


def _wrapped(schema, times):
    for _ in range(times):
        schema = {"allOf": [schema, {"minItems": 0}]}
    return schema


def _nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_calls_are_checked_by_the_parameters_of_their_tool():
    parameters = {"add": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}, "ping": {}}
    good, bad = ToolCall("add", {"n": 1}), ToolCall("add", json.loads('{"n": "1"}'))
    assert calls_problem(parameters, [good, ToolCall("ping", {})], required=True) is None
    assert calls_problem(parameters, [], required=False) is None
    assert "no tool call" in calls_problem(parameters, [], required=True)
    assert calls_problem(parameters, [good, bad], required=False).startswith("tool add, argument $.n: ")
