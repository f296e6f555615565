"""Errors in a pass: only the request that causes one fails, and the texts of the others do not change."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from gesso import Done
from gesso.engine.engine import Engine
from gesso.engine.events import Failed
from gesso.engine.faults import is_fatal
from gesso.engine.request import Score
from gesso.settings import Diffusion
from tests.engine.models import watched_engine
from tests.engine.test_engine import long_prompt, request, result

BAD = 250  # a token at which the model fails
BAD_TEMPERATURE = 0.75  # of a request whose predictions are spoiled; exact in float32


class FailingPasses:
    """Passes that fail if they read the token BAD, after a part of the cache was written. `sizes`: their pieces."""

    def __init__(self):
        self.sizes = []

    def run(self, run, pieces, cache):
        if any(piece.causal and BAD in piece.ids_S.tolist() for piece in pieces):
            run(pieces[:1], cache)
            self.sizes.append(len(pieces))
            raise RuntimeError("bad token")
        return run(pieces, cache)


def outcome(engine, wanted):
    """Return the last event of each request, in order."""
    ids, last = [engine.submit(one) for one in wanted], {}
    while engine.busy:
        last |= {event.request_id: event for event in engine.step()}
    return [last[id] for id in ids]


def others():
    """Return requests with short and long prompts and several canvases, and a score."""
    return [
        request(seed=1, max_new_tokens=48),
        request(seed=2, prompt=long_prompt(300)),
        request(seed=3, prompt=long_prompt(70, 150)),
        Score(prompt=long_prompt(200), texts=(long_prompt(50, 140), long_prompt(40, 150))),
    ]


def text_of(event):
    return event.result.tokens if isinstance(event, Done) else event.log_likelihoods


def bad_prompt(length, at):
    prompt = [token if token != BAD else BAD + 1 for token in long_prompt(length)]
    return (*prompt[:at], BAD, *prompt[at:])


def clean(one):
    """Return the request without the bad token, which some prompts contain by chance."""

    def swap(tokens):
        return tuple(token if token != BAD else BAD + 1 for token in tokens)

    if isinstance(one, Score):
        return Score(prompt=swap(one.prompt), texts=tuple(map(swap, one.texts)))
    return replace(one, prompt=swap(one.prompt))


@pytest.fixture(scope="module")
def alone(tiny):
    """What each of the other requests gives alone."""
    fine = map(clean, others())
    return [text_of(*outcome(Engine(tiny.model, tiny.decode, piece=32, prefill=96), [one])) for one in fine]


@pytest.mark.parametrize(("at", "place"), [(0, 2), (170, 4)])
def test_a_failing_request_fails_alone_at_any_place_in_the_batch(tiny, alone, at, place):
    """The error is in the first or a middle piece of its prompt, while other prompts are read."""
    fine = list(map(clean, others()))
    culprit = request(seed=9, prompt=bad_prompt(300, at))
    failing = FailingPasses()
    engine = watched_engine(tiny, {"piece": 32, "prefill": 96}, run=failing.run)
    events = outcome(engine, [*fine[:place], culprit, *fine[place:]])
    failed = events.pop(place)
    assert isinstance(failed, Failed) and str(failed.error) == "bad token"
    assert max(failing.sizes) > 1, "the first failure must be in a pass with other requests"
    assert [text_of(event) for event in events] == alone
    again = clean(request(seed=4, prompt=long_prompt(300)))
    assert result(engine, again).tokens == result(Engine(tiny.model, tiny.decode, piece=32), again).tokens


def test_a_request_that_fails_alone_is_not_retried(tiny):
    failing = FailingPasses()
    (event,) = outcome(watched_engine(tiny, run=failing.run), [request(prompt=(2, BAD))])
    assert isinstance(event, Failed) and failing.sizes == [2]


def test_fatal_device_errors_are_raised(tiny):
    def poisoned(run, pieces, cache):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    engine = watched_engine(tiny, run=poisoned)
    engine.submit(request()), engine.submit(request(seed=6))
    with pytest.raises(torch.AcceleratorError):
        engine.step()
    assert is_fatal(RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"))
    assert not is_fatal(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_fatal(RuntimeError("Triton Error [CUDA]: out of memory"))
    assert not is_fatal(MemoryError())


def test_out_of_memory_frees_captured_passes_and_retries_requests_one_by_one(tiny):
    wanted = [request(seed=seed, max_new_tokens=16) for seed in range(3)]
    expected = [result(Engine(tiny.model, tiny.decode), one).tokens for one in wanted]
    freed = []

    def full(run, pieces, cache):
        if len({piece.row for piece in pieces}) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(pieces, cache)

    engine = watched_engine(tiny, run=full, drop_captured=lambda drop: freed.append(True))
    assert [text_of(event) for event in outcome(engine, wanted)] == expected
    assert freed


@pytest.fixture
def without_gc():
    """Disable the garbage collector: memory must be freed at once, not when it next runs."""
    gc.disable()
    yield
    gc.enable()


def test_tensors_of_a_failed_pass_are_freed_before_its_requests_are_retried(tiny, without_gc):
    """After an out-of-memory error, a retry can only succeed once they are freed."""
    refs, kept = [], []

    def count_kept(*_):
        kept.append(sum(ref() is not None for ref in refs))

    def full(run, pieces, cache):
        count_kept()
        activation = torch.zeros(8)
        refs.append(weakref.ref(activation))
        if len({piece.row for piece in pieces}) > 1 or len(refs) in (2, 3):  # all together, and two of them alone
            try:
                raise KeyError("first")
            except KeyError:
                raise torch.OutOfMemoryError("CUDA out of memory")  # noqa: B904
        return run(pieces, cache)

    engine = watched_engine(tiny, run=full, drop_captured=count_kept)
    ids = [engine.submit(request(seed=seed, max_new_tokens=16)) for seed in range(3)]
    events = engine.step()
    assert [event.request_id for event in events if isinstance(event, Failed)] == ids[:2]
    assert kept == [0] * 5, "at the pass, when memory is freed, and at each of three retries"
    assert not any(ref() for ref in refs)
    while engine.busy:
        engine.step()


def test_the_error_of_a_request_holds_no_tensors_of_its_pass(tiny, without_gc):
    refs = []

    def watched(run, pieces, cache):
        hidden = run(pieces, cache)
        refs.extend(map(weakref.ref, hidden))
        return hidden

    def fails(canvas_C, prediction, moment):
        raise ValueError("no sampler at all")

    engine = watched_engine(tiny, run=watched)
    (event,) = outcome(engine, [request(diffusion=Diffusion(canvas_length=16, sampler=fails))])
    assert isinstance(event, Failed)
    assert refs and not any(ref() for ref in refs)
    assert "raise ValueError(" in event.error.__notes__[0], "the traceback is kept as text"


@pytest.mark.parametrize(("name", "value"), [("entropy_C", float("nan")), ("confidence_C", float("inf"))])
def test_a_request_with_a_non_finite_prediction_fails_alone(tiny, name, value):
    one, bad, two = (request(seed=seed, max_new_tokens=16) for seed in (1, 13, 2))
    bad = replace(bad, diffusion=replace(bad.diffusion, t_max=BAD_TEMPERATURE, t_min=BAD_TEMPERATURE))
    expected = [result(Engine(tiny.model, tiny.decode), fine).tokens for fine in (one, two)]

    def spoiled(predict, hidden_TH, temperature_T, *given):
        prediction = predict(hidden_TH, temperature_T, *given)
        rows = (temperature_T == BAD_TEMPERATURE).nonzero().flatten().tolist()
        if rows:
            getattr(prediction, name)[rows[3]] = value
        return prediction

    first, failed, last = outcome(watched_engine(tiny, predict=spoiled), [one, bad, two])
    assert isinstance(failed, Failed) and isinstance(failed.error, RuntimeError)
    assert "non-finite prediction" in str(failed.error) and "position 3" in str(failed.error)
    assert [text_of(first), text_of(last)] == expected
