"""Answers with a JSON schema or required calls are valid when they are returned, or an error says why not."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

import gesso
from gesso.constraints import answer_check
from gesso.constraints.automaton import START
from gesso.engine.plan import retry_seed
from gesso.engine.request import ATTEMPTS

SMALL = {"canvas_length": 24, "steps": 3, "max_new_tokens": 24}
SCHEMA = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
THOUGHT = "<|channel>thought\nhm<channel|>"
HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"enum": [1, 2]}}}}}]


@pytest.fixture
def checks(monkeypatch):
    """Record the checked texts. The first `checks.wrong` of them count as invalid."""

    schema_problem = answer_check.schema_problem

    class Checks:
        wrong = 0
        texts: list[str] = []  # noqa: RUF012

        def __call__(self, schema, text):
            self.texts.append(text)
            return "$: odd" if len(self.texts) <= self.wrong else schema_problem(schema, text)

    found = Checks()
    found.texts = []
    monkeypatch.setattr(answer_check, "schema_problem", found)  # a constrained answer is never wrong by itself
    return found


def test_every_answer_with_a_schema_is_checked(tiny, checks):
    texts = [
        tiny.generate("a", json_schema=SCHEMA, seed=1, **SMALL).text,
        tiny.chat(HELLO, json_schema=SCHEMA, seed=1, **SMALL).text,
        tiny.run([tiny.request("a", json_schema=SCHEMA, seed=2, **SMALL)])[0].text,
        list(tiny.stream("a", json_schema=SCHEMA, seed=3, **SMALL))[-1].text,
        tiny.infill("a", "b", json_schema=SCHEMA, seed=4, method="pinned", lengths=[6], canvas_length=24, steps=3).text,
    ]
    assert checks.texts == texts


def test_an_invalid_answer_is_written_again_unseen(tiny, checks):
    checks.wrong = 2
    found = tiny.generate("a", json_schema=SCHEMA, seed=5, **SMALL)
    assert found.seed == retry_seed(5, 2)
    assert checks.texts[2:] == [found.text]
    assert found.text == tiny.generate("a", json_schema=SCHEMA, seed=found.seed, **SMALL).text


@pytest.mark.parametrize("method", ["generate", "infill"])
def test_an_answer_that_stays_invalid_is_not_returned(tiny, checks, method):
    checks.wrong = 99
    with pytest.raises(gesso.ConstraintError, match=r"3 attempts: \$: odd"):
        if method == "generate":
            tiny.generate("a", json_schema=SCHEMA, **SMALL)
        else:
            options = {"method": "pinned", "lengths": [6], "canvas_length": 24, "steps": 3}
            tiny.infill("a", "b", json_schema=SCHEMA, **options)
    assert len(checks.texts) == ATTEMPTS


def test_a_stream_with_an_invalid_answer_ends_with_an_error(tiny, checks):
    checks.wrong = 99
    kinds = []
    with pytest.raises(gesso.ConstraintError, match="in a stream"):
        kinds += [event.kind for event in tiny.stream("a", json_schema=SCHEMA, **SMALL)]
    assert len(checks.texts) == 1
    assert "done" not in kinds


def test_a_truncated_answer_is_returned_as_it_is(tiny, checks):
    checks.wrong = 99
    assert tiny.generate("a", json_schema=SCHEMA, stop=",", seed=1, **SMALL).stop == ","


@dataclass
class Dissatisfied:
    """A check that no answer passes. It counts those that pass another one."""

    check: Any
    valid_count: int = 0

    def problem(self, tokens, text, decode):
        self.valid_count += self.check.problem(tokens, text, decode) is None
        return "odd"


def test_required_calls_are_checked(tiny):
    """A constrained call is never wrong by itself, so every attempt is, but for the check."""
    options = {"tools": TOOLS, "tool_choice": "required", **SMALL, "max_new_tokens": 48}
    assert tiny.chat(HELLO, **options).tool_calls
    request = tiny.chat_request(HELLO, **options)
    assert request.validate.problem([], "No call.", tiny.decode) == "it has no tool call that can be read"
    check = Dissatisfied(request.validate)
    with pytest.raises(gesso.ConstraintError, match="odd"):
        tiny.run([replace(request, validate=check)])
    assert check.valid_count == ATTEMPTS


def test_warnings_of_a_request_are_in_its_result(tiny):
    request = replace(tiny.request("a", seed=1, **SMALL), warnings=("x-mine was ignored",))
    assert tiny.run([request])[0].warnings == ("x-mine was ignored",)


# --- calls that the model is free to make ---


def written(tiny, text):
    """Return whether a whole answer is possible with `TOOLS` and the choice "auto"."""
    guide = tiny.chat_request(HELLO, tools=TOOLS).guide
    return guide.may_end(guide.walk(START, tiny.tokenizer.encode(text, bos=False)))


@pytest.mark.parametrize("before", ["", "Hello {", THOUGHT, f"{THOUGHT}So:"])
def test_a_call_that_begins_keeps_to_its_schema_with_tool_choice_auto(tiny, before):
    call = "<|tool_call>call:{}<tool_call|>"
    assert written(tiny, before)
    assert written(tiny, before + call.format("f{n:1}"))
    assert written(tiny, before + call.format("f{n:1}") + call.format("f{n:2}"))
    assert not written(tiny, before + call.format("f{n:3}"))
    assert not written(tiny, before + call.format("g{n:1}"))
    assert not written(tiny, before + "<|tool_call>call:f{n:")


def test_free_calls_are_not_constrained_where_another_option_decides(tiny):
    assert tiny.chat_request(HELLO, tools=TOOLS).guide is not None
    for options in ({"tool_choice": "none"}, {"write": "tokens"}, {"write": "verified"}, {"pins": {0: 200}}):
        request = tiny.chat_request(HELLO, tools=TOOLS, **options)
        assert request.guide is None
        assert request.validate is None
    assert tiny.chat_request(HELLO, tools=TOOLS, choice=["a"]).guide is tiny.guides.guide(choice=["a"])


def test_a_free_call_of_a_tool_with_an_unsupported_schema_has_any_arguments_and_a_warning(tiny):
    parameters = {"properties": {"n": {"$ref": "http://example.com/schema"}}}
    odd = [{"type": "function", "function": {"name": "odd", "parameters": parameters}}]
    request = tiny.chat_request(HELLO, tools=TOOLS + odd)
    assert any("odd" in warning for warning in request.warnings)
    answer = tiny.tokenizer.encode('<|tool_call>call:odd{n:<|"|>x<|"|>}<tool_call|>', bos=False)
    assert request.guide.may_end(request.guide.walk(START, answer))
    assert request.validate.problem(answer, "", tiny.decode) is None
    with pytest.raises(gesso.InputError, match="example"):
        tiny.chat_request(HELLO, tools=odd, tool_choice="required")


@pytest.mark.slow
def test_an_answer_without_a_call_is_the_same_as_without_the_constraint():
    g = gesso.load()
    tools = [{"type": "function", "function": {"name": "save_user", "description": "Save.", "parameters": {}}}]
    request = g.chat_request([{"role": "user", "content": "Who are you?"}], tools=tools, seed=1, max_new_tokens=48)
    free, constrained = g.run([replace(request, guide=None), request])
    assert constrained.tokens == free.tokens
    assert constrained.usage == free.usage


# --- options and warnings of a schema ---


def test_schema_options_allow_more_texts(tiny):
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"]}
    texts = {"any_order": '{"b":2,"a":1}', "whitespace": '{ "a" :\n1,"b":2}', "open": '{"a":1,"b":2,"c":3}'}
    for name, text in texts.items():
        for options in (None, gesso.SchemaOptions(), gesso.SchemaOptions(**{name: True})):
            guide = tiny.request("a", json_schema=schema, schema_options=options).guide
            possible = guide.may_end(guide.walk(START, tiny.tokenizer.encode(text, bos=False)))
            assert possible == (options is not None and getattr(options, name))
    with pytest.raises(gesso.InputError, match="schema_options"):
        tiny.request("a", regex="a", schema_options=gesso.SchemaOptions())


def test_ignored_keywords_and_formats_are_in_the_warnings_of_a_result(tiny):
    schema = {"type": "boolean", "x-mine": 1, "format": "someday"}
    warnings = tiny.generate("a", json_schema=schema, seed=1, **SMALL).warnings
    assert any("x-mine" in warning for warning in warnings)
    assert any("someday" in warning for warning in warnings)
    assert tiny.generate("a", json_schema=True, seed=1, **SMALL).warnings == ()
