"""Tool calls as terms: the model's own syntax, with a byte for each special token."""

import random
from typing import Any

import pytest

from gesso.chat.calls import format_value
from gesso.constraints.limits import Limits
from gesso.constraints.tools import TAGS, calls_term, optional_calls_term
from gesso.errors import InputError
from tests.constraints.walks import has, sample

WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 9, "x-note": 1}},
        "required": ["city"],
    },
}
CLOCK: dict[str, Any] = {"name": "clock"}


def written(text: str) -> bytes:
    data = text.encode()
    for tag, byte in TAGS.items():
        data = data.replace(tag.encode(), bytes([byte]))
    return data


def call(name: str, arguments: dict[str, Any]) -> bytes:
    return written(f"<|tool_call>call:{name}{format_value(arguments)}<tool_call|>")


def test_calls_have_valid_arguments() -> None:
    found = calls_term([WEATHER, CLOCK], parallel=False, limits=Limits())
    assert "'weather'" in found.warnings[0] and "x-note" in found.warnings[0]
    assert has(found.term, call("weather", {"city": "Bern, CH"})) and has(found.term, call("clock", {}))
    assert has(found.term, call("weather", {"city": "a | b < c", "days": 3}))
    for wrong in (call("weather", {"days": 3}), call("weather", {"city": "x", "days": 10}), call("clock", {"a": 1})):
        assert not has(found.term, wrong)
    assert not has(found.term, call("clock", {}) * 2)
    assert not has(found.term, written('<|tool_call>call:weather{city:<|"|>a <|x b<|"|>}<tool_call|>'))


def test_parallel_calls_follow_each_other() -> None:
    term = calls_term([WEATHER, CLOCK], parallel=True, limits=Limits()).term
    assert has(term, call("clock", {}) + call("weather", {"city": "x"})) and not has(term, call("clock", {}) * 9)


def test_optional_calls_allow_any_text_before_valid_calls() -> None:
    term = optional_calls_term([WEATHER], parallel=False, limits=Limits()).term
    text = "It is 5 < 6 | true: call:weather{} ✓".encode()
    assert has(term, b"") and has(term, text) and has(term, text + call("weather", {"city": "x"}))
    assert not has(term, text + call("weather", {})) and not has(term, text + call("clock", {}))
    assert not has(term, call("weather", {"city": "x"}) + b"text")


def test_samples_of_calls_end_with_their_mark() -> None:
    term, rng = calls_term([WEATHER], parallel=False, limits=Limits()).term, random.Random(0)
    for _ in range(30):
        text = sample(term, rng)
        assert text[0] == TAGS["<|tool_call>"] and text[-1] == TAGS["<tool_call|>"]


def test_wrong_parameters_are_rejected_with_the_name_of_the_tool() -> None:
    for parameters in ({"type": "array", "properties": {}}, {"properties": {"a": {"type": "x"}}}):
        with pytest.raises(InputError, match="tool 'f'"):
            calls_term([{"name": "f", "parameters": parameters}], parallel=False, limits=Limits())
