"""Tool calls in an answer: every form that models write, damaged calls, and the inverse, `format_call`."""

import importlib
import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gesso.chat.answer import Answer, parse
from gesso.chat.calls import MAX_DEPTH, ToolCall, format_call, format_value
from gesso.chat.tags import QUOTE
from gesso.errors import InputError
from tests.chat.test_answer import TAGS


def call_of(arguments: str) -> Any:
    (call,) = parse(f"<|tool_call>call:f{arguments}<tool_call|>").tool_calls
    assert call.name == "f"
    return call.arguments


def random_text(rng: random.Random) -> str:
    parts = ["Zürich", *"a \n{}[],:\"\\<|>'日\x00", *TAGS, "<eos>"]
    return "".join(rng.choice(parts) for _ in range(rng.randrange(8)))


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind == 0:
        return rng.choice([True, False, None])
    if kind == 1:
        return rng.choice([0, -1, 7, 10**30, -(2**63)])
    if kind == 2:
        return rng.choice([0.5, -2.0, 1e300, 1e-9, -1.5e16])
    if kind < 6:
        return random_text(rng)
    if kind < 8:
        return {random_text(rng): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{}", {}),
        (" { } ", {}),
        ("{a:3}", {"a": 3}),
        ("{a:-3,b:2.5,c:-1e3,d:1E-2}", {"a": -3, "b": 2.5, "c": -1000.0, "d": 0.01}),
        ("{a:true,b:false,c:null}", {"a": True, "b": False, "c": None}),
        ('{a:<|"|>{x:1},[y]\n"z" \\ \'<|"|>}', {"a": '{x:1},[y]\n"z" \\ \''}),
        ('{a:<|"|><|"|>}', {"a": ""}),
        ('{a:"pl\\"ain\n\\u00fc"}', {"a": 'pl"ain\nü'}),
        ('{<|"|>a b<|"|>:1,"c:d":2,e-f.g$:3}', {"a b": 1, "c:d": 2, "e-f.g$": 3}),
        (
            '{ a : { b : [ ] , c : { } } ,\n d : [ 1 , <|"|>x<|"|> , [ null ] ] }',
            {"a": {"b": [], "c": {}}, "d": [1, "x", [None]]},
        ),
        ('{true:<|"|>true<|"|>,1:2}', {"true": "true", "1": 2}),
        ('{u:<|"|>http://x.y/<|"|>}', {"u": "http://x.y/"}),
    ],
)
def test_call_arguments_have_json_types(arguments: str, expected: dict[str, Any]) -> None:
    found = call_of(arguments)
    assert found == expected
    assert json.dumps(found) == json.dumps(expected)  # 1 == 1.0 == True in Python, not in JSON


@pytest.mark.parametrize(
    "source",
    [
        "",
        "call:f",
        "call:{}",
        "call:f[1]",
        "call:f{",
        "call:f{a}",
        "call:f{a:}",
        "call:f{a:1,}",
        "call:f{a:1 b:2}",
        "call:f{a:word}",
        "call:f{a:NaN}",
        "call:f{a:-Infinity}",
        "call:f{a:1e999}",
        "call:f{a:" + "9" * 5000 + "}",
        'call:f{a:"open}',
        'call:f{a:<|"|>open}',
        'call:f("Paris")',
        "call:f(a=(1, 2))",
        "call:f{a:'open}",
        '{"arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": 1}',
        "call:f{a:" + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1) + "}",
        "call:f{a:" + "[" * 200_000,
    ],
)
def test_malformed_call_is_reported_and_answer_continues(source: str) -> None:
    answer = parse(f"<|tool_call>{source}<tool_call|>Hi")
    assert answer == Answer("Hi", "", (), complete=True, malformed=(source,))


@pytest.mark.parametrize(
    "source",
    [
        'call:f{a:1,b:<|"|>x<|"|>}',
        'call:f{"a": 1, "b": "x"}',
        'call:f(a=1, b="x")',
        "call:f( a = 1, b: 'x' )",
        'call:f({"a": 1, "b": "x"})',
        'call: f {a:1,b:"x"}',
        'f(a=1, b="x")',
        '{"name": "f", "arguments": {"a": 1, "b": "x"}}',
        'call:f{a:1,, b:"x"}',
        'call:f{a:1,b:"x"}}',
        'call:f(a=1, b="x"))]\n',
    ],
)
@pytest.mark.parametrize("closing", ["<tool_call|>", ""])
@pytest.mark.parametrize("tools", [None, {"f", "g"}])
def test_call_is_read_in_every_form_that_models_write(source: str, closing: str, tools: Any) -> None:
    call = ToolCall("f", {"a": 1, "b": "x"})
    whole = f"Wait. <|tool_call>{source}{closing}"
    assert parse(whole, tools, ended=True) == Answer("Wait. ", "", (call,), complete=True)
    assert parse(f"{whole} Done.<turn|>", tools).text in ("Wait. Done.", "Wait.  Done.")
    assert parse(f"{whole}<|tool_call>{source}", tools, ended=True).tool_calls == (call, call)


def test_python_literals_are_json_values_in_a_call() -> None:
    assert call_of("(a=True, b=[None, False], c={'d': 'it\\'s \"e\"\\n'}, True=1)") == {
        "a": True,
        "b": [None, False],
        "c": {"d": 'it\'s "e"\n'},
        "True": 1,
    }


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ('I :get_weather{city:<|"|>Paris<|"|>}<tool_call|>', ""),
        ('Imin:get_weather{city:<|"|>Paris<|"|>}<tool_call|>', ""),
        ('Icall:get_weather(city="Paris")', ""),
        ('call:get_weather{"city":"Paris"}', ""),
        (':get_weather (city="Paris")}', ""),
        ('Let me see. call:get_weather(city="Paris") One moment.', "Let me see. One moment."),
    ],
)
def test_call_of_known_tool_is_found_without_its_opening_tag(raw: str, text: str) -> None:
    call = ToolCall("get_weather", {"city": "Paris"})
    assert parse(raw, {"get_weather"}, ended=True) == Answer(text, "", (call,), complete=True)


@pytest.mark.parametrize(
    "text",
    [
        "Use it: get_weather(city) returns a text.",
        "See http://example.org:80/get_weather for more.",
        "get_weather{city} is a tool, a dict is {a:b}, a slice is x[a:b(c)].",
        ":other{a:1}",
        "12:30 (noon)",
    ],
)
def test_text_that_resembles_a_call_is_text(text: str) -> None:
    assert parse(text, {"get_weather"}, ended=True) == Answer(text, "", (), complete=True)


@pytest.mark.parametrize("source", ["call:g{a:1}", "call:f{a", "call:f{a:<|channel>", "g(a=1)", ""])
def test_unreadable_call_is_text_only_if_the_answer_would_be_blank(source: str) -> None:
    for ending in ("<tool_call|>", ""):
        alone = parse(f"<|tool_call>{source}{ending}", {"f"}, ended=True)
        assert alone.malformed == (source,) and not alone.tool_calls
        assert bool(alone.text) == bool(source) and "<" not in alone.text and "call:" not in alone.text
        with_text = parse(f"Hi<|tool_call>{source}{ending}", {"f"}, ended=True)
        assert (with_text.text, with_text.malformed) == ("Hi", (source,))


def test_without_tools_a_call_is_malformed_and_shown() -> None:
    answer = parse('<|tool_call>call:book{city:<|"|>Rome<|"|>,n:2}<tool_call|>', (), ended=True)
    assert (answer.text, answer.tool_calls) == ('book{city:"Rome",n:2}', ())


def test_cut_off_call_is_malformed_once_the_answer_has_ended() -> None:
    raw = "<|tool_call>call:f{a:1"
    assert parse(raw) == Answer("", "", (), complete=False)
    assert parse(raw, ended=True).malformed == ("call:f{a:1",)
    assert parse(raw + "<turn|>").malformed == ("call:f{a:1",)


texts = st.sampled_from(["Paris", "two words", "it's", 'say "hi"', "a, b: c", "x{y}", "(z", ""])


values = st.recursive(
    st.none() | st.booleans() | st.sampled_from([3, -2.5]) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)


calls = st.builds(ToolCall, st.just("find"), st.dictionaries(st.sampled_from(["city", "days"]), values))


@st.composite
def damaged_calls(draw: st.DrawFn) -> str:
    """Draw a call of `find` with one kind of damage that models do."""
    opening, body, ending = (
        "<|tool_call>",
        format_call(draw(calls))[len("<|tool_call>") : -len("<tool_call|>")],
        "<tool_call|>",
    )
    at = draw(st.integers(len("call:find"), len(body)))
    match draw(st.sampled_from(["opening", "ending", "doubled", "cut", "removed", "inserted", "quotes", "one quote"])):
        case "opening":
            opening = ""
        case "ending":
            ending = ""
        case "doubled":
            opening += opening
        case "cut":
            body, ending = body[:at], ""
        case "removed":
            body = body[:at] + body[at + 1 :]
        case "inserted":
            body = body[:at] + draw(st.sampled_from("{}[](),:\"'")) + body[at:]
        case "quotes":
            body = body.replace(QUOTE, draw(st.sampled_from("\"'")))
        case "one quote":
            body = body.replace(QUOTE, draw(st.sampled_from(["", '"', "'"])), 1)
    return opening + body + ending


@given(
    source=damaged_calls(), before=st.sampled_from(["", "First. "]), after=st.sampled_from(["", " Last.", "<turn|>"])
)
@settings(derandomize=True, database=None, deadline=None, max_examples=150)  # a busy machine has no deadline
def test_damaged_call_is_neither_lost_nor_shown(source: str, before: str, after: str) -> None:
    raw = before + source + after
    answer = parse(raw, {"find"}, ended=True)
    assert answer.tool_calls or answer.malformed
    shown = answer.text.removeprefix("First. ").removesuffix("Last.").strip()
    if answer.tool_calls or before:
        assert not shown
    else:  # the answer would be blank
        assert "call:" not in shown and not any(tag in shown for tag in TAGS)
    for cut in range(len(raw)):
        part = parse(raw[:cut], {"find"})
        assert answer.text.startswith(part.text), raw[:cut]
        assert answer.tool_calls[: len(part.tool_calls)] == part.tool_calls, raw[:cut]
        assert answer.malformed[: len(part.malformed)] == part.malformed, raw[:cut]


@pytest.mark.parametrize(
    ("rest", "malformed", "text"),
    [
        (",b:2}<tool_call|> Last.", (",b:2}",), " Last."),
        (", b=2) Last.", (", b=2)",), "Last."),
        (",b:2", (",b:2",), ""),
        ("[<tool_call|>Last.", ("[",), "Last."),
        ("5}<tool_call|>", ("5}",), ""),
        (", and more.", (), ", and more."),
        (" (as you asked)", (), "(as you asked)"),
        ("Last. It is 5" + " more" * 60, (), "Last. It is 5" + " more" * 60),
        (",call:f{a:1}<tool_call|>", (), ","),
    ],
)
def test_arguments_after_the_last_bracket_of_a_call_are_not_text(rest: str, malformed: Any, text: str) -> None:
    answer = parse(f"<|tool_call>call:f{{a:1}}{rest}", {"f"}, ended=True)
    assert answer.tool_calls and all(call == ToolCall("f", {"a": 1}) for call in answer.tool_calls)
    assert (answer.malformed, answer.text) == (malformed, text)


def test_parse_inverts_format_call() -> None:
    for seed in range(3000):
        rng = random.Random(seed)
        call = ToolCall("get.it-1", {random_text(rng): random_value(rng) for _ in range(rng.randrange(4))})
        raw = format_call(call)
        answer = parse(f"Hi {raw}{raw}<turn|>")
        assert answer == Answer("Hi ", "", (call, call), complete=True)
        assert json.dumps(answer.tool_calls[0].arguments) == json.dumps(call.arguments)


def test_format_call_uses_model_syntax() -> None:
    call = ToolCall("weather", {"city": "Zürich", "days": 3, "exact": True, "of": [None, 0.5], "user-id": {}})
    expected = 'call:weather{city:<|"|>Zürich<|"|>,days:3,exact:true,of:[null,0.5],user-id:{}}'
    assert format_call(call) == f"<|tool_call>{expected}<tool_call|>"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, object(), b"x", {"a": {1, 2}}])
def test_format_value_rejects_non_json(value: Any) -> None:
    with pytest.raises(InputError):
        format_value(value)


def test_nesting_limit_is_equal_in_parse_and_format() -> None:
    nested: Any = []
    for _ in range(MAX_DEPTH - 2):
        nested = [nested]
    assert parse(format_call(ToolCall("f", {"a": nested}))).tool_calls[0].arguments == {"a": nested}
    with pytest.raises(InputError, match="nested"):
        format_call(ToolCall("f", {"a": [nested]}))


@pytest.mark.parametrize("name", ["", "a b", "f{", "<tool_call|>"])
def test_format_call_rejects_names_that_parse_cannot_read(name: str) -> None:
    with pytest.raises(InputError):
        format_call(ToolCall(name, {}))


@pytest.mark.parametrize("name", ["answer", "calls", "tags"])
def test_no_group_is_possessive(name):
    """Python 3.11.0 to 3.11.4 match possessive groups wrongly, so every call was unreadable there."""
    values = vars(importlib.import_module(f"gesso.chat.{name}")).values()
    tables = [value for value in values if isinstance(value, dict)]
    patterns = [value for value in values if isinstance(value, re.Pattern)]
    patterns += [value for table in tables for value in table.values() if isinstance(value, re.Pattern)]
    for pattern in patterns:
        assert not re.search(r"(?<!\\)\)(?:[*+?]|\{[\d,]+\})\+", pattern.pattern), pattern.pattern
