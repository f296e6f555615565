"""top_k, top_p and min_p restrict the draws of a step, and nothing else."""

from dataclasses import replace

import pytest
import torch

from gesso import Draft
from gesso.diffusion.noise import HashSource
from gesso.diffusion.truncation import ROWS, draw_within, truncated
from gesso.engine.engine import Engine
from gesso.settings import Diffusion
from tests.engine_requests import SMALL, finish, other_requests, request, result

CPU = torch.device("cpu")
RESTRICTED = ({"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.9, "min_p": 0.01})


def allowed_tokens(probability, top_k=0, top_p=1.0, min_p=0.0):
    """The tokens that may be drawn, by the definitions of the three settings, one token at a time."""
    order = probability.argsort(descending=True).tolist()
    found, mass = set(), 0.0
    for rank, token in enumerate(order):
        likely = probability[token] >= min_p * probability[order[0]]
        if (not top_k or rank < top_k) and (mass < top_p or rank == 0) and likely:
            found.add(token)
        mass += float(probability[token])
    return found


@pytest.mark.parametrize("settings", [*RESTRICTED, {"top_p": 0.0}, {"min_p": 1.0}, {"top_k": 1_000_000}], ids=str)
def test_exactly_the_tokens_of_the_definition_can_be_drawn(settings):
    logits_RV = 3 * torch.randn(20, 50)
    kept_RV = truncated(Diffusion(**settings), logits_RV).isfinite()
    for logits_V, kept_V in zip(logits_RV, kept_RV, strict=True):
        assert set(kept_V.nonzero()[:, 0].tolist()) == allowed_tokens(logits_V.double().softmax(-1), **settings)


def test_equally_likely_tokens_are_kept_together():
    """The order of a sort among them must not matter: it depends on the device."""
    logits_RV = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    for settings in ({"top_k": 2}, {"top_p": 0.4}, {"min_p": 1.0}):
        assert truncated(Diffusion(**settings), logits_RV).isfinite().tolist() == [[False, True, True, True, False]]


def test_no_token_outside_the_top_k_is_drawn_and_all_inside_are():
    logits_CV = torch.randn(1, 50).expand(ROWS * 20, -1)
    drawn_C = draw_within(Diffusion(top_k=3), logits_CV, HashSource().at(1, 0, 1, CPU))
    assert set(drawn_C.tolist()) == set(logits_CV[0].topk(3).indices.tolist())


def test_a_draw_that_the_restriction_allows_is_the_draw_without_it():
    """The draw stays a function of seed, canvas, step, position and token."""
    logits_CV, draws = 2 * torch.randn(70, 50), HashSource().at(1, 0, 1, CPU)
    settings = Diffusion(top_k=5)
    free_C, kept_C = draws.candidates(logits_CV), draw_within(settings, logits_CV, draws)
    inside_C = truncated(settings, logits_CV).gather(-1, free_C[:, None])[:, 0].isfinite()
    assert 0 < inside_C.sum() < 70
    assert torch.equal(free_C[inside_C], kept_C[inside_C])


def predictions(tiny, source=None, **settings):
    """The prediction of every step of a canvas."""
    engine = Engine(tiny.model, tiny.decode, source=source or HashSource())
    fixed = replace(SMALL, stopping="fixed", **settings)
    events = finish(engine, engine.submit(request(diffusion=fixed, max_new_tokens=16)))[0]
    return [event for event in events if isinstance(event, Draft)][-1].canvas.history


def test_top_k_of_one_draws_the_argmax_in_every_step(tiny):
    history = predictions(tiny, top_k=1)
    assert all(torch.equal(each.candidate_C, each.argmax_C) for each in history)
    assert not torch.equal((free := predictions(tiny)[0]).candidate_C, free.argmax_C)


def test_argmax_confidence_and_entropy_stay_those_of_the_full_distribution(tiny):
    free, restricted = predictions(tiny)[0], predictions(tiny, top_k=2, top_p=0.5, min_p=0.5)[0]
    for name in ("argmax_C", "confidence_C", "entropy_C"):
        assert torch.equal(getattr(free, name), getattr(restricted, name)), name


def test_a_source_without_keys_draws_within_the_restriction(tiny):
    class Draws:
        def __init__(self, hashed):
            self.hashed = hashed

        def __getattr__(self, name):
            return getattr(self.hashed, name)

        def keys(self, length):
            return None

    class Keyless:
        def at(self, *step):
            return Draws(HashSource().at(*step))

    history = predictions(tiny, Keyless(), top_k=1)
    assert all(torch.equal(each.candidate_C, each.argmax_C) for each in history)


def test_settings_that_allow_every_token_change_nothing(tiny):
    plain = result(Engine(tiny.model, tiny.decode), request(max_new_tokens=16))
    for everything in ({"top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"top_k": tiny.config.vocab_size}, {"min_p": 1e-300}):
        found = result(
            Engine(tiny.model, tiny.decode), request(max_new_tokens=16, diffusion=replace(SMALL, **everything))
        )
        assert found.tokens == plain.tokens and found.usage == plain.usage


def test_restricted_draws_give_the_same_text_alone_and_in_a_batch(tiny):
    free = request(max_new_tokens=16, diffusion=replace(SMALL, entropy_bound=30.0))
    wanted = replace(free, diffusion=replace(free.diffusion, **RESTRICTED[-1]))
    alone = result(Engine(tiny.model, tiny.decode), wanted)
    crowd = Engine(tiny.model, tiny.decode, max_batch=8)
    for other in (*other_requests()[:2], free):
        crowd.submit(other)
    assert finish(crowd, crowd.submit(wanted))[0][-1].result.tokens == alone.tokens
    assert alone.tokens != result(Engine(tiny.model, tiny.decode), free).tokens
