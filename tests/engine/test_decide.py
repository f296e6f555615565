"""Decisions: choices compared in one pass of the engine, from Python and from the command line.

C canvas, V vocabulary.
"""

import json
import math

import pytest
import torch

from gesso import InputError
from gesso.diffusion.noise import HashSource
from gesso.engine.engine import Engine
from gesso.engine.events import Failed, Scored
from tests.engine.models import watched_engine
from tests.engine.test_engine import other_requests, request, result

MESSAGES = [{"role": "user", "content": "Is seven odd?"}]
CHOICES = ("yes", "no", "maybe")


@torch.no_grad()
def reference(g, prompt, texts, eos, length):
    """The scores of texts by the plain model, apart from the engine."""
    cache = g.model.new_cache(1, len(prompt))
    g.model.encode(torch.tensor([prompt]), cache)
    noise_C = HashSource().at(0, 0, 0, g.model.device).tokens(length, g.config.vocab_size)
    log_CV = g.model.denoise(noise_C[None], cache)[0].log_softmax(-1)
    ends = [log_CV[len(text), sorted(eos)].logsumexp(0).item() if eos else 0.0 for text in texts]
    return [sum(log_CV[i, token].item() for i, token in enumerate(text)) + end
            for text, end in zip(texts, ends, strict=True)]  # fmt: skip


@pytest.mark.parametrize("prompt", [MESSAGES, "Is seven odd?"])
def test_scores_of_choices_are_those_of_one_prediction_by_the_plain_model(tiny, passes, prompt):
    passes.clear()
    decision = tiny.decide(prompt, CHOICES)
    assert len(passes) == 1, "prefill and canvas are one pass"
    (canvas,) = [piece.ids_S for piece in passes[0] if not piece.causal]
    ids = tiny.tokenizer.encode(prompt) if isinstance(prompt, str) else tiny.tokenizer.chat(prompt).tokens
    texts = [tiny.tokenizer.encode(choice, bos=False) for choice in CHOICES]
    eos = () if isinstance(prompt, str) else tiny.defaults.eos_token_ids
    expected = reference(tiny, ids, texts, eos, len(canvas))
    assert list(decision.scores.values()) == pytest.approx(expected, abs=1e-3)
    total = sum(map(math.exp, expected))
    assert decision.probabilities == pytest.approx(
        {choice: math.exp(score) / total for choice, score in zip(CHOICES, expected, strict=True)}, abs=1e-3
    )
    assert decision.choice == CHOICES[decision.index] == max(decision.probabilities, key=decision.probabilities.get)
    assert decision.usage.prompt_tokens == len(ids) and decision.usage.denoising_steps == 1


def test_same_decision_in_any_batch_and_with_a_cached_prompt(tiny):
    texts = [tiny.tokenizer.encode(choice, bos=False) for choice in CHOICES]
    wanted = tiny.decision_request("a b c " * 60, texts)

    def scores(engine, *others):
        ids = [engine.submit(one) for one in (*others, wanted)]
        while True:
            for event in engine.step():
                assert not isinstance(event, Failed), event
                if event.request_id == ids[-1]:
                    assert isinstance(event, Scored)
                    return event.log_likelihoods

    engine = Engine(tiny.model, tiny.decode, piece=32)
    alone = scores(engine)
    assert scores(engine) == alone
    crowd = Engine(tiny.model, tiny.decode, piece=32, prefill=64)
    assert scores(crowd, *other_requests()[:5]) == alone


def test_cancelled_decision_ends_without_scores(tiny):
    engine = Engine(tiny.model, tiny.decode)
    id = engine.submit(tiny.decision_request("x", [(5,), (6,)]))
    engine.cancel(id)
    (event,) = engine.step()
    assert isinstance(event, Scored) and event.log_likelihoods == () and not engine.running


def test_non_finite_decision_fails_alone(tiny):
    def spoiled(run, pieces, cache):
        hidden = run(pieces, cache)
        return [hidden_SH if piece.row else hidden_SH * math.nan
                for piece, hidden_SH in zip(pieces, hidden, strict=True)]  # fmt: skip

    engine = watched_engine(tiny, run=spoiled)  # the decision is in row 0
    failing, fine = engine.submit(tiny.decision_request("x", [(5,), (6,)])), engine.submit(request())
    last = {}
    while engine.busy:
        last |= {event.request_id: event for event in engine.step()}
    assert isinstance(last[failing], Failed) and "non-finite" in str(last[failing].error)
    assert last[fine].result.tokens == result(Engine(tiny.model, tiny.decode), request()).tokens


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ("yes", "list of texts"),
        (["yes"], "2 to 256 texts, got 1"),
        ([str(n) for n in range(257)], "got 257"),
        (["yes", ""], "at least one character"),
        (["yes", "no", "yes"], "'yes' is given twice"),
        (["yes", "x" * 5000], "fit a canvas: shorten it"),
        (["yes", "yes, please"], "one choice begins another"),
    ],
)
def test_invalid_choices_are_rejected(tiny, choices, words):
    with pytest.raises(InputError, match=words):
        tiny.decide("Well?", choices)


def test_whole_answers_may_begin_another_and_empty_prompts_are_rejected(tiny):
    decision = tiny.decide(MESSAGES, ["yes", "yes, please"])
    assert sum(decision.probabilities.values()) == pytest.approx(1)
    with pytest.raises(InputError, match="prompt is empty"):
        tiny.decide("", ["a", "b"])


def test_gesso_decide_prints_the_probability_of_each_choice(main, tiny_directory):
    arguments = ("decide", "Is seven odd?", "--choice", "yes", "--choice", "no", "--model", str(tiny_directory))
    found = json.loads(main(*arguments, "--json").out)
    assert found["choice"] == ("yes", "no")[found["index"]]
    lines = main(*arguments).out.splitlines()
    assert lines == [f"{100 * p:5.1f} %  {choice}" for choice, p in found["probabilities"].items()]


def test_gesso_decide_asks_a_question_or_continues_a_text(main, tiny, tiny_directory):
    prompt, choices = "Is seven odd?", ["yes", "no"]
    arguments = ("decide", prompt, "--choice", "yes", "--choice", "no", "--json", "--model", str(tiny_directory))
    asked = tiny.decide([{"role": "user", "content": prompt}], choices).probabilities
    continued = tiny.decide(prompt, choices).probabilities
    assert asked != continued
    assert json.loads(main(*arguments).out)["probabilities"] == asked
    assert json.loads(main(*arguments, "--continue").out)["probabilities"] == continued
