"""Parse answers, above all texts that are cut at any character, and format tool calls."""

import json
import random
import time
from typing import Any

import pytest

from gesso.chat.answer import MAX_DEPTH, Answer, ToolCall, format_call, format_value, parse
from gesso.errors import InputError

RICH = (
    "<|channel>thought\nFirst: is 3 < 4 and a<b|c>?\nYes.\n<channel|>"
    'Let me look <b>that</b> up, x <| y.\n<|tool_call>call:search{q:<|"|>a {b}, c: "d"\n<tag> <|"|>,n:-3}<tool_call|>\n'
    "<|channel>thought\n<channel|><|channel>thought\nSecond thought<channel|>"
    "<|tool_call>call:broken{q:<tool_call|><|tool_call>call:now{}<tool_call|>"
    "<|channel>final\nIt is `5 < 6`.<channel|> Done <<turn|>\n<|turn>user\nnot mine"
)
TAGS = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<turn|>", "<|turn>", "<|tool_response>")


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


def test_parse_answer_with_all_parts() -> None:
    assert parse(RICH) == Answer(
        text="Let me look <b>that</b> up, x <| y.\nIt is `5 < 6`. Done <",
        thinking="First: is 3 < 4 and a<b|c>?\nYes.\nSecond thought",
        tool_calls=(ToolCall("search", {"q": 'a {b}, c: "d"\n<tag> ', "n": -3}), ToolCall("now", {})),
        complete=True,
        malformed=("call:broken{q:",),
    )


def test_every_prefix_parses_to_prefix_of_the_whole() -> None:
    whole = parse(RICH)
    for cut in range(len(RICH)):
        part = parse(RICH[:cut])
        assert whole.text.startswith(part.text), RICH[:cut]
        assert whole.thinking.startswith(part.thinking), RICH[:cut]
        assert whole.tool_calls[: len(part.tool_calls)] == part.tool_calls, RICH[:cut]
        assert whole.malformed[: len(part.malformed)] == part.malformed, RICH[:cut]


def test_random_tags_never_raise_and_answer_only_grows() -> None:
    parts = [*TAGS, "<eos>", "<pad>", "thought", "call:f{", "a:1", "final", "<|to", *'}"\n <|x,']
    for seed in range(400):
        rng = random.Random(seed)
        raw = "".join(rng.choice(parts) for _ in range(rng.randrange(25)))
        whole = parse(raw)
        for cut in range(len(raw)):
            part = parse(raw[:cut])
            assert whole.text.startswith(part.text), raw[:cut]
            assert whole.thinking.startswith(part.thinking), raw[:cut]
            assert whole.tool_calls[: len(part.tool_calls)] == part.tool_calls, raw[:cut]
        assert not any(tag in whole.text for tag in TAGS), raw


def test_call_appears_with_its_complete_closing_tag() -> None:
    raw = '<|tool_call>call:f{a:<|"|>}<|"|>}<tool_call|>'
    assert [len(parse(raw[:cut]).tool_calls) for cut in range(len(raw) + 1)] == [0] * len(raw) + [1]


@pytest.mark.parametrize("tag", [*TAGS, "<eos>"])
def test_half_tag_is_held_back_and_incomplete(tag: str) -> None:
    for cut in range(1, len(tag)):
        assert parse("Hi " + tag[:cut]) == Answer("Hi ", "", (), complete=False)
        assert parse("<|channel>thought\nHm" + tag[:cut]) == Answer("", "Hm", (), complete=False)


def test_text_that_resembles_tag_is_released() -> None:
    assert parse("a <|b").text == "a <|b"
    assert parse("a <tool_shed").text == "a <tool_shed"
    assert parse("a <<turn|>") == Answer("a <", "", (), complete=True)


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "Hi",
        "Hi<turn|>",
        "Hi<turn|>\n",
        "Hi<eos>",
        "Hi<eos><pad><pad>",
        "Hi<turn|><eos><pad><pad>",
        "Hi<|tool_response>",
    ],
)
def test_end_of_turn_is_not_in_text(raw: str) -> None:
    assert parse(raw) == Answer("Hi" if raw else "", "", (), complete=True)


def test_eos_inside_text_is_kept() -> None:
    assert parse("`<eos>` ends it.").text == "`<eos>` ends it."


def test_unclosed_thought_is_thinking() -> None:
    assert parse("<|channel>thought\nHm, so") == Answer("", "Hm, so", (), complete=False)
    assert parse("<|channel>thought\nHm, so<turn|>") == Answer("", "Hm, so", (), complete=False)
    assert parse("<|channel>thou") == Answer("", "", (), complete=False)


def test_empty_thought_is_dropped() -> None:
    for empty in ("<|channel>thought\n<channel|>", "<|channel>thought<channel|>", "<|channel>thought\n\n<channel|>\n"):
        assert parse(empty + "Hi") == Answer("Hi", "", (), complete=True)


def test_call_inside_thought_is_not_a_call() -> None:
    answer = parse("<|channel>thought\n<|tool_call>call:rm{}<tool_call|><channel|>No.")
    assert (answer.text, answer.tool_calls) == ("No.", ())


def test_other_channel_is_text_without_its_name() -> None:
    assert parse("<|channel>final\nHi<channel|>") == Answer("Hi", "", (), complete=True)
    assert parse("<|channel>final\nHi") == Answer("Hi", "", (), complete=False)
    assert parse("<|channel>Hi there<channel|>").text == "Hi there"
    assert parse("<|channel>Hi<turn|>").text == "Hi"


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
        "f{}",
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
        "call:f{a:1}}",
        "call:f{a:1} and more",
        "call:f{a:" + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1) + "}",
        "call:f{a:" + "[" * 200_000,
    ],
)
def test_malformed_call_is_reported_and_answer_continues(source: str) -> None:
    answer = parse(f"<|tool_call>{source}<tool_call|>Hi")
    assert answer == Answer("Hi", "", (), complete=True, malformed=(source,))


def test_call_without_closing_tag_counts_if_another_tag_ends_it() -> None:
    f, g = ToolCall("f", {"a": 1}), ToolCall("g", {})
    assert parse("<|tool_call>call:f{a:1}") == Answer("", "", (), complete=False)
    assert parse("<|tool_call>call:f{a:1}<turn|>") == Answer("", "", (f,), complete=True)
    assert parse("<|tool_call>call:f{a:1}<|tool_call>call:g{}<tool_call|>").tool_calls == (f, g)


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


@pytest.mark.parametrize(
    "unit",
    [
        "<",
        "<|",
        "word ",
        "<eos>",
        "<|tool_call>",
        "<|channel>",
        "<|channel>thought",
        "<|channel>thought\nx<channel|>",
        '<|tool_call>call:f{a:<|"|>',
        '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>',
        "<|tool_call>call:f{a:<tool_call|>",
    ],
)
@pytest.mark.parametrize(
    "opening", ["", "<|tool_call>call:f{a:[", '<|tool_call>call:f{a:"', '<|tool_call>call:f{a:<|"|>']
)
def test_parse_time_is_linear(opening: str, unit: str) -> None:
    assert growth(opening, unit) < 4 * 8


@pytest.mark.parametrize("unit", ['\\"', "[", '"', '<|"|>', "a", " ", "a ", '"a\\', "\n", "1,", ":"])
def test_parse_time_of_arguments_is_linear(unit: str) -> None:
    assert growth('<|tool_call>call:f{a:"', unit) < 4 * 8
    assert growth("<|tool_call>call:f{a:[", unit) < 4 * 8
    assert growth("<|tool_call>call", unit) < 4 * 8


def test_parse_time_of_padding_is_linear() -> None:
    assert growth("Hi", "<pad>", ending="", length=100_000) < 4 * 8


def growth(opening: str, unit: str, ending: str = "<tool_call|>end", length: int = 20_000) -> float:
    """Return the factor by which time grows for 8 times the length: about 8 if linear, 64 if quadratic."""

    def seconds(length: int) -> float:
        raw = opening + unit * (length // len(unit)) + ending
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            parse(raw)
            best = min(best, time.process_time() - start)
        return best

    # The lower limit hides the resolution of the clock. Quadratic work of this length takes far longer.
    return seconds(8 * length) / max(seconds(length), 1e-3)
