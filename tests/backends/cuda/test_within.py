"""The kernel that draws within top_k, top_p and min_p: in Triton's interpreter, or on a GPU.

C positions, V vocabulary.
"""

import pytest
import torch

from gesso.backends.cuda.kernels import within
from gesso.diffusion.hash import draw, position_keys
from gesso.diffusion.truncation import truncated
from gesso.settings import Diffusion

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOFTCAP, TEMPERATURE = 30.0, 0.7
VOCABULARY = within.BLOCK + 75  # a whole block and a ragged one
SETTINGS = (
    {"top_k": 3},
    {"top_k": 1},
    {"top_p": 0.5},
    {"top_p": 0.0},
    {"top_p": 0.999},
    {"min_p": 0.2},
    {"top_k": 9, "top_p": 0.9, "min_p": 0.01},
    {"top_k": 1_000_000},
)


def logits_of(product_CV):
    return SOFTCAP * torch.tanh(product_CV.float() / SOFTCAP) / TEMPERATURE


def keys(count, step=1):
    return position_keys(5, 0, step, 0, count, DEVICE)


def products(count, vocabulary=VOCABULARY, spread=4):
    return (spread * torch.randn(count, vocabulary)).half().to(DEVICE)  # the same values on every device


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_draws_are_those_of_the_plain_operations(settings):
    product_CV, chosen = products(3), Diffusion(**settings)
    found_C = within.draw_within(chosen, product_CV, SOFTCAP, TEMPERATURE, keys(3))
    assert torch.equal(found_C, draw(truncated(chosen, logits_of(product_CV)), keys(3)))


def test_every_allowed_token_is_drawn_and_no_other():
    product_CV = products(1, 40, spread=0.5).expand(30, -1)
    chosen = Diffusion(top_p=0.1)
    found_C = within.draw_within(chosen, product_CV, SOFTCAP, TEMPERATURE, keys(30))
    allowed_V = truncated(chosen, logits_of(product_CV[:1]))[0].isfinite()
    assert set(found_C.tolist()) == set(allowed_V.nonzero()[:, 0].tolist())
    assert 1 < allowed_V.sum() < 7


def test_equally_likely_tokens_are_allowed_together():
    product_CV = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]], device=DEVICE).half().expand(12, -1)
    for settings in ({"top_k": 2}, {"top_p": 0.1}, {"min_p": 1.0}):
        found_C = within.draw_within(Diffusion(**settings), product_CV, SOFTCAP, TEMPERATURE, keys(12))
        assert set(found_C.tolist()) == {1, 2, 3}


def test_a_row_does_not_depend_on_the_others():
    product_CV, chosen = products(3), Diffusion(top_p=0.8)
    together_C = within.draw_within(chosen, product_CV, SOFTCAP, TEMPERATURE, keys(3))
    alone_C = [
        within.draw_within(chosen, product_CV[i : i + 1], SOFTCAP, TEMPERATURE, keys(3)[i : i + 1]) for i in range(3)
    ]
    assert torch.equal(together_C, torch.cat(alone_C))


def test_a_row_with_a_number_that_is_not_finite_ends_with_some_token():
    product_CV = products(3)
    product_CV[0, 3], product_CV[1, 7] = torch.nan, torch.inf
    found_C = within.draw_within(Diffusion(top_p=0.8, top_k=4), product_CV, SOFTCAP, TEMPERATURE, keys(3))
    assert ((found_C >= 0) & (found_C < VOCABULARY)).all()
