"""Training rows of conversations: whole sentences, values of tool results, and no question of the evaluation."""

import json
import random
import re
from typing import Any

import pytest

import gesso
from examples.mini import off_topic as evaluation
from examples.mini.questions import QUESTIONS, is_held_out
from examples.structured import off_topic as messages
from examples.structured.chat import training_rows
from examples.structured.tool_results import tool_exchange
from gesso.chat.answer import parse
from gesso.chat.calls import ToolCall
from gesso.chat.tokenizer import Tokenizer
from gesso.train.rows import tokenise


@pytest.fixture(scope="module")
def mini() -> Tokenizer:
    return Tokenizer.from_directory(gesso.bundled.directory())


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(training_rows(600, seed=5))


def test_no_question_of_the_evaluation_is_in_the_rows(rows):
    assert len(QUESTIONS) == 100 and all(is_held_out(question.upper().strip("?.") + "!") for question in QUESTIONS)
    assert not [message for row in rows for message in row["messages"] if is_held_out(message["content"])]


def test_a_message_that_contains_a_held_out_question_is_drawn_again(monkeypatch):
    drawn = {messages.off_topic(random.Random(n))[0] for n in range(50)}
    # The held-out questions are so rare that no test would draw one.
    monkeypatch.setattr(messages, "is_held_out", lambda text: text in drawn)
    assert not drawn & {messages.off_topic(random.Random(n))[0] for n in range(50)}


def test_the_learnt_spans_of_chat_rows_are_their_answers(mini, rows):
    kinds = set()
    for row in json.loads(json.dumps(rows)):
        tokens, spans, context_only = tokenise(row, mini, 1)
        answers = [message for message in row["messages"] if message["role"] == "assistant"]
        assert (len(spans), context_only, spans[-1][1]) == (len(answers), 0, len(tokens))
        # The tokens before the last span are the prompt of generation at that turn.
        assert tokens[: spans[-1][0]] == mini.chat(row["messages"][:-1], tools=row.get("tools")).tokens
        for (start, end), message in zip(spans, answers, strict=True):
            answer = parse(mini.decode(tokens[start:end], special=True))
            calls = [call["function"] for call in message.get("tool_calls", ())]
            assert answer.tool_calls == tuple(ToolCall(call["name"], call["arguments"]) for call in calls)
            assert answer.text == message["content"]
        kinds.add(("tools" in row, row["messages"][-2]["role"], len(answers) > 1))
    assert {(False, "user", False), (True, "user", False), (True, "tool", True), (False, "user", True)} <= kinds


def test_chat_rows_fit_into_a_training_example_and_a_canvas(mini, rows):
    tokenised = [tokenise(row, mini, 1) for row in rows]
    assert max(len(tokens) for tokens, *_ in tokenised) <= 512
    assert max(end - start for _, spans, _ in tokenised for start, end in spans) <= 64


def test_a_mistyped_message_is_not_empty():
    assert all(messages._mistyped(text, random.Random(n)) for text in ("a", "ab", "abc") for n in range(20))


def test_every_answer_about_another_topic_is_a_whole_sentence_without_call_syntax():
    assert not [answer for answer in messages.ANSWERS.values() if evaluation.flaws(parse(answer))]


def test_the_answer_to_a_tool_result_is_a_sentence_with_the_values_of_the_result():
    repeated = 0
    for n in range(300):
        tool, (_, call, result, answer) = tool_exchange(random.Random(n))
        assert call["tool_calls"][0]["function"]["name"] == result["name"] == tool["function"]["name"]
        assert not evaluation.flaws(parse(answer["content"]))
        values = re.findall(r"\d+", result["content"])
        repeated += bool(values) and all(value in answer["content"] for value in values)
    assert repeated > 120


@pytest.mark.parametrize(("text", "flawed"), [("I do not know.", 0), ("", 1), ("I do not", 1), ("call:f{}.", 1)])
def test_answers_with_a_flaw_are_counted(capsys, text, flawed):
    assert evaluation.report([("Why?", parse(text))], samples=10) == flawed
    said = capsys.readouterr().out
    assert all(name in said for name in ("blank", "no end punctuation", "call syntax"))
