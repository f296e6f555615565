"""Where a text ends: end-of-text tokens, stop strings, pins and empty answers."""

from dataclasses import replace

import pytest
import torch

from gesso import Commit
from gesso.diffusion.canvas import Process
from gesso.diffusion.noise import HashSource
from gesso.diffusion.prediction import Prediction
from gesso.engine.engine import Engine
from gesso.settings import Diffusion
from tests.engine_requests import SMALL, finish, request, result


def test_a_text_ends_before_its_first_eos(engine):
    whole = result(engine, request()).tokens
    eos = whole[21]
    answer = result(engine, request(eos=frozenset({eos})))
    assert answer.tokens == whole[: whole.index(eos)]
    assert answer.finish_reason == "stop"


def test_a_text_ends_before_its_first_stop_string(engine, tiny):
    whole = result(engine, request())
    stop = whole.text[25:28]
    answer = result(engine, request(stop=("never to be found", stop, whole.text[27:29])))
    cut = min(whole.text.find(stop), whole.text.find(whole.text[27:29]))
    assert answer.text == whole.text[:cut]
    assert answer.finish_reason == "stop" and whole.text.startswith(answer.stop, cut) and whole.stop is None
    assert tiny.decode(answer.tokens).startswith(answer.text)


def test_commits_join_to_the_text_if_a_canvas_splits_a_character(engine):
    """The euro sign has three bytes, so three tokens, and 16 is not a multiple of three."""
    euro = [128 + byte for byte in "€".encode()]
    pins = {position: euro[position % 3] for position in range(48)}
    events = finish(engine, engine.submit(request(max_new_tokens=48, pins=pins)))[0]
    commits = [event.text for event in events if isinstance(event, Commit)]
    assert len(commits) == 3
    assert "".join(commits) == events[-1].result.text == "€" * 16


def test_eos_settles_ignores_positions_after_the_eos(tiny):
    """All positions up to the eos are pinned and the others never settle, so one step is enough."""
    settings = replace(SMALL, confidence=1e-9, steps=12)
    pinned = {"pins": {0: 140, 1: 141, 2: 7}, "eos": frozenset({7}), "max_new_tokens": 16}
    strict = result(Engine(tiny.model, tiny.decode), request(diffusion=settings, **pinned))
    relaxed = result(Engine(tiny.model, tiny.decode), request(diffusion=replace(settings, eos_settles=True), **pinned))
    assert strict.tokens == relaxed.tokens == (140, 141)
    assert (strict.usage.denoising_steps, relaxed.usage.denoising_steps) == (12, 1)


def test_an_empty_answer_is_redrawn_once_and_counted_in_usage(engine):
    first = result(engine, request())
    again = result(engine, request(never_first=frozenset({first.tokens[0]})))
    assert (first.usage.redrawn, again.usage.redrawn) == (0, 1)
    assert again.tokens != first.tokens
    everything = result(engine, request(never_first=frozenset(range(384))))
    assert everything.usage.redrawn == 1, "an answer is redrawn at most once"
    assert everything.tokens == again.tokens, "the second draw depends only on the seed"


def test_eos_settles_needs_a_settled_eos(tiny):
    """A canvas continues in the step in which its eos first appears, and may stop one step later."""
    process = Process(
        settings=Diffusion(steps=9, stability=1, confidence=9.0, eos_settles=True), source=HashSource(), seed=0,
        vocab_size=384, eos=frozenset({7}), device=torch.device("cpu"),
    )  # fmt: skip
    canvas = process.blank(0, 4, {})
    reasons = []
    for argmax in ([5, 6, 9, 9], [5, 7, 8, 8], [5, 7, 1, 2]):
        column = torch.tensor(argmax)
        prediction = Prediction(column, column, torch.ones(4), torch.full((4,), 0.1))
        canvas = process.advance(canvas, prediction)
        reasons.append(canvas.reason)
    assert reasons == [None, None, "converged"]


@pytest.mark.parametrize("stop", ["END", "zEND", "€END"])
def test_a_stop_string_is_found_across_canvases_and_multibyte_characters(tiny, stop):
    written = "price €€€zEND and more" if stop != "€END" else "price €€€END and more text"
    ids = tiny.tokenizer.encode(written, bos=False)
    for canvas_length in (4, 5, 9, 64):
        settings = replace(SMALL, canvas_length=canvas_length)
        wanted = request(max_new_tokens=len(ids), pins=dict(enumerate(ids)), stop=(stop, "NDx"), diffusion=settings)
        events = finish(engine := Engine(tiny.model, tiny.decode), engine.submit(wanted))[0]
        text = written[: written.index(stop)]
        assert events[-1].result.text == text
        assert tiny.decode(events[-1].result.tokens).startswith(text)
        assert "".join(event.text for event in events if isinstance(event, Commit)) == text


def test_a_text_does_not_end_before_its_last_pin(engine):
    whole = result(engine, request()).tokens
    answer = result(engine, request(pins={30: 150}, eos=frozenset({*whole[:20]})))
    assert len(answer.tokens) > 30
    assert answer.tokens[30] == 150
