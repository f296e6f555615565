"""Attention of training passes on a GPU, with the heads of the 26B model, compared with a mask of all pairs.

T tokens, N query heads, M key/value heads, D head dim.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gesso.train.attention import block_attention, compiled_attention, tile_mask
from gesso.train.blocks import attention_groups
from gesso.train.layout import Layout
from tests.gpu.device import DEVICE, DRY_RUN

pytestmark = pytest.mark.gpu

SCALE = 8 if DRY_RUN else 1
HEADS = {"sliding": (256, 8, 1024 // SCALE), "global": (512, 2, None)}  # head dim, key heads, window
LAYOUTS = {
    "one": Layout(np.array([2048]) // SCALE, np.array([0]), np.array([2048]) // SCALE, 256 // SCALE),
    "packed": Layout(
        np.array([1500, 37, 700]) // SCALE, np.array([0, 0, 1, 2]), np.array([9, 900, 30, 700]) // SCALE, 128 // SCALE
    ),
}


def inputs(layout, dim, kv_heads):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(layout.tokens, heads, dim, generator=generator) for heads in (16, kv_heads, kv_heads))
    q, k = (3 * F.normalize(x, dim=-1) for x in (q, k))  # scores of a few units, as in the model
    return [x.to(DEVICE, torch.bfloat16).requires_grad_() for x in (q, k, v)]


def dense_attention(q_TND, k_TMD, v_TMD, layout, window):
    low, high, first, past = (
        torch.from_numpy(x).to(DEVICE)[:, None] for x in (*layout.ranges(window), *layout.canvas_ranges())
    )
    key = torch.arange(layout.tokens, device=DEVICE)
    mask_TT = (key >= low) & (key < high) | (key >= first) & (key < past)
    groups = q_TND.shape[1] // k_TMD.shape[1]
    k_TND, v_TND = (x.repeat_interleave(groups, dim=1) for x in (k_TMD, v_TMD))
    scores_NTT = torch.einsum("qnd,knd->nqk", q_TND, k_TND).masked_fill(~mask_TT, -torch.inf)
    return torch.einsum("nqk,knd->qnd", scores_NTT.softmax(-1), v_TND)


def blocks(layout, window):
    groups = attention_groups(layout, window, DEVICE)
    return lambda *given: block_attention(*given, groups)


def flex(layout, window):
    if DRY_RUN:
        pytest.skip("FlexAttention has no backward pass on a CPU")
    kernel, tiles = torch.compile(compiled_attention, dynamic=False), tile_mask(layout, window, DEVICE)
    return lambda *given: kernel(*given, tiles)


@pytest.mark.parametrize(("kind", "path"), [("sliding", blocks), ("sliding", flex), ("global", blocks)])
@pytest.mark.parametrize("shape", LAYOUTS)
def test_attention_and_gradients_equal_the_dense_mask(kind, shape, path):
    (dim, kv_heads, window), layout = HEADS[kind], LAYOUTS[shape]
    given = inputs(layout, dim, kv_heads)
    exact = [x.detach().float().requires_grad_() for x in given]
    expected = dense_attention(*exact, layout, window)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    gradients = torch.autograd.grad(expected, exact, weight)
    found = path(layout, window)(*given)
    ours = torch.autograd.grad(found, given, weight.to(found.dtype))
    for one, other in zip((found, *ours), (expected, *gradients), strict=True):
        assert (one.float() - other).abs().max() < 0.02 * other.abs().max()


@pytest.mark.skipif(DRY_RUN, reason="measures GPU memory")
@pytest.mark.parametrize("kind", HEADS)
def test_memory_is_below_that_of_all_scores(kind):
    (dim, kv_heads, window), layout = HEADS[kind], LAYOUTS["one"]
    given = inputs(layout, dim, kv_heads)
    groups = attention_groups(layout, window, DEVICE)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = block_attention(*given, groups)
    kept = torch.cuda.memory_allocated() - before
    torch.autograd.grad(out, given, torch.ones_like(out))
    inputs_and_result = sum(x.nbytes for x in given) + out.nbytes
    assert kept < 1.1 * inputs_and_result, "no scores are kept"
    assert torch.cuda.max_memory_allocated() - before < 2 * 16 * 4 * layout.tokens**2, "two copies of all scores"
