"""JSON schema to term: its texts are valid, and valid values in usual notation belong to it."""

import datetime
import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import validator_for

from gesso import SchemaOptions
from gesso.constraints.schema.compile import CompiledConstraint, schema_term
from gesso.constraints.schema.openapi import standard_schema
from gesso.constraints.stored import from_bytes, to_bytes
from gesso.errors import InputError
from tests.constraints.schema_cases import CASES
from tests.constraints.walks import has, sample
from tests.schemas import mixtures, schemas, value_of

property_test = settings(derandomize=True, database=None, deadline=None, max_examples=25)
OPEN, ANY_ORDER, WHITESPACE = SchemaOptions(open=True), SchemaOptions(any_order=True), SchemaOptions(whitespace=True)


def valid(value: Any, schema: Any) -> bool:
    return bool(validator_for(standard_schema(schema), validate_formats=True).is_valid(value))


def spellings(value: Any) -> list[str]:
    return [json.dumps(value), json.dumps(value, ensure_ascii=False, separators=(",", ":"))]


def check_samples(schema: Any, count: int = 12, length: int = 40, **options: bool) -> CompiledConstraint:
    found = schema_term(schema, options=SchemaOptions(**options))
    rng = random.Random(0)
    for text in {sample(found.term, rng, length) for _ in range(count)}:
        assert found.checked or valid(json.loads(text), schema), text
    return found


@pytest.mark.parametrize("name", CASES)
def test_texts_of_each_keyword_are_valid_and_valid_values_match(name: str) -> None:
    schema, values = CASES[name]
    found = check_samples(schema)
    for value in values:
        assert valid(value, schema)
        assert [text for text in spellings(value) if not has(found.term, text)] == []
    assert not found.checked


@property_test
@given(schemas())
def test_every_matching_text_is_valid(schema: Any) -> None:
    check_samples(schema)


@property_test
@given(schemas(), st.randoms(use_true_random=False))
def test_valid_values_in_usual_notation_match(schema: Any, rng: random.Random) -> None:
    found = schema_term(schema)
    for _ in range(5):
        value = value_of(schema, rng)
        assert valid(value, schema)
        assert all(has(found.term, text) for text in spellings(value))


@property_test
@given(mixtures(), st.booleans())
def test_random_keywords_are_rejected_or_enforced(schema: Any, is_open: bool) -> None:
    try:
        check_samples(schema, open=is_open)
    except InputError as error:
        assert "contradicts itself" in str(error) or "has no end" in str(error)  # noqa: PT017


@pytest.mark.parametrize(("schema", "inside", "outside"), [
    ({"type": "integer"}, ["0", "-12", "7"], ["01", "+1", "1.5", "", "--1", "1.0"]),
    ({"type": "integer", "minimum": 98, "maximum": 1203}, ["98", "1203", "999", "1000"], ["97", "1204", "0100"]),
    ({"type": "integer", "exclusiveMinimum": 2.5}, ["3", "1000"], ["2", "-3"]),
    ({"type": "number"}, ["1.5e3", "-0.25", "2E-7", "1" * 400, "1e+300"], ["1.", ".5", "1e999", "00", "99999e305"]),
    ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, ["0", "0.99"], ["1", "1.0", "0." + "9" * 20, "-0.5"]),
    ({"type": "number", "exclusiveMinimum": 0}, ["0.001", "7.25", "1e-05"], ["0", "0.0", "0." + "0" * 400 + "1"]),
    ({"type": "number", "multipleOf": 0.25}, ["0.25", "1.5", "2"], ["0.3", "1.26"]),
    ({"type": "number", "multipleOf": 0.3}, ["0.3", "1.5", "3"], ["0.4", "1.0"]),
    ({"type": "integer", "multipleOf": 3, "minimum": 10**6}, ["1000002", "3000000"], ["1000001", "999999"]),
    ({"type": "string"}, ['"a\\"b"', '"\\u00e9"', '"é🙂"', '"\\ud7ff"', '"\\ud83d\\ude42"', '"\\/"', '"\x7f"'],
     ['"\n"', '"\\x"', '"\\ud800"', '"a', '"\\ude42\\ud83d"', '"\\ud83d"']),
    ({"type": "string", "minLength": 2, "maxLength": 3},
     ['"🙂é"', '"\\ud83d\\ude42\\u00e9"'], ['"a"', '"\\ud83d\\ude42"']),
    ({"properties": {"a": {}, "b": {}}}, ['{"a": 1, "b":[2]}', '{"b":null}', "{}"], ['{"b":1,"a":2}', '{"a":1,}']),
    ({"items": {"type": "null"}, "maxItems": 2}, ["[]", "[null, null]"], ["[null,null,null]", "[null ]", "[ ]"]),
    ({"uniqueItems": True, "items": {"enum": [1, 2, 3]}}, ["[3,1]", "[]", "[2,3,1]"], ["[1,1]", "[1,2,1]"]),
    ({"const": {"a": [1, "x"]}}, ['{"a":[1, "x"]}', '{"a": [1,"x"]}'], ['{"a":[1,"y"]}']),
    ({"type": "string", "pattern": "^a+$", "minLength": 2, "maxLength": 4}, ['"aa"', '"aaaa"'], ['"a"', '"aaaaa"']),
    ({"type": "string", "pattern": "^a*b*$", "maxLength": 3}, ['"abb"', '""'], ['"aabb"', '"ba"']),
    ({"type": "string", "pattern": "b"}, ['"abc"', '"b"', '"\\nb"'], ['"ac"', '"\nb"']),
    ({"type": "string", "pattern": "^é$"}, ['"é"', '"\\u00e9"', '"\\u00E9"'], ['"e"', '"\\u00e8"']),
    ({"type": "object", "patternProperties": {"^é": {"type": "null"}}, "additionalProperties": False},
     ['{"éa":null}', '{"\\u00e9": null}'], ['{"a":null}', '{"é":1}']),
    ({"type": "object", "properties": {"é": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
     ['{"\\u00e9":null}', '{"é":null,"e":1}'], ['{"\\u00e9":1}', '{"é":1}']),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": True},
     ['{"b":1}', '{"a":1,"b":2}'], ['{"b":1,"a":2}']),
    ({"type": "string", "not": {"pattern": "\\s"}, "maxLength": 10**6}, ['"ab"', r'"\""'], ['"a b"', r'"\n"']),
    ({"not": {"const": 1.0}, "type": "number"}, ["10", "1.5", "11"], ["1", "1.0", "1.00", "1e0"]),
    ({"type": "array", "items": {"maximum": 3, "type": "integer"}, "maxContains": 1, "contains": {"const": 3}},
     ["[3]", "[1,3,2]"], ["[]", "[3,3]", "[3,1,3]"]),
])  # fmt: skip
def test_schema_accepts_and_rejects_at_its_limits(schema: Any, inside: list[str], outside: list[str]) -> None:
    term = schema_term(schema).term
    assert [text for text in inside if not has(term, text)] == []
    assert [text for text in outside if has(term, text)] == []


@pytest.mark.parametrize("schema", [{"type": "object", "properties": {"in": {"$ref": "#"}}}, True])
def test_recursion_goes_to_any_depth(schema: Any) -> None:
    term = schema_term(schema).term
    for depth in (1, 10, 200):
        assert has(term, '{"in":' * depth + "{}" + "}" * depth)
        assert not has(term, '{"in":' * depth + "{}" + "}" * (depth - 1))


def test_chain_of_thousands_of_definitions_compiles() -> None:
    links = {f"d{i}": {"properties": {"next": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(1_000)}
    term = schema_term({"$defs": {**links, "d1000": {"type": "null"}}, "$ref": "#/$defs/d0"}).term
    assert has(term, '{"next":' * 1_000 + "null" + "}" * 1_000)


@pytest.mark.parametrize(("schema", "texts"), [
    ({"properties": {"a": {"type": "null"}}}, ['{"b":1}', '{"a":null,"b":[]}', "1", '"x"']),
    ({"prefixItems": [{"type": "null"}]}, ["[null,1,2]", "{}"]),
    ({"minimum": 5}, ['"x"', "null", "5"]),
])  # fmt: skip
def test_open_option_follows_specification(schema: Any, texts: list[str]) -> None:
    by_default, literally = schema_term(schema).term, schema_term(schema, options=OPEN).term
    assert [text for text in texts if not has(literally, text)] == []
    assert any(not has(by_default, text) for text in texts)


def test_any_order_option_accepts_each_order_once() -> None:
    schema = {"properties": {name: {"type": "null"} for name in "abc"}, "required": ["a", "c"]}
    term = check_samples(schema, any_order=True).term
    for text in ('{"a":null,"b":null,"c":null}', '{"c":null,"a":null}', '{"b":null,"c":null,"a":null}'):
        assert has(term, text)
    for text in ('{"a":null,"a":null,"c":null}', '{"a":null}', '{"c":null,"a":null,"d":null}'):
        assert not has(term, text)
    free = schema_term({**schema, "additionalProperties": {"type": "integer"}}, options=ANY_ORDER).term
    assert has(free, '{"x":1,"c":null,"y":2,"a":null,"z":3}') and not has(free, '{"x":1,"c":null}')
    many = {"properties": {f"k{i}": {} for i in range(20)}}
    assert "any_order" in schema_term(many, options=ANY_ORDER).warnings[0]


def test_whitespace_option_accepts_indented_json() -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}}, "b": {"type": "object"}}}
    term = check_samples(schema, whitespace=True).term
    for value in ({"a": [1, 2], "b": {"x": {}}}, {"a": []}, {}):
        assert has(term, json.dumps(value, indent=4)) and has(term, json.dumps(value))
    assert has(term, '{ "a" :[ 1 , 2\n] }') and not has(schema_term(schema).term, '{ "a":[1]}')


@pytest.mark.parametrize(("schema", "named"), [
    ({"properties": {"a": {"x-one": 1}, "b": {"x-one": 2, "two": 3}}},
     ["'x-one' .*#/properties/a", "'two' .*#/properties/b"]),
    ({"type": "string", "format": "float"}, ["format 'float' .*#"]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "string", "nullable": True}, ["'nullable'"]),
    ({"title": "t", "$comment": "c", "readOnly": True, "default": 1, "$defs": {"a": {"unread": 1}}}, []),
])  # fmt: skip
def test_unknown_keywords_and_formats_are_ignored_and_reported_once(schema: Any, named: list[str]) -> None:
    found = schema_term(schema).warnings
    assert len(found) == len(named)
    assert all(re.search(expected, warning) for expected, warning in zip(named, found, strict=True))


@pytest.mark.parametrize(("schema", "pointers"), [
    ({"type": "array", "uniqueItems": True}, ["#/uniqueItems"]),
    ({"items": {"enum": list(range(20))}, "uniqueItems": True}, ["#/uniqueItems"]),
    ({"type": "object", "minProperties": 2}, ["#/minProperties"]),
    ({"type": "number", "multipleOf": 0.01}, ["#/multipleOf"]),
    ({"type": "integer", "multipleOf": 10**6 + 1}, ["#/multipleOf"]),
    ({"type": "string", "format": "regex"}, ["#/format"]),
    ({"type": "string", "oneOf": [{"format": "date"}, {"maxLength": 10}]}, ["#/oneOf"]),
    ({"type": "number", "not": {"multipleOf": 3}}, ["#/not"]),
    ({"type": "array", "contains": {"const": 1}, "minContains": 2, "minItems": 4}, ["#/contains"]),
    ({"type": "object", "patternProperties": {r"(a)\1": {"type": "null"}}}, ["#/patternProperties"]),
])  # fmt: skip
def test_assertions_beyond_terms_are_listed_for_checking(schema: Any, pointers: list[str]) -> None:
    assert list(schema_term(schema).checked) == pointers


def test_unique_items_never_outnumber_their_values() -> None:
    term = schema_term({"type": "array", "items": {"enum": list(range(12))}, "uniqueItems": True}).term
    assert has(term, json.dumps(list(range(12)))) and not has(term, json.dumps([*range(12), 0]))


def test_values_are_checked_against_all_other_keywords() -> None:
    schema: dict[str, Any] = {
        "$defs": {"short": {"maxLength": 3}},
        "allOf": [{"$ref": "#/$defs/short"}, {"not": {"pattern": "^x"}}],
        "enum": ["a", "long text", "x1", "ab", 5, {"a": 1}],
        "required": ["b"],
    }
    term = schema_term(schema).term
    assert [value for value in schema["enum"] if has(term, json.dumps(value))] == ["a", "ab"]


def test_terms_survive_travel_to_another_process() -> None:
    for name in ("in pairs", "multiples without bounds", "pattern properties", "halves"):
        schema, values = CASES[name]
        term = from_bytes(to_bytes(schema_term(schema).term))
        assert all(has(term, text) for value in values for text in spellings(value))


bounds = st.one_of(st.integers(-3000, 3000), st.decimals(-50, 50, places=2).map(float), st.integers(-40, 40))


@property_test
@given(bounds, bounds, st.booleans(), st.booleans())
def test_numbers_are_limited_exactly_at_their_bounds(a: float, b: float, low: bool, high: bool) -> None:
    a, b = min(a, b), round(max(a, b) + 2, 2)
    low_key, high_key = ("exclusiveMinimum" if low else "minimum"), ("exclusiveMaximum" if high else "maximum")
    found = {kind: schema_term({"type": kind, low_key: a, high_key: b}).term for kind in ("integer", "number")}
    steps = [round(a + (b - a) * i / 37, 6) for i in range(-9, 46)]
    near = [round(bound + n / 1000, 6) for bound in (a, b) for n in (-1000, -999, -101, -100, -10, -1, 1, 10, 70, 1000)]
    for number in [a, b, *steps, *near, *map(int, steps), *range(int(a) - 2, int(a) + 4)]:
        inside = (a < number if low else a <= number) and (number < b if high else number <= b)
        text = repr(number)
        if "e" not in text and text != "-0.0":
            assert has(found["number"], text) == inside, text
            assert has(found["integer"], text) == (inside and isinstance(number, int)), text


@pytest.mark.parametrize("bound", [0, 0.5, 0.1, 123.456, -7.25])
@pytest.mark.parametrize("keyword", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
def test_no_digits_round_across_a_bound(bound: float, keyword: str) -> None:
    schema = {"type": "number", keyword: bound}
    term = schema_term(schema).term
    point = str(bound) if "." in str(bound) else f"{bound}.0"
    for zeros in range(0, 400, 19):
        near = (point + "0" * zeros + "1", point[:-1] + "9" * zeros, f"{int(bound) - 1}." + "9" * zeros, f"-{point}1")
        for text in near:
            if has(term, text):
                assert valid(json.loads(text), schema), text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": "integer", "minimum": 3, "maximum": 300},
        {"type": ["integer", "string"], "not": {"const": 7}},
        {"type": "integer", "multipleOf": 19},
        {"const": 19},
        {"const": 19.0},
        {"type": "integer", "enum": [19.0, 20]},
        {"$schema": "http://json-schema.org/draft-04/schema#", "enum": [19.0]},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "integer"},
    ],
)
def test_an_integer_is_written_without_a_fraction(schema: Any) -> None:
    term = schema_term(schema).term
    assert has(term, "19") and not has(term, "19.0")


@property_test
@given(st.integers(1, 500), st.integers(-(10**9), 10**9))
def test_multiples_are_exact(step: int, number: int) -> None:
    term = schema_term({"type": "integer", "multipleOf": step}).term
    assert has(term, str(number - number % step))
    assert has(term, str(number)) == (number % step == 0)


def test_only_leap_years_have_february_29() -> None:
    term = schema_term({"type": "string", "format": "date"}).term
    for year in (1, 1896, 1900, 1999, 2000, 2008):
        days = {datetime.date(year, 1, 1) + datetime.timedelta(days=n) for n in range(365)}
        days |= {datetime.date(year, 12, 31)}
        known = {day.isoformat() for day in days}
        for month in range(14):
            for number in range(33):
                text = f"{year:04}-{month:02}-{number:02}"
                assert has(term, f'"{text}"') == (text in known)
