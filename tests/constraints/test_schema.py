"""JSON schema to regular expression: matching texts are valid, and usual notation matches."""

import datetime
import ipaddress
import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gesso.constraints.limits import Limits
from gesso.constraints.schema.compile import schema_regex
from gesso.errors import InputError
from tests.automata import Texts
from tests.schemas import FORMATS, mixtures, schemas, value_of
from tests.waiting import bounded

property_test = settings(derandomize=True, database=None, deadline=None, max_examples=80)


def valid(value: Any, schema: Any) -> bool:
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).is_valid(value)


def texts(schema: Any, **limits: int) -> Texts:
    return Texts(schema_regex(schema, limits=Limits(**limits)))


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check_samples(schema: Any, count: int = 40, length: int = 60) -> Texts:
    found = texts(schema)
    rng = random.Random(0)
    for text in {found.sample(rng, length) for _ in range(count)}:
        assert valid(json.loads(text), schema), text
    return found


@property_test
@given(schemas())
def test_every_matching_text_is_valid(schema: Any) -> None:
    check_samples(schema)


@property_test
@given(schemas(), st.randoms(use_true_random=False))
def test_valid_values_in_usual_notation_match(schema: Any, rng: random.Random) -> None:
    found = texts(schema)
    for _ in range(10):
        value = value_of(schema, rng)
        assert valid(value, schema)
        assert found.has(compact(value)) and found.has(json.dumps(value, ensure_ascii=False))


@property_test
@given(mixtures())
def test_random_keywords_are_rejected_or_enforced(schema: Any) -> None:
    try:
        expression = schema_regex(schema)
    except InputError:
        return
    if len(expression) < 10_000:  # larger automata take too long to build
        check_samples(schema, 20)


SCHEMAS = {
    "anything": {},
    "an object": {"type": "object"},
    "an array": {"type": "array", "minItems": 1},
    "no type": {"properties": {"a": {"minLength": 2}}, "required": ["b"]},
    "a map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
    "all optional": {"type": "object", "properties": {name: {"type": "null"} for name in "abcdef"}},
    "all optional, some": {"properties": {name: {"type": "null"} for name in "abcdef"}, "minProperties": 1},
    "many optional": {"properties": {f"k{i}": {"const": i} for i in range(40)}},
    "an array of a few": {"prefixItems": [{"type": "null"}, {"type": "boolean"}], "minItems": 3, "maxItems": 4},
    "exactly one": {"type": ["integer", "null"], "minimum": 7, "maximum": 7},
    "half open": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "within an integer": {"type": "number", "minimum": 0.125, "exclusiveMaximum": 0.75},
    "negative": {"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": -1},
    "large": {"type": "number", "minimum": 10**20, "maximum": 1e23},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": -20, "exclusiveMaximum": 49},
    "whole": {"type": "number", "multipleOf": 1, "minimum": 3},
    "values kept": {"enum": [1, 2.5, "a", "abc", None, True, [1], 9], "type": ["number", "string"], "maximum": 3},
    "one value twice": {"enum": [1, 1.0, True], "const": 1},
    "joined": {"allOf": [{"minimum": 3}, {"maximum": 9, "type": "number"}, {"type": ["integer", "string"]}]},
    "joined objects": {
        "allOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"a": {"minimum": 5}, "b": {}}, "additionalProperties": False},
        ]
    },
    "alternatives beside": {
        "type": "object",
        "properties": {"a": {}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "types apart": {"oneOf": [{"type": "integer"}, {"type": "string"}, {"type": "array", "items": {"type": "null"}}]},
    "numbers apart": {"type": "integer", "oneOf": [{"maximum": 3}, {"minimum": 4, "maximum": 10}]},
    "in itself": {"type": "object", "properties": {"in": {"$ref": "#"}, "at": {"items": {"$ref": "#"}}}},
    "in pairs": {
        "$defs": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/b"}},
            "b": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]},
        },
        "$ref": "#/$defs/a",
    },
    "annotated": {"title": "t", "description": "d", "default": 1, "examples": [2], "$comment": "c", "type": "null"},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_samples_of_edge_case_schemas_are_valid(name: str) -> None:
    check_samples(SCHEMAS[name], 150)


@pytest.mark.parametrize(("schema", "inside", "outside"), [
    ({"type": "integer"}, ["0", "-12", "7"], ["01", "+1", "1.0", "", "--1"]),
    ({"type": "integer", "minimum": 98, "maximum": 1203}, ["98", "1203", "999", "1000"], ["97", "1204", "0100"]),
    ({"type": "integer", "exclusiveMinimum": 2.5}, ["3", "1000"], ["2", "-3"]),
    ({"type": "number"}, ["1.5e3", "-0.25", "2E-7", "1" * 400], ["1.", ".5", "1e999", "00", "1" * 400 + ".5"]),
    ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, ["0", "0.99"], ["1", "1.0", "0." + "9" * 20, "-0.5"]),
    ({"type": "number", "exclusiveMinimum": 0}, ["0.001", "7.25", "1000"], ["0", "0.0", "0." + "0" * 400 + "1"]),
    ({"type": "string"}, ['"a\\"b"', '"\\u00e9"', '"é🙂"', '"\\ud7ff"'], ['"\n"', '"\\x"', '"\\ud800"', '"a']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"🙂é"', '"\\n\\"a"'], ['"a"', '"abcd"']),
    ({"properties": {"a": {}, "b": {}}}, ['{"a": 1, "b":[2]}', '{"b":null}', "{}"], ['{"b":1,"a":2}', '{"a":1,}']),
    ({"items": {"type": "null"}, "maxItems": 2}, ["[]", "[null, null]"], ["[null,null,null]", "[null ]", "[ ]"]),
    ({"uniqueItems": True, "items": {"enum": [1, 2, 3]}}, ["[3,1]", "[]", "[2,3,1]"], ["[1,1]", "[1,2,1]"]),
    ({"const": {"a": [1, "x"]}}, ['{"a":[1, "x"]}', '{"a": [1,"x"]}'], ['{"a":[1,"y"]}']),
    ({"type": "string", "pattern": "^a+$", "minLength": 2, "maxLength": 4}, ['"aa"', '"aaaa"'], ['"a"', '"aaaaa"']),
    ({"type": "string", "pattern": "b"}, ['"abc"', '"b"', '"\\nb"'], ['"ac"', '"\nb"']),
])  # fmt: skip
def test_schema_accepts_and_rejects_at_its_limits(schema: Any, inside: list[str], outside: list[str]) -> None:
    found = texts(schema)
    assert [text for text in inside if not found.has(text)] == []
    assert [text for text in outside if found.has(text)] == []


bounds = st.one_of(st.integers(-3000, 3000), st.decimals(-50, 50, places=2).map(float), st.integers(-40, 40))


@property_test
@given(bounds, bounds, st.booleans(), st.booleans())
def test_numbers_are_limited_exactly_at_their_bounds(a: float, b: float, low: bool, high: bool) -> None:
    a, b = min(a, b), round(max(a, b) + 2, 2)
    low_key, high_key = ("exclusiveMinimum" if low else "minimum"), ("exclusiveMaximum" if high else "maximum")
    found = {kind: re.compile(schema_regex({"type": kind, low_key: a, high_key: b})) for kind in ("integer", "number")}
    steps = [round(a + (b - a) * i / 37, 6) for i in range(-9, 46)]
    near = [round(bound + n / 1000, 6) for bound in (a, b) for n in (-1000, -999, -101, -100, -10, -1, 1, 10, 70, 1000)]
    for number in [a, b, *steps, *near, *map(int, steps), *range(int(a) - 2, int(a) + 4)]:
        inside = (a < number if low else a <= number) and (number < b if high else number <= b)
        text = repr(number)
        if "e" not in text and text != "-0.0":
            assert bool(found["number"].fullmatch(text)) == inside, text
            assert bool(found["integer"].fullmatch(text)) == (inside and isinstance(number, int)), text


@pytest.mark.parametrize("bound", [0, 1, -1, 0.5, 0.1, 123.456, -7.25])
@pytest.mark.parametrize("keyword", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
def test_no_digits_round_across_a_bound(bound: float, keyword: str) -> None:
    schema = {"type": "number", keyword: bound}
    expression = re.compile(schema_regex(schema))
    point = str(bound) if "." in str(bound) else f"{bound}.0"
    for zeros in range(0, 400, 3):
        near = (point + "0" * zeros + "1", point[:-1] + "9" * zeros, f"{int(bound) - 1}." + "9" * zeros, f"-{point}1")
        for text in near:
            if expression.fullmatch(text):
                assert valid(json.loads(text), schema), text


def strict_checks(name: str, text: str) -> bool:
    """Check formats for which jsonschema needs further packages."""
    label = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
    if name in ("time", "date-time"):
        moment = datetime.datetime.fromisoformat(text if name == "date-time" else f"2000-01-01T{text}")
        return moment.tzinfo is not None
    if name in ("email", "hostname"):
        local, _, host = text.rpartition("@")
        return len(local) <= 64 and len(host) <= 253 and all(label.fullmatch(part) for part in host.split("."))
    if name == "uri":
        return re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+", text) is not None
    if name == "ipv6":
        return bool(ipaddress.IPv6Address(text))
    return True


@pytest.mark.parametrize("name", FORMATS)
def test_formats_pass_strict_validators_and_accept_real_examples(name: str) -> None:
    schema = {"type": "string", "format": name}
    found = check_samples(schema, 500)
    rng = random.Random(1)
    assert all(strict_checks(name, json.loads(found.sample(rng, 200))) for _ in range(300))
    assert all(found.has(json.dumps(text)) for text in FORMATS[name])


def test_only_leap_years_have_february_29() -> None:
    expression = re.compile(schema_regex({"type": "string", "format": "date"}))
    day, end = datetime.date(1895, 1, 1), datetime.date(2009, 1, 1)
    days = set()
    while day < end:
        days.add(day.isoformat())
        day += datetime.timedelta(days=1)
    for year in range(1895, 2009):
        for month in range(14):
            for number in range(33):
                text = f"{year}-{month:02}-{number:02}"
                assert bool(expression.fullmatch(f'"{text}"')) == (text in days)
    assert not expression.fullmatch('"0000-01-01"')


@pytest.mark.parametrize(("schema", "place"), [
    ({"not": {}}, "#/not: .*'not'"),
    ({"properties": {"a/b": {"items": {"contains": {}}}}}, "#/properties/a~1b/items/contains: .*'contains'"),
    ({"anyOf": [{}, {"if": {}}]}, "#/anyOf/1/if"),
    ({"$defs": {"d": {"patternProperties": {}}}, "$ref": "#/$defs/d"}, r"#/\$defs/d/patternProperties"),
    ({"type": "object", "propertyNames": {}}, "propertyNames"),
    ({"type": "object", "nullable": True}, "nullable"),
    ({"type": "string", "format": "iri"}, "#/format is 'iri'"),
    ({"type": "strin"}, "#/type is 'strin'"),
    ({"type": "integer", "multipleOf": 3}, "#/multipleOf"),
    ({"type": "number", "multipleOf": 0.01}, "#/multipleOf is 0.01"),
    ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
    ({"type": "array", "items": [{}]}, "#/items.*prefixItems"),
    ({"type": "object", "minProperties": 2}, "#/minProperties"),
    ({"properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 2}, "maxProperties"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "#/oneOf: a value may match both members 0 and 1"),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "#/oneOf"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "pattern"),
    ({"enum": ["a"], "pattern": "a"}, "enum or const"),
    ({"type": "string", "pattern": "^(?=a)b"}, "#/pattern.*look-around"),
    ({"type": "string", "pattern": "(a)\\1"}, "#/pattern.*back-references"),
    ({"type": "string", "pattern": "a^"}, "#/pattern"),
    ({"type": "string", "pattern": "^a*b*$", "maxLength": 3}, "#/pattern.*maxLength"),
    ({"type": "string", "format": "email", "maxLength": 20}, "maxLength"),
    ({"$ref": "https://example.org/schema"}, r"#/\$ref is .*within the schema"),
    ({"$ref": "#/$defs/none"}, r"#/\$ref: there is no"),
    ({"properties": {"a": {"$id": "x"}}}, r"#/properties/a/\$id"),
    ({"type": "string", "minLength": -1}, "#/minLength is -1"),
    ({"const": "\ud800"}, "surrogate"),
    ({"const": float("nan")}, "nan"),
    ([1], "a schema is an object"),
])  # fmt: skip
def test_unsupported_keywords_are_rejected_with_their_pointer(schema: Any, place: str) -> None:
    with pytest.raises(InputError, match=place):
        schema_regex(schema)


@pytest.mark.parametrize("schema", [
    False,
    {"type": "integer", "minimum": 3, "maximum": 2},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"allOf": [{"type": "string"}, {"type": "null"}]},
    {"enum": ["a", 1], "type": "null"},
    {"properties": {"a": False}, "required": ["a"]},
    {"required": ["a"], "additionalProperties": False},
    {"type": "array", "items": False, "minItems": 1},
])  # fmt: skip
def test_contradictory_schema_is_rejected(schema: Any) -> None:
    with pytest.raises(InputError, match="contradicts itself"):
        schema_regex(schema)


@pytest.mark.parametrize("schema", [
    {"$ref": "#"},
    {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
])  # fmt: skip
def test_endless_recursion_in_schema_is_rejected(schema: Any) -> None:
    with pytest.raises(InputError, match="has no end"):
        schema_regex(schema)


def test_recursion_is_unrolled_to_depth_limit() -> None:
    schema = {"type": "object", "properties": {"in": {"$ref": "#"}}}
    for depth in (1, 2, 5):
        found = texts(schema, depth=depth)
        assert found.has('{"in":' * (depth - 1) + "{}" + "}" * (depth - 1))
        assert not found.has('{"in":' * depth + "{}" + "}" * depth)


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
HOSTILE = {
    "10 MB of values": {"enum": [str(i) for i in range(1_400_000)]},
    "10 MB of text": {"const": "x" * 10_000_000},
    "10,000 levels": nested(10_000),
    "a chain of references": chained(9_999, lambda ref: {"$ref": ref}, True),
    "a bomb of references": chained(30, both, {"type": "string"}),
    "a bomb that never goes off": chained(30, both, False),
    "everything refers to everything": {
        "$defs": {f"d{i}": {"type": "object", "properties": CROWD} for i in range(12)}, "$ref": "#/$defs/d0"
    },
    "many items": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9},
    "many items needed": {"type": "array", "minItems": 10**9},
    "many within many": {"maxItems": 999, "items": {"maxItems": 999, "items": {"maxItems": 999}}},
    "long strings": {"type": "string", "maxLength": 10**9},
    "a number of many digits": {"type": "string", "maxLength": 10**5000},
    "many products": {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": 99}]} for i in range(40)]},
    "many properties": {"properties": {f"k{i}": {"type": "string"} for i in range(20_000)}, "required": ["k0"]},
    "a pattern of many": {"type": "string", "pattern": "^((a{1000}){1000}){1000}$"},
    "a pattern of groups": {"type": "string", "pattern": "(" * 50_000},
    "a long pattern": {"type": "string", "pattern": "a" * 500_000},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_large_schema_is_rejected_after_limited_work(name: str) -> None:
    with bounded(), pytest.raises(InputError):
        schema_regex(HOSTILE[name])


def fifty(required: int) -> Any:
    kinds = [
        {"type": "string"}, {"type": "integer", "minimum": 0, "maximum": 1000}, {"type": "number"}, {"type": "boolean"},
        {"enum": ["small", "medium", "large"]}, {"type": "string", "format": "date"}, {"type": ["string", "null"]},
        {"type": "array", "items": {"type": "string"}}, {"type": "string", "maxLength": 8},
        {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"]},
    ]  # fmt: skip
    properties = {f"field_{i}": kinds[i % len(kinds)] for i in range(50)}
    return {"type": "object", "properties": properties, "required": list(properties)[:required]}


@pytest.mark.parametrize(("required", "most"), [(50, 3_000), (1, 3_000), (0, 8_000)])
def test_fifty_fields_have_small_automaton(required: int, most: int) -> None:
    assert Texts(schema_regex(fifty(required))).states < most


def test_regex_size_is_linear_in_optional_properties() -> None:
    sizes = [
        len(schema_regex({"properties": {f"k{i:03}": {"type": "string"} for i in range(n)}})) for n in (50, 100, 200)
    ]
    assert sizes[1] < 3 * sizes[0] and sizes[2] < 3 * sizes[1]
