"""Formats: a valid value can be written, an invalid one cannot, and everything else is named."""

import json
import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from benchmarks.random_text import accepts
from gesso.constraints.constraint import Guides
from gesso.constraints.schema.compile import schema_term
from gesso.constraints.schema.dialects import CALLS, JSON
from gesso.constraints.schema.formats import FORMATS, format_term, warm_up
from gesso.constraints.schema.keywords import NOT_ENFORCED
from gesso.constraints.validate import value_problem
from gesso.errors import InputError
from tests.constraints.format_values import VALUES
from tests.constraints.walks import has, sample

MORE_VALUES = {
    "date": ["0000-02-29", "1999-12-31"],
    "duration": ["P1Y2M3DT4H5M6S", "P3W", "PT10M", f"P{'9' * 30}D"],
    "email": ["joe@[127.0.0.1]", "joe@[IPv6:::1]", '"joe bloggs"@example.org', '"a\\"b@c"@d.e', f"{'a' * 64}@b.c"],
    "hostname": [f"{'a' * 63}.b", ".".join(["a" * 62] * 4), "1host", "1.2.3.4"],
    "idn-hostname": ["bücher.example", "例え。テスト", "xn--bcher-kva.example"],
    "ipv4": ["255.255.255.255", "0.0.0.0"],
    "ipv6": ["::", "1:2:3:4:5:6:7::", "::1:2:3:4:5:6:7", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5::1.2.3.4"],
    "iri-reference": ["", "//é:1/ü", "é/b:c", "?\ue000"],
    "json-pointer": ["", "/a~1b/0", "/é", "/<a|b>"],
    "relative-json-pointer": ["0", "120/a", "2#"],
    "uri": [
        "a:",
        "http://[v1.x]/",
        "x-y+z.1:/a//b",
        "http://u:p@h:/",
        "http://999.999.999.999/",
        "tel:+1-816-555-1212",
    ],
    "uri-reference": ["", "./this:that", "//"],
    "uri-template": ["", "{=a}", "{|x*}", "{v:9999}", "a'b", "a😀b", "{%41}"],
    "uuid": ["2EB8AA08-aa98-11ea-b4aa-73b441d16380"],
}
INVALID = {
    "date": ["1900-02-29", "2020-13-01", "20-01-01"],
    "date-time": ["2026-01-01 00:00:00Z", "1998-12-31T22:59:60Z", "2026-01-01T00:00:00.Z", "2026-01-01T24:00:00Z"],
    "duration": ["P1Y1D", "PT1H1S", "P", "PT0.5S"],
    "email": [".a@b.c", "a..b@c.d", "a@b..c", "a@[127.0.0.300]", f"{'a' * 65}@b.c", "a@b@c", "é@b.c", "a@b_c.d"],
    "hostname": ["", "a.", "-a", "a-", "a_b", f"{'a' * 64}.b", "ä"],
    "idn-email": ["a@", "a b@c.d", "a@b@c"],
    "idn-hostname": ["", "a b", "a..b", "-a"],
    "ipv4": ["256.1.1.1", "01.2.3.4", "1.2.3"],
    "ipv6": ["1:2:3:4:5:6:7", "1::2::3", "::01.2.3.4", "1:2:3:4:5:6::1.2.3.4", "::1%eth0", ":"],
    "iri": ["é:a", "http://a/#\ue000", "http://[é]", "http://a/\ufdd0"],
    "json-pointer": ["a", "/~2", "/~"],
    "relative-json-pointer": ["01", "-1", "0##"],
    "time": ["12:00:00", "23:59:60+01:00", "08:30:06 PST", "08:30:06+24:00"],
    "uri": ["//a", "abc", "http://a b", "http://a:b/", "http://a@b@c", "http://[::1", "http:/[::1]", "a:%zz", "1:b"],
    "uri-reference": ["1:b", "/a\\b", "/[::1]", "//a:b"],
    "uri-template": ["{}", "{a,}", "{v:0}", "{v:10000}", "a b", "{a", "}", "{a..b}", "%4"],
    "uuid": ["2eb8aa08aa9811eab4aa73b441d16380"],
}
ALL_VALUES = [(name, value) for source in (VALUES, MORE_VALUES) for name, values in source.items() for value in values]


def spellings(value: str) -> list[str]:
    return [json.dumps(value), json.dumps(value, ensure_ascii=False)]


def field(name: str) -> dict[str, Any]:
    properties = {"name": {"type": "string"}, "value": {"type": "string", "format": name}}
    return {"type": "object", "properties": properties, "required": ["name", "value"]}


def test_the_sixty_values_are_of_ten_formats() -> None:
    assert [len(set(values)) for values in VALUES.values()] == [6] * 10


@pytest.mark.parametrize("name", VALUES)
def test_an_entry_with_a_valid_value_passes_the_guide_of_its_format(name: str, tiny: Any) -> None:
    guide = Guides(tiny.tokenizer, tiny.config.vocab_size, frozenset([1])).guide(json_schema=field(name))
    assert guide is not None
    for value in VALUES[name]:
        for text in spellings(value):
            entry = f'{{"name": "Ada", "value": {text}}}'
            assert accepts(guide, entry), entry


@pytest.mark.parametrize(("name", "value"), ALL_VALUES)
def test_a_valid_value_can_be_written(name: str, value: str) -> None:
    term = schema_term({"type": "string", "format": name}).term
    assert [text for text in spellings(value) if not has(term, text)] == []
    assert has(format_term(name, CALLS), value), "the notation of tool calls"
    assert has(schema_term({"format": name, "enum": [value, "\0"]}).term, json.dumps(value))


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in INVALID.items() for value in values])
def test_an_invalid_value_cannot_be_written(name: str, value: str) -> None:
    term = schema_term({"type": "string", "format": name}).term
    assert not any(has(term, text) for text in spellings(value))


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if not each.left])
def test_random_texts_of_a_format_are_valid(name: str) -> None:
    from jsonschema_rs import validator_for

    validator = validator_for({"format": name}, validate_formats=True)
    term, rng = format_term(name, JSON), random.Random(0)
    texts = {json.loads(b'"%s"' % sample(term, rng, 60)) for _ in range(60)}
    assert [text for text in texts if not validator.is_valid(text)] == []


def test_a_leap_second_is_at_the_end_of_a_day_in_utc() -> None:
    term, end = format_term("time", JSON), datetime(2016, 12, 31, 23, 59, tzinfo=UTC)
    for minutes in range(-1439, 1440, 7):
        offset = timedelta(minutes=minutes)
        sign, (hours, rest) = "-" if minutes < 0 else "+", divmod(abs(minutes), 60)
        assert has(term, f"{end + offset:%H:%M}:60{sign}{hours:02}:{rest:02}")
        assert not has(term, f"{end + offset + timedelta(minutes=1):%H:%M}:60.5{sign}{hours:02}:{rest:02}")
        assert not has(term, f"{end + offset - timedelta(hours=1):%H:%M}:60{sign}{hours:02}:{rest:02}")


@pytest.mark.parametrize(("schema", "inside", "outside"), [
    ({"format": "uri", "pattern": "^http://10\\.0\\.0\\.[0-9]+:8000$"}, ["http://10.0.0.7:8000"], ["http://10.0.0.7:80"]),
    ({"format": "email", "pattern": "@example\\.org$", "maxLength": 20}, ["a.b.c@example.org"], ["a@b.c"]),
    ({"format": "date-time", "pattern": "^2026-.*Z$"}, ["2026-01-01T00:00:00Z"], ["2026-01-01T00:00:00z"]),
    ({"format": "hostname", "minLength": 250}, [".".join(["a" * 62] * 4)], ["a"]),
])  # fmt: skip
def test_a_format_and_other_keywords_intersect(schema: dict[str, Any], inside: list[str], outside: list[str]) -> None:
    term = schema_term({"type": "string", **schema}).term
    assert all(has(term, json.dumps(text)) for text in inside)
    assert not any(has(term, json.dumps(text)) for text in outside)


def test_a_format_and_a_pattern_without_a_common_text_contradict_each_other() -> None:
    with pytest.raises(InputError, match="contradicts itself"):
        schema_term({"type": "string", "format": "ipv4", "pattern": "^[a-z]+$"})


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_leaves_out_is_named(name: str) -> None:
    found = schema_term({"type": "string", "format": name})
    assert list(found.checked) == ["#/format"] * bool(FORMATS[name].left)
    assert [FORMATS[name].narrowed in warning for warning in found.warnings] == [True] * bool(FORMATS[name].narrowed)


@pytest.mark.parametrize("keyword", NOT_ENFORCED)
def test_a_keyword_that_is_not_enforced_is_named(keyword: str) -> None:
    found = schema_term({"type": "object", "properties": {"a": {"type": "string", keyword: "base64"}}}).warnings
    assert len(found) == 1
    assert re.search(f"'{keyword}' is not enforced: .*#/properties/a", found[0])


def test_warm_up_leaves_no_format_to_compile() -> None:
    warm_up()
    compiled = format_term.cache_info().misses
    schema_term({"type": "array", "prefixItems": [{"type": "string", "format": name} for name in FORMATS]})
    assert format_term.cache_info().misses == compiled


def test_content_is_left_to_the_check_in_the_drafts_where_it_is_no_annotation() -> None:
    content = {"type": "string", "contentEncoding": "base64", "contentMediaType": "application/json"}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **content}
    found = schema_term(schema)
    assert (found.checked, found.warnings) == (("#/contentEncoding", "#/contentMediaType"), ())
    assert value_problem(schema, "e30=") is None
    assert value_problem(schema, "{}") is not None and value_problem(schema, "ezp9Cg==") is not None
    assert len(schema_term({**schema, "contentEncoding": "base32"}).warnings) == 1
