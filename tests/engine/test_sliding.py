"""A sliding canvas commits its settled prefix early and continues with its open positions."""

from dataclasses import replace

import pytest

from gesso.diffusion.sliding import slide
from gesso.engine.engine import Engine
from gesso.engine.events import Commit, Draft
from gesso.errors import InputError
from tests.engine_requests import SMALL, finish, other_requests, request

SLIDES = replace(SMALL, settle=1, slide=2, confidence=2.0)
PINS = {0: 140, 20: 141, 39: 142}


def test_a_settled_prefix_is_committed_before_the_rest_of_its_canvas(tiny):
    (events,) = finish(engine := Engine(tiny.model, tiny.decode), engine.submit(request(diffusion=SLIDES, pins=PINS)))
    commits = [event for event in events if isinstance(event, Commit)]
    tokens = tuple(token for commit in commits for token in commit.tokens)
    assert tokens == events[-1].result.tokens and len(tokens) == 40
    assert {at: tokens[at] for at in PINS} == PINS
    assert any(len(commit.tokens) < 16 for commit in commits[:-1]), "only the last whole canvas may be shorter"
    assert len({commit.index for commit in commits}) == len(commits)


def test_open_positions_keep_their_state_when_the_canvas_slides(tiny):
    engine = Engine(tiny.model, tiny.decode)
    (events,) = finish(engine, engine.submit(request(diffusion=SLIDES, pins=PINS)))
    at = next(i for i, event in enumerate(events) if isinstance(event, Commit) and len(event.tokens) < 16)
    draft, count = events[at - 1], len(events[at].tokens)
    assert isinstance(draft, Draft)
    process = engine._start(draft.request).process
    after = slide(process, draft.canvas, count, 16, {})
    kept = 16 - count
    for name in ("tokens_C", "pin_C", "soft_CH", "steady_C", "settled_C"):
        assert getattr(after, name)[:kept].equal(getattr(draft.canvas, name)[count:]), name
    assert after.step == max(0, draft.canvas.step - -(-SLIDES.steps * count // 16))


def test_a_sliding_text_is_the_same_in_any_batch(tiny):
    wanted = request(diffusion=SLIDES, pins=PINS)
    alone = finish(engine := Engine(tiny.model, tiny.decode), engine.submit(wanted))[0][-1].result
    engine = Engine(tiny.model, tiny.decode)
    ids = [engine.submit(each) for each in [*other_requests(), wanted]]
    assert finish(engine, *ids)[-1][-1].result == alone


def test_a_canvas_slides_only_with_settled_tokens():
    with pytest.raises(InputError, match="slide must be 0 without settle"):
        replace(SMALL, slide=2)
