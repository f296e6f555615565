"""Parse answers, above all texts that are cut at any character, and format tool calls."""

import random
import re
import time
from typing import Any

import pytest

from gesso.chat.answer import Answer, AnswerParser, parse
from gesso.chat.calls import ToolCall
from gesso.chat.tags import QUOTE
from tests.waiting import bounded

RICH = (
    "<|channel>thought\nFirst: is 3 < 4 and a<b|c>?\nYes.\n<channel|>"
    'Let me look <b>that</b> up, x <| y.\n<|tool_call>call:search{q:<|"|>a {b}, c: "d"\n<tag> <|"|>,n:-3}<tool_call|>\n'
    "<|channel>thought\n<channel|><|channel>thought\nSecond thought<channel|>"
    "<|tool_call>call:broken{q:<tool_call|><|tool_call>call:now{}<tool_call|>"
    "<|channel>final\nIt is `5 < 6`.<channel|> Done <<turn|>\n<|turn>user\nnot mine"
)
TAGS = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<turn|>", "<|turn>", "<|tool_response>")


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
    for seed in range(150):
        rng = random.Random(seed)
        raw = "".join(rng.choice(parts) for _ in range(rng.randrange(25)))
        whole = parse(raw)
        for cut in range(len(raw)):
            part = parse(raw[:cut])
            assert whole.text.startswith(part.text), raw[:cut]
            assert whole.thinking.startswith(part.thinking), raw[:cut]
            assert whole.tool_calls[: len(part.tool_calls)] == part.tool_calls, raw[:cut]
        assert not any(tag in whole.text for tag in TAGS), raw


def test_call_appears_once_with_its_last_bracket() -> None:
    raw = '<|tool_call>call:f{a:<|"|>}<|"|>}'
    assert [len(parse(raw[:cut]).tool_calls) for cut in range(len(raw) + 1)] == [0] * len(raw) + [1]
    assert all(len(parse((raw + "<tool_call|>")[:cut]).tool_calls) == 1 for cut in range(len(raw), len(raw) + 12))


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


def test_any_deltas_add_up_to_the_whole_answer() -> None:
    """Text is never taken back, and calls are found at the same places, wherever the stream is cut."""
    parts = [*TAGS, "<eos>", "I ", "Icall", ":f{", "call:f(", ":f", "a=1", "b:'x'", "a", ")", "thought\n", "<|to", "g("]
    parts += [*'}"\n <:', ":f{a:1}", 'call:f{a:<|"|>x<|"|>}<tool_call|>', " some words ", "12:30 "]
    for seed in range(1000):
        rng = random.Random(seed)
        raw = "".join(rng.choice(parts) for _ in range(rng.randrange(14)))
        whole, text, thinking, calls, at = parse(raw, {"f"}, ended=True), "", "", 0, 0
        while at < len(raw):
            at += rng.randint(1, 9)
            part = parse(raw[:at], {"f"})
            assert part.text.startswith(text) and part.thinking.startswith(thinking), raw[:at]
            assert whole.tool_calls[: len(part.tool_calls)] == part.tool_calls and len(part.tool_calls) >= calls
            assert whole.malformed[: len(part.malformed)] == part.malformed, raw[:at]
            text, thinking, calls = part.text, part.thinking, len(part.tool_calls)
        assert whole.text.startswith(text) and whole.thinking.startswith(thinking), raw
        if whole.text.strip() and not (whole.malformed and not whole.tool_calls):
            assert not re.search(r":f ?[({]", whole.text), raw


def random_answer(rng: random.Random) -> str:
    """Return an answer of thoughts, calls in every form and text, all of which may be damaged."""
    parts = [
        *TAGS,
        "<eos>",
        "<pad>",
        "<|think|>",
        "thought\n",
        "final\n",
        "call:f{",
        "call:f(",
        ":f{",
        ":x:f{",
        "f(",
        ":g(",
    ]
    parts += [
        "a:1",
        ",b:2",
        ", key: ",
        "a=1",
        "b:'x'",
        f"a:{QUOTE}x{QUOTE}",
        f"call:f{{a:{QUOTE}x{QUOTE}}}<tool_call|>",
    ]
    parts += ['{"name":"f"}', "<|tool_call>call:h{a:", "I ", "Icall", ", then: some words ", "12:30 ", "é" * 20]
    parts += ["\n", "\\", "<|to", *"<:{}[]()\"', "]
    chosen = rng.sample(parts, rng.randrange(3, len(parts)))
    return "".join(rng.choice(chosen) for _ in range(rng.randrange(2, 20)))


@pytest.mark.parametrize(
    "raw",
    [
        RICH,
        "<|tool_call>f{} word<tool_call|> text",  # after a space, no arguments follow
        '<|tool_call>f{a:"x\\"}y"}<tool_call|>',  # an escaped quote
        '<|tool_call>f{a:"x\\\\"}<tool_call|>',
        "<|tool_call>f{a:1},b:2, :g{} x",  # arguments after a call, and then a call
        '<|tool_call>f{a:1},b:"x\\"y"}<tool_call|> x',
        "Well. I :f{a:1}) Icall :g (b=2) <eos> <pad><turn|>",
    ],
)
def test_an_answer_that_arrives_by_character_is_split_as_at_once(raw: str) -> None:
    parser = AnswerParser(("f", "g"))
    for end in range(1, len(raw) + 1):
        parser.add(raw[end - 1])
        assert parser.answer() == parse(raw[:end], ("f", "g")), raw[:end]
    parser.end()
    assert parser.answer() == parse(raw, ("f", "g"), ended=True)


def test_an_answer_that_arrives_in_parts_is_split_as_at_once() -> None:
    """Wherever the parts are cut: in a tag, a name, a string or an escape."""
    for seed in range(4000):
        rng = random.Random(seed)
        raw = random_answer(rng)
        tools = rng.choice([None, (), ("f",), ("f", "g")])
        parser, at = AnswerParser(tools), 0
        while at < len(raw):
            end = at + rng.choice((1, 2, 3, 9, 30))
            parser.add(raw[at:end])
            at = end
            assert parser.answer() == parse(raw[:at], tools), (raw[:at], tools)
        parser.end()
        assert parser.answer() == parse(raw, tools, ended=True), (raw, tools)


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
    assert grows_linearly(opening, unit)


@pytest.mark.parametrize(
    "unit",
    [":f{}", ":f{", ":f(a", ":", "a", "a ", ":g(", ":f{'", ":f(a=1) ", "a" * 16 + ":f", ":f{},", ":f{}x", ":f{},a:1"],
)
def test_parse_time_of_calls_without_tags_is_linear(unit: str) -> None:
    assert grows_linearly("", unit, length=4_000, tools={"f"})


@pytest.mark.parametrize("unit", ['\\"', "'", "(", "=", "[", '"', '<|"|>', "a", " ", "a ", '"a\\', "\n", "1,", ":"])
def test_parse_time_of_arguments_is_linear(unit: str) -> None:
    assert grows_linearly('<|tool_call>call:f{a:"', unit, length=5_000)
    assert grows_linearly("<|tool_call>call:f{a:[", unit, length=5_000)
    assert grows_linearly("<|tool_call>call", unit, length=5_000)


def test_parse_time_does_not_grow_with_the_number_of_tools_per_mark() -> None:
    names = [f"tool_{number}" for number in range(60_000)]
    with bounded():
        assert parse(":f{" * 60_000, names).tool_calls == ()


def test_parse_time_of_padding_is_linear() -> None:
    assert grows_linearly("Hi", "<pad>", ending="", length=50_000)


def grows_linearly(
    opening: str, unit: str, ending: str = "<tool_call|>end", length: int = 10_000, tools: Any = None
) -> bool:
    """Compare with 8 times the length: the time grows by about 8 if linear, by 64 if quadratic."""

    def seconds(length: int) -> float:
        raw = opening + unit * (length // len(unit)) + ending
        start = time.process_time()
        parse(raw, tools)
        return time.process_time() - start

    # The lower limit hides the resolution of the clock. Quadratic work of this length takes far longer. One of three
    # ratios is enough, because a busy machine can slow any one of them.
    return any(seconds(8 * length) / max(seconds(length), 1e-3) < 4 * 8 for _ in range(3))
