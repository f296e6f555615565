"""The deltas of an answer in a chat: together they are the answer, and they cost as much as one look at it."""

import random

import pytest

from gesso.serve.deltas import AnswerDeltas
from gesso.serve.wire import Ended
from tests.chat.test_answer import random_answer
from tests.waiting import bounded


def ended(tiny, tokens):
    return Ended(id=0, text=tiny.decode(tokens), tokens=tokens, finish_reason="length", seed=0, usage={})


@pytest.mark.parametrize("one_call", [False, True])
def test_deltas_add_up_to_the_answer(tiny, one_call):
    for seed in range(150):
        rng = random.Random(seed)
        tokens = tiny.tokenizer.encode(random_answer(rng), bos=False)
        deltas = AnswerDeltas(tiny.tokenizer, chat=True, tools=("f", "g"), one_call=one_call)
        sent, at = [], 0
        while at < len(tokens):
            end = at + rng.choice((1, 2, 7, 20))
            sent.append(deltas.settle(tokens[at:end]))
            at = end
        sent.append(deltas.end(ended(tiny, tokens)))
        assert deltas.final == deltas.answer(ended(tiny, tokens))
        assert "".join(delta.text for delta in sent) == deltas.final.text
        assert "".join(delta.thinking for delta in sent) == deltas.final.thinking
        assert tuple(call for delta in sent for call in delta.calls) == deltas.final.tool_calls


@pytest.mark.parametrize(
    ("opening", "unit"),
    [
        ("", ":g{"),
        ("", ":f{}"),
        ("", "<|tool_call>f{a:1}<tool_call|>"),
        ("<|tool_call>f{}", ",a:1"),
        ("<|tool_call>f{a:", "["),
        ("", "<pad>"),
    ],
)
def test_the_work_for_an_event_does_not_grow_with_the_answer(tiny, opening, unit):
    """Otherwise this takes minutes: each answer arrives in 30,000 events."""
    tokens = tiny.tokenizer.encode(opening + unit * 30_000, bos=False)[:30_000]
    deltas = AnswerDeltas(tiny.tokenizer, chat=True, tools=("f",))
    with bounded():
        for token in tokens:
            deltas.settle([token])
