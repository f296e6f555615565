"""Settled prefixes are final: later steps never change them, whether or not anyone watches."""

import re
from dataclasses import replace

import pytest

from gesso import Commit, Done, Draft
from gesso.engine.engine import Engine
from gesso.engine.request import Request
from gesso.settings import Diffusion

# Cold enough that the tiny model is certain of some tokens, warm enough that it changes others.
SETTLING = Diffusion(canvas_length=16, steps=10, t_max=0.3, t_min=0.1, entropy_bound=1.0, confidence=0.5, settle=1)
PROMPT = (2, 200, 210, 220)


def letters(tokens):
    """Decode every token to its own character, so that the text determines the tokens."""
    return "".join(chr(0x400 + token) for token in tokens)


def request(**changes):
    return Request(**{"prompt": PROMPT, "max_new_tokens": 40, "diffusion": SETTLING, "seed": 5} | changes)


def run(engine, *requests):
    """Return all events of each request."""
    ids = [engine.submit(one) for one in requests]
    events = {i: [] for i in ids}
    while not all(events[i] and isinstance(events[i][-1], Done) for i in ids):
        for event in engine.step():
            events[event.request_id].append(event)
    return [events[i] for i in ids]


def drafts(events):
    return [event for event in events if isinstance(event, Draft)]


@pytest.mark.parametrize("settle", [1, 3])
def test_settled_prefix_only_grows_and_is_a_prefix_of_the_result(tiny, settle):
    early = 0
    for seed in range(4):
        events = run(Engine(tiny.model, letters), request(seed=seed, diffusion=replace(SETTLING, settle=settle)))[0]
        result = events[-1].result
        before = ()
        for draft in drafts(events):
            assert draft.final_tokens[: len(before)] == before
            assert result.tokens[: len(draft.final_tokens)] == draft.final_tokens
            before = draft.final_tokens
            early += draft.canvas.reason is None and len(draft.final_tokens) > len(draft.before)
    assert early > 0, "no position settled early: the test checks nothing"


def test_settled_positions_keep_their_tokens(tiny):
    events = drafts(run(Engine(tiny.model, letters), request(max_new_tokens=16))[0])
    for at, draft in enumerate(events):
        final = draft.canvas.final
        for later in events[at:]:
            assert later.tokens[:final] == draft.tokens[:final]
            assert later.canvas.tokens_C[:final].tolist() == draft.tokens[:final]


def test_without_settle_no_token_is_final_before_its_canvas(tiny):
    events = run(Engine(tiny.model, letters), request(diffusion=replace(SETTLING, settle=0)))[0]
    assert all(draft.final_tokens == draft.before for draft in drafts(events))


def test_positions_settle_after_the_requested_number_of_steps(tiny):
    for settle in (1, 3):
        settings = replace(SETTLING, settle=settle)
        for first in range(0, 64, 8):  # until some position settles
            requests = [request(seed=first + i, diffusion=settings, max_new_tokens=16) for i in range(8)]
            found = [draft for events in run(Engine(tiny.model, letters), *requests) for draft in drafts(events)]
            if settled := [draft for draft in found if draft.canvas.final]:
                break
        assert settled
        for draft in settled:
            assert draft.canvas.step >= settle
            assert len({int(prediction.argmax_C[0]) for prediction in draft.canvas.history[-settle:]}) == 1


def test_settling_gives_the_same_text_in_any_batch(tiny):
    generation = request(max_new_tokens=20)
    alone = run(Engine(tiny.model, letters), generation)[0][-1].result
    others = [replace(generation, seed=seed, prompt=PROMPT * seed) for seed in range(1, 4)]
    assert run(Engine(tiny.model, letters), *others, generation)[-1][-1].result == alone


def test_resumed_draft_keeps_its_settled_prefix(tiny):
    events = run(Engine(tiny.model, letters), request())[0]
    draft = next(draft for draft in drafts(events) if draft.canvas.final and draft.canvas.reason is None)
    again = run(Engine(tiny.model, letters), request(resume=draft))[0]
    assert again[-1].result.tokens == events[-1].result.tokens


def test_pins_are_final_but_settle_no_other_position(tiny):
    events = drafts(run(Engine(tiny.model, letters), request(pins={0: 140, 5: 141}, max_new_tokens=16))[0])
    assert all(draft.final_tokens[:1] == (140,) for draft in events)
    assert all(draft.tokens[5] == 141 for draft in events)


def test_start_of_a_stop_string_is_not_final(tiny):
    plain = run(Engine(tiny.model, letters), request())[0][-1].result
    stop = plain.text[4:7]
    events = run(Engine(tiny.model, letters), request(stop=(stop,)))[0]
    assert events[-1].result.text == plain.text[: plain.text.find(stop)]
    for draft in drafts(events):
        assert events[-1].result.text.startswith(letters(draft.final_tokens))


def test_canvas_that_will_be_redrawn_shows_no_text(tiny):
    first = run(Engine(tiny.model, letters), request())[0][-1].result.tokens[0]
    events = run(Engine(tiny.model, letters), request(never_first=frozenset({first})))[0]
    again = [draft for draft in drafts(events) if draft.canvas.index == 0 and draft.canvas.attempt == 0]
    assert again
    assert events[-1].result.usage.redrawn == 1
    assert all(draft.final_tokens == () for draft in again if draft.tokens[0] == first)


def test_bytes_are_final_only_when_another_token_follows(tiny):
    """A run of bytes is decoded as a whole: the next byte may change all of it."""
    accents = tuple(128 + byte for byte in "é".encode())
    spoilt = (*accents, 128 + 0xFF)
    assert tiny.decode(accents) == "é" and not tiny.decode(spoilt).startswith("é")
    generation = request(
        pins=dict(enumerate(spoilt)), max_new_tokens=24, byte_tokens=tiny.tokenizer.byte_ids,
        diffusion=replace(SETTLING, canvas_length=2),
    )  # fmt: skip
    events = run(Engine(tiny.model, tiny.decode), generation)[0]
    result = events[-1].result
    assert result.text == tiny.decode(result.tokens)
    assert "".join(event.text for event in events if isinstance(event, Commit)) == result.text
    for draft in drafts(events):
        assert result.text.startswith(tiny.decode(draft.final_tokens))


def test_commits_carry_requested_logprobs(tiny):
    import torch

    plain = run(Engine(tiny.model, letters), request())[0]
    events = run(Engine(tiny.model, letters), request(top_logprobs=3))[0]
    assert events[-1].result == plain[-1].result  # requesting them changes nothing
    commits = [event for event in events if isinstance(event, Commit)]
    for commit, draft in zip(commits, (d for d in drafts(events) if d.canvas.reason), strict=True):
        assert len(commit.likely) == len(commit.tokens)
        last = draft.canvas.history[-1]
        for at, (token, likely) in enumerate(zip(commit.tokens, commit.likely, strict=True)):
            values = [value for _, value in likely.top]
            assert values == sorted(values, reverse=True) and len(values) == 3
            if draft.canvas.final <= at:  # not pinned: the most probable token is the token itself
                assert likely.top[0][0] == token
                assert torch.isclose(torch.tensor(likely.token).exp(), last.confidence_C[at], atol=1e-4)


def test_greed_is_the_fraction_of_positions_that_take_the_argmax(tiny):
    """Among positions accepted in a first step, which has the same noise whatever the greed."""
    argmax_fraction = {}
    for greed in (0.0, 0.5, 1.0):
        settings = Diffusion(canvas_length=256, steps=1, entropy_bound=1e4, greed=greed)
        requests = [request(diffusion=settings, max_new_tokens=256, seed=seed) for seed in range(4)]
        drafted = [drafts(events)[0] for events in run(Engine(tiny.model, letters), *requests)]
        argmax_fraction[greed] = (
            sum((d.canvas.tokens_C == d.canvas.result_C).float().mean().item() for d in drafted) / 4
        )
        if greed == 0:
            entropies = [d.entropy for d in drafted]
        assert [d.entropy for d in drafted] == entropies
    assert argmax_fraction[1.0] == 1
    assert abs(argmax_fraction[0.5] - (1 + argmax_fraction[0.0]) / 2) < 0.06


def test_constraint_holds_after_a_settled_prefix(tiny):
    """The search for the most probable text begins after the settled prefix."""
    early = 0
    for seed in range(4):
        generation = tiny.request(
            "Hello", regex="(ab|cd|[0-9]{2}){4,14}x", max_new_tokens=32, seed=seed, **vars(SETTLING)
        )
        events = run(Engine(tiny.model, tiny.decode), generation)[0]
        text = events[-1].result.text
        assert re.fullmatch("(ab|cd|[0-9]{2}){4,14}x", text)
        for draft in drafts(events):
            assert text.startswith(tiny.decode(draft.final_tokens))
            early += draft.canvas.reason is None and draft.canvas.final > 0
    assert early > 0, "no position settled early: the test checks nothing"
