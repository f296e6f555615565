"""Passes of the engine: which tokens they read, the cache, and the order of waiting prompts."""

from dataclasses import replace

import pytest
import torch

from gesso.engine.engine import Engine
from gesso.engine.scheduler import PACE
from tests.engine.test_engine import long_prompt
from tests.engine_requests import PROMPT, SMALL, finish, request, result


def test_a_canvas_has_no_more_positions_than_requested_tokens(tiny, engine, passes):
    answer = result(engine, request(max_new_tokens=20, diffusion=replace(SMALL, canvas_length=256)))
    assert len(answer.tokens) <= 20
    assert {len(piece.ids_S) for pieces in passes for piece in pieces if not piece.causal} == {20}


def test_the_last_canvas_has_the_length_of_the_remaining_tokens(engine, passes):
    answer = result(engine, request(max_new_tokens=40))
    assert answer.finish_reason == "length"
    assert len(answer.tokens) == 40
    canvases = [len(piece.ids_S) for pieces in passes for piece in pieces if not piece.causal]
    assert sorted(set(canvases)) == [8, 16]


def test_every_token_is_encoded_once_except_the_last_canvas(engine, passes):
    answer = result(engine, request(max_new_tokens=48))
    encoded = [token for pieces in passes for piece in pieces if piece.causal for token in piece.ids_S.tolist()]
    assert encoded == [*PROMPT, *answer.tokens[:32]]


def test_committing_a_canvas_takes_no_extra_pass(engine, passes):
    answer = result(engine, request(max_new_tokens=48))
    assert answer.usage.canvases == 3
    assert len(passes) == answer.usage.denoising_steps


@pytest.mark.parametrize("length", [70, 300])
def test_the_next_turn_of_a_conversation_reuses_the_cache(tiny, length):
    """All whole pieces of the previous prompt are reused, also beyond the window of 128."""
    engine = Engine(tiny.model, tiny.decode, piece=32)
    prompt, held = long_prompt(length), 0
    for turn in range(3):
        answer = result(engine, request(prompt=prompt, diffusion=replace(SMALL, steps=2)))
        assert answer.usage.prompt_tokens == len(prompt)
        assert answer.usage.cached_tokens == held
        held = len(prompt) // 32 * 32
        prompt = (*prompt, *answer.tokens, 230 + turn, 231)


def test_a_prompt_that_diverges_reuses_the_shared_pieces(tiny):
    """Within the window any whole piece can be reused; beyond it only the saved state of the ring."""
    for length, reused in ((80, 32), (300, 0)):
        engine = Engine(tiny.model, tiny.decode, piece=32)
        prompt = long_prompt(length)
        result(engine, request(prompt=prompt, max_new_tokens=4))
        diverging = request(prompt=(*prompt[:60], 129, 129), max_new_tokens=4)
        assert result(engine, diverging).usage.cached_tokens == reused


def test_a_long_prompt_does_not_delay_a_running_canvas(tiny):
    engine = Engine(tiny.model, tiny.decode, prefill=32, piece=32)
    running = engine.submit(request(max_new_tokens=16, diffusion=replace(SMALL, stopping="fixed")))
    engine.step()
    reading = engine.submit(request(prompt=(2,) * 320))
    steps = [[event.request_id for event in engine.step()] for _ in range(4)]
    assert all(running in ids and reading not in ids for ids in steps)


def test_a_short_prompt_does_not_wait_for_a_long_one(tiny):
    engine = Engine(tiny.model, tiny.decode, prefill=32, piece=32)
    long = engine.submit(request(prompt=tuple(range(128, 328)) * 2, max_new_tokens=4))
    engine.step()
    for seed in range(3):
        short = engine.submit(request(seed=seed, max_new_tokens=4))
        events = [event for _ in range(2) for event in engine.step()]
        assert any(event.request_id == short and event.kind == "draft" for event in events)
        finish(engine, short)
    finish(engine, long)


def test_short_prompts_do_not_starve_a_long_one(tiny):
    engine = Engine(tiny.model, tiny.decode, prefill=32, piece=32)
    quick = {"max_new_tokens": 4, "diffusion": replace(SMALL, steps=1)}
    long = engine.submit(request(prompt=tuple(range(128, 328)), **quick))
    for seed in range(400):
        engine.submit(request(prompt=tuple(range(128, 158)), seed=seed, **quick))
        if any(event.request_id == long for event in engine.step()):
            return
    raise AssertionError("the long prompt was never read")


@pytest.mark.parametrize("others", [1, 2, 7])
def test_long_prompts_do_not_starve_a_short_one(tiny, others):
    engine = Engine(tiny.model, tiny.decode, prefill=32, piece=32)
    for seed in range(others):
        engine.submit(request(prompt=tuple(range(128, 328)) * 3, seed=seed, max_new_tokens=4))
    for _ in range(3 * others):
        engine.step()
    short = engine.submit(request(prompt=tuple(range(128, 158)), max_new_tokens=4))
    events = [event for _ in range(12) for event in engine.step()]
    assert any(event.request_id == short for event in events)


def test_prefill_is_slower_beside_a_running_canvas(tiny, passes):
    engine = Engine(tiny.model, tiny.decode, prefill=32, piece=32)
    fixed = replace(SMALL, steps=16, stopping="fixed")
    mine = engine.submit(request(max_new_tokens=16, diffusion=fixed))
    engine.step()
    engine.submit(request(prompt=tuple(range(128, 328)) * 2))
    passes.clear()
    finish(engine, mine)
    assert len(passes) == 15, "the canvas is in every pass"
    read = [sum(len(piece.ids_S) for piece in pieces if piece.causal) for pieces in passes]
    assert set(read) == {0, 32} and sum(read) <= 32 * (len(passes) / PACE + 1)


def test_prompts_share_the_prefill_budget_of_a_pass(tiny, passes):
    engine = Engine(tiny.model, tiny.decode, prefill=32, piece=32)
    ids = [engine.submit(request(prompt=tuple(range(130 + i, 230 + i)))) for i in range(3)]
    finish(engine, *ids)
    prompt_tokens = [sum(len(p.ids_S) for p in pieces if p.causal and len(p.ids_S) not in (16,)) for pieces in passes]
    assert max(prompt_tokens) <= 32


def test_requests_beyond_max_batch_wait(tiny):
    engine = Engine(tiny.model, tiny.decode, max_batch=2)
    ids = [engine.submit(request(seed=seed, max_new_tokens=8)) for seed in range(5)]
    results = [events[-1].result for events in finish(engine, *ids)]
    assert [len(r.tokens) for r in results] == [8] * 5
    assert len(engine.cache.lengths) == 2
    assert not engine.busy


def test_a_long_prompt_enlarges_only_its_own_cache_row(tiny):
    engine = Engine(tiny.model, tiny.decode, max_batch=8)
    finish(engine, *[engine.submit(request(seed=seed, max_new_tokens=8)) for seed in range(8)])
    small = engine.cache.nbytes
    long = request(prompt=long_prompt(1000), max_new_tokens=8)
    result(engine, long)
    alone = Engine(tiny.model, tiny.decode)
    result(alone, long)
    assert engine.cache.nbytes < small + alone.cache.nbytes


def test_growing_a_cache_row_keeps_its_contents(tiny):
    """Below the window, and beyond it, where the ring has wrapped. Saved rings grow too."""
    canvas = torch.arange(16)[None] + 130
    for length in (40, 300):
        cache = tiny.model.new_cache(1, length)
        tiny.model.encode(torch.tensor([long_prompt(length)]), cache)
        cache.save(0, length)
        before = tiny.model.denoise(canvas, cache)
        cache.grow(0, 2 * length)
        assert torch.equal(tiny.model.denoise(canvas, cache), before)
        tiny.model.encode(canvas, cache)
        cache.cut(0, length)
        assert torch.equal(tiny.model.denoise(canvas, cache), before)


def test_two_alternating_conversations_both_reuse_the_cache(tiny):
    engine = Engine(tiny.model, tiny.decode, piece=32)
    prompts = [long_prompt(70), long_prompt(70, start=150)]
    cached = []
    for turn in range(3):
        for i in (0, 1):
            answer = result(engine, request(prompt=prompts[i], diffusion=replace(SMALL, steps=2)))
            cached.append(answer.usage.cached_tokens)
            prompts[i] = (*prompts[i], *answer.tokens, 230 + turn)
    assert cached == [0, 0, 64, 64, 96, 96]
