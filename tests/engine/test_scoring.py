"""Scoring requests: log-probabilities of texts, read by the engine in the same passes as canvases."""

import math

import pytest

from gesso import Done, InputError
from gesso.engine.driver import Driver
from gesso.engine.engine import Engine
from gesso.engine.events import Failed, Scored
from gesso.engine.plan import score as scores
from gesso.engine.request import Score
from tests.backends.passes import CapturesPlainly
from tests.engine.models import watched_engine
from tests.engine.test_engine import finish, long_prompt, other_requests, request, result
from tests.likelihood import Likelihood

TEXTS = (long_prompt(90, 131), long_prompt(1, 140), long_prompt(33, 135), long_prompt(200, 133))


def score(engine, wanted, *others):
    """Step the engine until a score has ended, and return its values."""
    ids = [engine.submit(one) for one in (wanted, *others)]
    while True:
        for event in engine.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Scored) and event.request_id == ids[0]:
                return event.log_likelihoods


def reference(g, prompt, texts, piece=32):
    likelihood = Likelihood(g.model, prompt, piece)
    return tuple(likelihood.of(text) for text in texts)


@pytest.mark.parametrize("length", [1, 32, 70, 128, 300, 320])
def test_scores_equal_the_reference_bit_for_bit(tiny, length):
    """Lengths below, at and above the window of 128, and whole pieces."""
    prompt = long_prompt(length)
    expected = reference(tiny, prompt, TEXTS)
    for prefill in (32, 96, 2048):
        engine = Engine(tiny.model, tiny.decode, piece=32, prefill=prefill)
        assert score(engine, Score(prompt=prompt, texts=TEXTS)) == expected


def test_scores_equal_the_reference_with_the_default_piece(tiny):
    prompt = long_prompt(600)
    found = score(Engine(tiny.model, tiny.decode), Score(prompt=prompt, texts=(long_prompt(300, 150),)))
    assert found == reference(tiny, prompt, (long_prompt(300, 150),), piece=256)


def test_same_scores_and_same_texts_in_any_batch(tiny):
    wanted = Score(prompt=long_prompt(150), texts=TEXTS)
    alone = score(Engine(tiny.model, tiny.decode, piece=32), wanted)
    crowd = Engine(tiny.model, tiny.decode, piece=32, prefill=64)
    ids = [crowd.submit(one) for one in (*other_requests()[:6], wanted)]
    other = crowd.submit(Score(prompt=long_prompt(40, 150), texts=TEXTS[:2]))
    last = {}
    while crowd.busy:
        last |= {event.request_id: event for event in crowd.step()}
    assert last[ids[-1]].log_likelihoods == alone
    assert last[other].log_likelihoods == reference(tiny, long_prompt(40, 150), TEXTS[:2])
    for id, other in zip(ids[:-1], other_requests(), strict=False):
        assert last[id].result.tokens == result(Engine(tiny.model, tiny.decode, piece=32), other).tokens


@pytest.mark.parametrize("length", [70, 300])
def test_score_reuses_a_cached_prompt_and_leaves_it_reusable(tiny, passes, length):
    engine = Engine(tiny.model, tiny.decode, piece=32, max_batch=2)
    prompt = long_prompt(length)
    result(engine, request(prompt=prompt))
    expected = reference(tiny, prompt, TEXTS[:2])
    passes.clear()
    assert score(engine, Score(prompt=prompt, texts=TEXTS[:2])) == expected
    read = [len(piece.ids_S) for pieces in passes for piece in pieces]
    rest = length % 32
    assert read == [rest, 32, 32, 25, rest], (
        "the rest of the prompt and the first text; then the rest of the prompt only, since one token needs no reading"
    )
    after = result(engine, request(prompt=prompt))
    assert after.usage.cached_tokens == length // 32 * 32
    assert after.tokens == result(Engine(tiny.model, tiny.decode, piece=32), request(prompt=prompt)).tokens


def test_scores_share_the_prefill_budget_and_canvases_step_in_every_pass(tiny, passes):
    engine = Engine(tiny.model, tiny.decode, piece=32, prefill=64)
    mine = engine.submit(request(max_new_tokens=64))
    engine.step()
    wanted = Score(prompt=long_prompt(300), texts=TEXTS)
    scoring, reading = engine.submit(wanted), engine.submit(request(prompt=long_prompt(200), seed=3))
    passes.clear()
    finish(engine, mine)
    for pieces in passes:
        assert sum(len(piece.ids_S) for piece in pieces if piece.causal and piece.row != 0) <= 64
        assert any(not piece.causal and piece.row == 0 for piece in pieces)
    assert len(passes) > 4
    engine.cancel(scoring), engine.cancel(reading)


def test_cancelled_score_ends_before_the_next_pass(tiny):
    engine = Engine(tiny.model, tiny.decode, piece=32)
    running, waiting = (engine.submit(Score(prompt=long_prompt(20), texts=TEXTS)) for _ in range(2))
    engine.step()
    engine.cancel(running), engine.cancel(waiting)
    found = {event.request_id: event.log_likelihoods for event in engine.step()}
    assert set(found) == {running, waiting} and not engine.running
    assert all(len(values) < len(TEXTS) for values in found.values())
    assert score(engine, Score(prompt=long_prompt(20), texts=TEXTS)) == reference(tiny, long_prompt(20), TEXTS)


def test_non_finite_score_fails_alone(tiny):
    def spoiled(run, pieces, cache):
        """Spoil the text to score: it is the only one of its row without a canvas."""
        canvases = {piece.row for piece in pieces if not piece.causal}
        hidden = run(pieces, cache)
        return [hidden_SH if piece.row in canvases else hidden_SH * math.nan
                for piece, hidden_SH in zip(pieces, hidden, strict=True)]  # fmt: skip

    engine = watched_engine(tiny, run=spoiled)
    failing, fine = engine.submit(Score(prompt=(2, 200), texts=TEXTS[:1])), engine.submit(request())
    events = []
    while engine.busy:
        events += engine.step()
    last = {event.request_id: event for event in events}
    assert isinstance(last[failing], Failed) and "non-finite" in str(last[failing].error)
    assert isinstance(last[fine], Done)
    assert last[fine].result.tokens == result(Engine(tiny.model, tiny.decode), request()).tokens


def test_captured_passes_give_the_same_scores(tiny):
    backend = CapturesPlainly(tiny.model)
    engine = Engine(tiny.model, tiny.decode, piece=32, prefill=64, backend=backend)
    wanted = Score(prompt=long_prompt(300), texts=TEXTS)
    for _ in range(3):  # a pass is captured when it is needed again
        assert score(engine, wanted) == reference(tiny, wanted.prompt, TEXTS)
    assert backend.graphs.packed


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Score(prompt=(), texts=((1,),)), "prompt is empty"),
        (Score(prompt=(2,), texts=()), "nothing to score"),
        (Score(prompt=(2,), texts=((1,), ())), "nothing to score"),
        (Score(prompt=(2,), texts=((10**9,),)), "outside the vocabulary"),
        (Score(prompt=(2,), texts=((1.5,),)), "must be an integer"),
        (Score(prompt=(2,), texts=((1,),), top_logprobs=-1), "top_logprobs must be between 0 and"),
        (Score(prompt=(2,) * 8192, texts=((1, 1),)), "context overflow"),
    ],
)
def test_invalid_scores_are_rejected(tiny, wanted, words):
    with pytest.raises(InputError, match=words):
        Engine(tiny.model, tiny.decode).submit(wanted)


def test_text_that_exceeds_the_context_scores_minus_infinity(tiny):
    limit = tiny.engine.max_length
    run = Driver(tiny.engine).submit(scores((2,) * (limit - 1), [(5, 6, 7), (), (5, 6, 7)], limit, None))
    assert run.ended and run.outcome() == [-float("inf"), 0.0, -float("inf")]
