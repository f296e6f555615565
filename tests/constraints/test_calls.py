"""Tool calls under a constraint: every call has valid arguments, whatever the model predicts."""

import pytest

import gesso
from tests.constraints.test_guide import SMALL
from tests.constraints.test_schema import valid

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book_table",
            "parameters": {
                "type": "object",
                "properties": {
                    "day": {"type": "string", "format": "date"},
                    "guests": {"type": "integer", "minimum": 1, "maximum": 20},
                    "name": {"type": "string"},
                    "tags": {"type": "array", "items": {"enum": ["a<|b", "quiet", "grün"]}, "maxItems": 2},
                    "note": {"type": "string", "pattern": "^[a-z<|>]{1,6}$"},
                },
                "required": ["day", "guests", "name"],
            },
        },
    },
    {"type": "function", "function": {"name": "ping", "description": "Say hello."}},
]


ASK = [{"role": "user", "content": "A table for four."}]


@pytest.mark.parametrize("choice", ["required", "book_table", {"type": "function", "function": {"name": "ping"}}])
def test_required_tool_call_has_valid_arguments(tiny, choice):
    for seed in range(6):
        result = tiny.chat(
            ASK, tools=TOOLS, tool_choice=choice, seed=seed, max_new_tokens=120, canvas_length=60, steps=2
        )
        assert not result.malformed_calls and not result.text and result.finish_reason == "stop"
        (call,) = result.tool_calls
        if choice != "required":
            assert call.name == (choice if isinstance(choice, str) else "ping")
        if call.name == "book_table":
            assert valid(call.arguments, TOOLS[0]["function"]["parameters"])
        else:
            assert call.arguments == {}


def test_parallel_tool_calls_are_bounded(tiny):
    counts = set()
    for seed in range(8):
        options = {"seed": seed, "max_new_tokens": 120, "canvas_length": 60, "steps": 2, "parallel_tool_calls": True}
        result = tiny.chat(ASK, tools=TOOLS, tool_choice="ping", **options)
        assert all(call.name == "ping" for call in result.tool_calls) and not result.malformed_calls
        counts.add(len(result.tool_calls))
    assert min(counts) >= 1 and max(counts) <= 8


def test_answer_is_unconstrained_without_calls(tiny):
    options = {"seed": 1, "max_new_tokens": 24, **SMALL}
    assert tiny.chat_request(ASK, tools=TOOLS, tool_choice="none", **options).guide is None
    assert tiny.chat(ASK, tools=TOOLS, tool_choice="none", **options).tokens == tiny.chat(ASK, **options).tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tool_choice": "fly"}, "the tools are: 'book_table', 'ping'"),
        ({"tool_choice": {"name": "ping"}}, "tool_choice must be one of"),
        ({"tool_choice": "required", "regex": "a"}, "one constraint"),
    ],
)
def test_invalid_tool_choice_is_rejected(tiny, options, message):
    with pytest.raises(gesso.InputError, match=message):
        tiny.chat(ASK, tools=TOOLS, **options)
    with pytest.raises(gesso.InputError, match="there are no tools"):
        tiny.chat(ASK, tool_choice="required")
