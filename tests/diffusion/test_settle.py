"""A prefix that settles is final: it is never taken back, whoever watches."""

import re
from dataclasses import replace

import pytest

from gesso.engine.engine import Engine
from gesso.engine.events import Commit, Done, Draft
from gesso.engine.request import Request
from gesso.settings import Diffusion

# Cold enough for the tiny model to be sure of something, warm enough for it to change its mind.
SETTLING = Diffusion(canvas_length=16, steps=10, t_max=0.3, t_min=0.1, entropy_bound=1.0, confidence=0.5, settle=1)
PROMPT = (2, 200, 210, 220)


def letters(tokens):
    """Every token a character of its own: text tells all there is to tell."""
    return "".join(chr(0x400 + token) for token in tokens)


def request(**changes):
    return Request(**{"prompt": PROMPT, "max_new_tokens": 40, "diffusion": SETTLING, "seed": 5} | changes)


def run(engine, *wanted):
    """All events of each request."""
    ids = [engine.submit(one) for one in wanted]
    events = {i: [] for i in ids}
    while not all(events[i] and isinstance(events[i][-1], Done) for i in ids):
        for event in engine.step():
            events[event.request_id].append(event)
    return [events[i] for i in ids]


def drafts(events):
    return [event for event in events if isinstance(event, Draft)]


@pytest.mark.parametrize("settle", [1, 3])
def test_what_stands_only_grows_and_is_the_beginning_of_the_result(tiny, settle):
    early = 0
    for seed in range(8):
        events = run(Engine(tiny.model, letters), request(seed=seed, diffusion=replace(SETTLING, settle=settle)))[0]
        result = events[-1].result
        before = ()
        for draft in drafts(events):
            assert draft.standing[: len(before)] == before
            assert result.tokens[: len(draft.standing)] == draft.standing
            before = draft.standing
            early += draft.canvas.reason is None and len(draft.standing) > len(draft.before)
    assert early > 0  # else nothing was tested


def test_a_settled_position_keeps_its_token_to_the_end_of_the_canvas(tiny):
    events = drafts(run(Engine(tiny.model, letters), request(max_new_tokens=16))[0])
    for at, draft in enumerate(events):
        final = draft.canvas.final
        for later in events[at:]:
            assert later.tokens[:final] == draft.tokens[:final]
            assert later.canvas.tokens_C[:final].tolist() == draft.tokens[:final]


def test_without_settle_nothing_stands_before_its_canvas(tiny):
    events = run(Engine(tiny.model, letters), request(diffusion=replace(SETTLING, settle=0)))[0]
    assert all(draft.standing == draft.before for draft in drafts(events))


def test_a_position_settles_after_as_many_steps_as_asked(tiny):
    for settle in (1, 2, 3):
        settings = replace(SETTLING, settle=settle)
        wanted = [request(seed=seed, diffusion=settings, max_new_tokens=16) for seed in range(64)]
        found = [draft for events in run(Engine(tiny.model, letters), *wanted) for draft in drafts(events)]
        settled = [draft for draft in found if draft.canvas.final]
        assert settled
        for draft in settled:
            assert draft.canvas.step >= settle
            assert len({int(prediction.argmax_C[0]) for prediction in draft.canvas.history[-settle:]}) == 1


def test_the_text_does_not_depend_on_who_shares_the_batch(tiny):
    wanted = request(max_new_tokens=20)
    alone = run(Engine(tiny.model, letters), wanted)[0][-1].result
    others = [replace(wanted, seed=seed, prompt=PROMPT * seed) for seed in range(1, 4)]
    assert run(Engine(tiny.model, letters), *others, wanted)[-1][-1].result == alone


def test_a_resumed_draft_goes_on_with_what_had_settled(tiny):
    events = run(Engine(tiny.model, letters), request())[0]
    draft = next(draft for draft in drafts(events) if draft.canvas.final and draft.canvas.reason is None)
    again = run(Engine(tiny.model, letters), request(resume=draft))[0]
    assert again[-1].result.tokens == events[-1].result.tokens


def test_pins_count_as_final_but_settle_nothing_by_themselves(tiny):
    events = drafts(run(Engine(tiny.model, letters), request(pins={0: 140, 5: 141}, max_new_tokens=16))[0])
    assert all(draft.standing[:1] == (140,) for draft in events)
    assert all(draft.tokens[5] == 141 for draft in events)


def test_what_may_become_a_stop_string_does_not_stand(tiny):
    plain = run(Engine(tiny.model, letters), request())[0][-1].result
    stop = plain.text[4:7]
    events = run(Engine(tiny.model, letters), request(stop=(stop,)))[0]
    assert events[-1].result.text == plain.text[: plain.text.find(stop)]
    for draft in drafts(events):
        assert events[-1].result.text.startswith(letters(draft.standing))


def test_an_answer_that_will_be_drawn_again_shows_nothing(tiny):
    first = run(Engine(tiny.model, letters), request())[0][-1].result.tokens[0]
    events = run(Engine(tiny.model, letters), request(never_first=frozenset({first})))[0]
    again = [draft for draft in drafts(events) if draft.canvas.index == 0 and draft.canvas.attempt == 0]
    assert again
    assert events[-1].result.usage.redrawn == 1
    assert all(draft.standing == () for draft in again if draft.tokens[0] == first)


def test_bytes_stand_only_when_something_else_follows(tiny):
    """A run of bytes is decoded as a whole: the next byte may spoil all of it."""
    accents = tuple(128 + byte for byte in "é".encode())
    spoilt = (*accents, 128 + 0xFF)
    assert tiny.decode(accents) == "é" and not tiny.decode(spoilt).startswith("é")
    wanted = request(
        pins=dict(enumerate(spoilt)), max_new_tokens=24, unsure=tiny.tokenizer.byte_ids,
        diffusion=replace(SETTLING, canvas_length=2),
    )  # fmt: skip
    events = run(Engine(tiny.model, tiny.decode), wanted)[0]
    result = events[-1].result
    assert result.text == tiny.decode(result.tokens)
    assert "".join(event.text for event in events if isinstance(event, Commit)) == result.text
    for draft in drafts(events):
        assert result.text.startswith(tiny.decode(draft.standing))


def test_commits_say_how_likely_their_tokens_were(tiny):
    import torch

    plain = run(Engine(tiny.model, letters), request())[0]
    events = run(Engine(tiny.model, letters), request(top_logprobs=3))[0]
    assert events[-1].result == plain[-1].result  # asking changes nothing
    commits = [event for event in events if isinstance(event, Commit)]
    for commit, draft in zip(commits, (d for d in drafts(events) if d.canvas.reason), strict=True):
        assert len(commit.likely) == len(commit.tokens)
        last = draft.canvas.history[-1]
        for at, (token, likely) in enumerate(zip(commit.tokens, commit.likely, strict=True)):
            values = [value for _, value in likely.top]
            assert values == sorted(values, reverse=True) and len(values) == 3
            if draft.canvas.final <= at:  # not pinned: the likeliest is the token itself
                assert likely.top[0][0] == token
                assert torch.isclose(torch.tensor(likely.token).exp(), last.confidence_C[at], atol=1e-4)


def test_greed_takes_the_likeliest_token_that_often_and_judges_as_before(tiny):
    """Of the positions accepted in a first step, which sees the same noise whatever the greed."""
    shares = {}
    for greed in (0.0, 0.5, 1.0):
        settings = Diffusion(canvas_length=256, steps=1, entropy_bound=1e4, greed=greed)
        wanted = [request(diffusion=settings, max_new_tokens=256, seed=seed) for seed in range(4)]
        drafted = [drafts(events)[0] for events in run(Engine(tiny.model, letters), *wanted)]
        shares[greed] = sum((d.canvas.tokens_C == d.canvas.result_C).float().mean().item() for d in drafted) / 4
        if greed == 0:
            entropies = [d.entropy for d in drafted]
        assert [d.entropy for d in drafted] == entropies
    assert shares[1.0] == 1
    assert abs(shares[0.5] - (1 + shares[0.0]) / 2) < 0.06


def test_a_constraint_is_kept_behind_what_has_settled(tiny):
    """The search for the likeliest text begins where the settled prefix ends."""
    early = 0
    for seed in range(8):
        wanted = tiny.request("Hello", regex="(ab|cd|[0-9]{2}){4,14}x", max_new_tokens=32, seed=seed, **vars(SETTLING))
        events = run(Engine(tiny.model, tiny.decode), wanted)[0]
        text = events[-1].result.text
        assert re.fullmatch("(ab|cd|[0-9]{2}){4,14}x", text)
        for draft in drafts(events):
            assert text.startswith(tiny.decode(draft.standing))
            early += draft.canvas.reason is None and draft.canvas.final > 0
    assert early > 0  # else nothing was tested
