"""`gesso chat`: over a pipe and on a terminal, its commands, thoughts and interrupts."""

import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import gesso
from gesso.chat.answer import Answer
from gesso.chat.calls import ToolCall
from gesso.cli import chat, delivery
from tests.cli.test_cli import ENDLESS, HIDE, SHORT, SHOW, Main, Terminal
from tests.watched import Watched

pytestmark = pytest.mark.usefixtures("environment")


def answers(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


def test_chat_over_a_pipe_answers_every_line_with_history(main: Main, tiny: gesso.Gesso) -> None:
    done = main("chat", *SHORT, "--json", "--system", "Be brief.", stdin="one\n\ntwo\n")
    first, second = answers(done.out)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    expected = tiny.chat(messages, steps=2, max_new_tokens=8, seed=3)
    assert done.code == 0
    assert (first["text"], first["thinking"]) == (expected.text, expected.thinking)
    assert first["malformed_calls"] == list(expected.malformed_calls)
    messages += [{"role": "assistant", "content": expected.text}, {"role": "user", "content": "two"}]
    assert second["tokens"] == list(tiny.chat(messages, steps=2, max_new_tokens=8, seed=3).tokens)


def test_chat_without_json_prints_only_the_answers(main: Main) -> None:
    expected = answers(main("chat", *SHORT, "--json", stdin="one\ntwo\n").out)
    done = main("chat", *SHORT, "--no-thinking", stdin="one\ntwo\n")
    assert done.code == 0
    assert done.out == "".join(answer["text"] + "\n" for answer in expected)


def test_chat_prints_the_calls_of_its_tools_as_json(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    (tmp_path / "tools.json").write_text(json.dumps(tools), encoding="utf-8")
    seen: list[Any] = []

    def called(self: gesso.Gesso, result: Any, tools: Any = None) -> Answer:
        seen.append(tools)
        return Answer("Sure.", "", (ToolCall("add", {"a": 1}),), complete=True)

    monkeypatch.setattr(gesso.Gesso, "read_answer", called)  # an untrained model calls no tools
    done = main("chat", *SHORT, "--tools", str(tmp_path / "tools.json"), stdin="one\ntwo\n")
    assert done.code == 0, done.err
    assert done.out == 2 * 'Sure.\n{"name": "add", "arguments": {"a": 1}}\n'
    assert seen == [tools, tools]


def test_chat_reset_clears_the_conversation(main: Main) -> None:
    first, second, third = answers(main("chat", *SHORT, "--json", stdin="one\none\n/reset\none\n").out)
    assert first["tokens"] == third["tokens"]
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"] == third["usage"]["prompt_tokens"]


def test_chat_retry_uses_the_next_seed(main: Main) -> None:
    found = answers(main("chat", *SHORT, "--json", stdin="one\n/retry\n/seed 3\n/retry\n/seed 7\n/retry\n").out)
    assert [answer["seed"] for answer in found] == [3, 4, 3, 7]
    assert found[0]["tokens"] == found[2]["tokens"] != found[1]["tokens"]
    assert len({answer["usage"]["prompt_tokens"] for answer in found}) == 1


def test_chat_commands_answer_on_stderr(main: Main) -> None:
    done = main("chat", *SHORT, "--json", stdin="/paint\n/seed x\n/retry\n/help\n/exit\none\n")
    assert (done.code, done.out) == (0, "")
    for said in ("gesso: no such command: /paint", "/seed x", "nothing to retry", "/reset "):
        assert said in done.err


def test_thoughts_go_to_stderr(tiny: gesso.Gesso, capsys: pytest.CaptureFixture[str]) -> None:
    result = tiny.generate("hi", steps=1, max_new_tokens=1)
    delivery.deliver(
        result, as_json=False, writing=tiny.writing, answer=Answer("", "let me\x07 see", (), complete=True)
    )
    output = capsys.readouterr()
    assert output.out == result.text + "\n"
    assert output.err.startswith("let me␇ see\n")


def test_interrupted_answer_leaves_the_conversation_unchanged(tiny: gesso.Gesso) -> None:
    stops: list[bool] = []

    def events(events: Callable[..., Iterator[Any]], request: Any, **given: Any) -> Iterator[Any]:
        for event in events(request, **given):
            yield event
            if stops:
                raise KeyboardInterrupt

    def talk(*lines: str) -> chat.Conversation:
        model = cast(gesso.Gesso, Watched(tiny, events=events))
        conversation = chat.Conversation(model, {"steps": 2, "max_new_tokens": 8, "seed": 3}, system=None)
        for line in lines:
            conversation.handle(line)
        return conversation

    conversation = talk("one")
    for line in ("two", "/retry"):
        stops.append(True)
        with pytest.raises(KeyboardInterrupt):
            conversation.handle(line)
        stops.clear()
        assert conversation.messages == talk("one").messages
    conversation.handle("three")
    assert conversation.messages == talk("one", "three").messages


def test_ctrl_c_stops_an_answer_then_the_chat() -> None:
    terminal = Terminal("chat", *ENDLESS)
    terminal.read(until="> ")
    terminal.type("hello\n")
    terminal.read(until="step 2/")
    terminal.interrupt()
    terminal.read(until="stopped")
    terminal.read(until="> ")
    terminal.type("/paint\n")
    terminal.read(until="no such command")
    terminal.read(until="> ")
    time.sleep(0.3)  # readline prints its prompt shortly before it handles signals
    terminal.interrupt()
    terminal.read(until="once more")
    terminal.read(until="> ")
    time.sleep(0.3)
    terminal.interrupt()
    assert terminal.end() == 130
    assert terminal.output.rindex(SHOW) > terminal.output.rindex(HIDE)
    assert "Traceback" not in terminal.output


def test_ctrl_d_ends_the_chat(main: Main) -> None:
    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    done = main("chat", *SHORT, stdin=Keyboard())
    assert (done.code, done.out) == (0, "")
    assert done.err.endswith("> \n"), "the prompt is on stderr when stdout is not a terminal"


def test_a_pasted_text_is_one_message_and_ctrl_c_at_the_prompt_keeps_the_conversation() -> None:
    terminal = Terminal("chat", *SHORT, "--no-live")
    terminal.read(until="> ")
    time.sleep(0.3)  # readline prints its prompt shortly before it handles keys and signals
    terminal.type("\x1b[200~one\ntwo\nthree\x1b[201~")
    time.sleep(0.3)
    terminal.type("\r")
    terminal.read(until="seed 3")
    terminal.read(until="> ")
    time.sleep(0.3)
    terminal.type("\x1b[A")  # the arrow upwards
    terminal.read(until="three")
    terminal.type("\r")
    terminal.read(until="seed 3")
    terminal.read(until="> ")
    assert terminal.output.count("seed 3") == 2, "each line would have been a message"
    terminal.type("half a mess")
    terminal.read(until="half a mess")
    time.sleep(0.3)
    terminal.interrupt()
    terminal.read(until="once more")
    terminal.read(until="> ")
    terminal.type("hello\n")
    terminal.read(until="seed 3")
    terminal.read(until="> ")
    time.sleep(0.3)
    terminal.interrupt()
    terminal.read(until="once more")  # a message came between: this is a first Ctrl-C again
    terminal.read(until="> ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_the_first_line_of_a_chat_says_which_model_it_is() -> None:
    assert chat.introduction("gesso-mini").startswith("This is gesso-mini, a demo model of 11M parameters")
    assert chat.introduction("checkpoints/mine").startswith("This is checkpoints/mine. /help")
