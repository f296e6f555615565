"""Attention of a training pass, compared with a mask of all pairs that is written out here.

T tokens, N query heads, M key/value heads, D head dim.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gesso.train.attention import FUSED_DIM, block_attention, compiled_attention, tile_mask
from gesso.train.blocks import SIZES, BlockSizes, attention_groups
from gesso.train.layout import Layout

CPU = torch.device("cpu")
LENGTH = 6  # of a canvas


def layout(widths, canvases, images=()):
    """Return a layout from the widths of the texts, (example, position) of the canvases, and the ends of images."""
    owner, at = ([pair[i] for pair in canvases] for i in range(2))
    ends = np.array(images, dtype=np.int64).reshape(-1, 2)
    return Layout(np.array(widths), np.array(owner, dtype=np.int64), np.array(at, dtype=np.int64), LENGTH, ends)


LAYOUTS = {
    "packed": layout([7, 20, 3], [(0, 5), (1, 4), (1, 20), (2, 1)]),
    "padded": layout([12, 12, 12], [(0, 3), (0, 3), (1, 7), (2, 12)]),
    "one": layout([29], [(0, 29)]),
    "many": layout([1, 2, 3, 1, 2, 40], [(i, 1) for i in range(6)]),
    # Images at the beginning and the end of a text, one after another, across the borders of blocks, and over a window.
    "images": layout([7, 20, 12], [(0, 5), (1, 20), (2, 12)], [(0, 3), (9, 18), (19, 20), (27, 33), (33, 39)]),
    "padded images": layout([12, 12], [(0, 8), (1, 7)], [(2, 8), (12, 14)]),
}


def dense_mask(at, window):
    """Return which token attends to which, one pair at a time."""
    example, position, canvas = [], [], []
    for number, width in enumerate(at.width_B):
        for i in range(width):
            example.append(number), position.append(i), canvas.append(None)
    for number, (owner, start) in enumerate(zip(at.owner_K, at.at_K, strict=True)):
        for _ in range(at.canvas_length):
            example.append(owner), position.append(start), canvas.append(number)
    reach = window or 10_000

    def sees(q, k):
        if canvas[k] is not None:
            return canvas[q] == canvas[k]
        if example[q] != example[k]:
            return False
        if any(start <= q < end and start <= k < end for start, end in at.image_N2):
            return True
        if canvas[q] is None:
            return position[q] - reach < position[k] <= position[q]
        return position[q] - reach < position[k] < position[q]

    return torch.tensor([[sees(q, k) for k in range(at.tokens)] for q in range(at.tokens)])


def random_heads(at, heads=(4, 2), dtype=torch.float32, kernel="fused"):
    """Return queries, keys and values. Heads wider than FUSED_DIM are attended by matrix products."""
    generator = torch.Generator().manual_seed(0)
    dim = 8 if kernel == "fused" else FUSED_DIM + 8
    scale = (8 / dim) ** 0.25  # the scores of wide heads vary as those of narrow ones
    q, kv = heads
    values = [scale * torch.randn(at.tokens, n, dim, generator=generator) for n in (q, kv, kv)]
    return [value.to(dtype).requires_grad_() for value in values]


def dense_attention(q_TND, k_TMD, v_TMD, mask_TT):
    q, k, v = (x.transpose(0, 1)[None] for x in (q_TND, k_TMD, v_TMD))
    return F.scaled_dot_product_attention(q, k, v, mask_TT, scale=1.0, enable_gqa=True)[0].transpose(0, 1)


SMALL = BlockSizes(queries=8, round_keys=4)


@pytest.mark.parametrize("kernel", ["fused", "products"])
@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_equal_the_dense_mask_with_gradients(name, window, kernel):
    at = LAYOUTS[name]
    mask_TT = dense_mask(at, window)
    accuracy = 1e-6 if kernel == "fused" else 1e-5  # the sums over wide heads are longer
    for heads in ((4, 2), (2, 2)):
        given = random_heads(at, heads, kernel=kernel)
        expected = dense_attention(*given, mask_TT)
        weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
        gradients = torch.autograd.grad(expected, given, weight)
        for sizes in (SIZES, SMALL, replace(SMALL, pairs=100)):
            found = block_attention(*given, attention_groups(at, window, CPU, sizes))
            ours = torch.autograd.grad(found, given, weight)
            for one, other in zip((found, *ours), (expected, *gradients), strict=True):
                assert (one - other).abs().max() < accuracy * other.abs().max(), sizes


def test_products_of_bfloat16_are_as_close_as_the_fused_kernel():
    at = LAYOUTS["packed"]
    given = random_heads(at, dtype=torch.bfloat16, kernel="products")
    exact = [x.detach().float().requires_grad_() for x in given]
    expected = dense_attention(*exact, dense_mask(at, None))
    gradients = torch.autograd.grad(expected.sum(), exact)
    found = block_attention(*given, attention_groups(at, None, CPU))
    ours = torch.autograd.grad(found.float().sum(), given)
    for one, other in zip((found, *ours), (expected, *gradients), strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.float() - other).abs().max() < 0.01 * other.abs().max()


@pytest.mark.parametrize("kernel", ["fused", "products"])
def test_saved_memory_grows_with_tokens_not_with_pairs(kernel):
    at = layout([600], [(0, 600)])
    given = random_heads(at, kernel=kernel)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        block_attention(*given, attention_groups(at, None, CPU))
    assert sum(saved) == sum(x.numel() for x in given) + given[0].numel(), "queries, keys, values and the result"


def test_groups_contain_every_query_once():
    sizes = replace(SMALL, pairs=200)
    for at in LAYOUTS.values():
        for window in (None, 5):
            groups = attention_groups(at, window, CPU, sizes)
            queries = torch.cat([group.query_UQ.flatten() for group in groups])
            assert queries.sort().values.tolist() == list(range(at.tokens))
            for group in groups:
                (count, size), keys = group.query_UQ.shape, group.key_UL.shape[1]
                assert count == 1 or count * size * keys <= 200


def test_keys_of_a_sliding_layer_grow_with_the_window_not_with_the_text():
    def pairs(length, window):
        groups = attention_groups(layout([length], [(0, length)]), window, CPU)
        return sum(group.query_UQ.numel() * group.key_UL.shape[1] for group in groups)

    assert pairs(8192, 1024) < 2.2 * pairs(4096, 1024)
    assert pairs(4096, 1024) < 0.4 * 4096**2
    assert pairs(4096, None) < 0.6 * 4096**2


def test_few_groups_serve_many_short_examples():
    rng = np.random.default_rng(0)
    widths = rng.integers(40, 200, size=64)
    at = layout(widths, [(i, int(width)) for i, width in enumerate(widths)])
    assert len(attention_groups(at, None, CPU)) < 16


def test_blocks_are_masked_only_if_needed():
    alike = attention_groups(layout([100] * 8, [(i, 60) for i in range(8)] * 2), None, CPU)
    assert [group.mask_UQL for group in alike] == [None, None], "triangles of text, and canvases of one start"
    packed = attention_groups(layout([100, 90], [(0, 60), (1, 50)]), None, CPU)
    assert all(group.mask_UQL is not None for group in packed)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("name", LAYOUTS)
def test_tiles_cover_all_visible_pairs(name, window):
    """FlexAttention skips the other tiles, and applies no mask in full ones."""
    at = LAYOUTS[name]
    found = tile_mask(at, window, CPU, tile=4)
    tiles = -(-at.tokens // 4)
    sees = torch.zeros(tiles * 4, tiles * 4, dtype=torch.bool)
    sees[: at.tokens, : at.tokens] = dense_mask(at, window)
    by_tile = sees.view(tiles, 4, tiles, 4).transpose(1, 2).flatten(2)
    after_end = (torch.arange(tiles * 4) >= at.tokens).view(tiles, 1, 4, 1).expand(-1, tiles, -1, 4).flatten(2)

    def dense(count, index):
        return torch.stack([torch.isin(torch.arange(tiles), row[:n]) for n, row in zip(count, index, strict=True)])

    part = dense(found.kv_num_blocks[0, 0], found.kv_indices[0, 0])
    full = dense(found.full_kv_num_blocks[0, 0], found.full_kv_indices[0, 0])
    assert not (part & full).any()
    assert not (by_tile.any(-1) & ~(part | full)).any()
    assert (by_tile | after_end)[full].all()
    assert part.sum() < 2 * by_tile.any(-1).sum(), "few tiles are visited in vain"


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 5])
def test_flex_attention_equals_the_dense_mask(window):
    """Run it uncompiled, on the CPU: this checks the mask function."""
    at = LAYOUTS["packed"]
    given = [x.detach() for x in random_heads(at)]
    found = compiled_attention(*given, tile_mask(at, window, CPU))
    expected = dense_attention(*given, dense_mask(at, window))
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()


def test_part_of_a_layout_has_the_tokens_of_its_examples():
    whole = LAYOUTS["packed"]
    part, text, canvas = whole.part(np.array([1, 2]))
    assert part.width_B.tolist() == [20, 3] and part.owner_K.tolist() == [0, 0, 1] and part.at_K.tolist() == [4, 20, 1]
    assert text.tolist() == list(range(7, 30)) and canvas.tolist() == [1, 2, 3]
    kept = np.concatenate([text, *(whole.text + k * LENGTH + np.arange(LENGTH) for k in canvas)])
    assert part.position_T.tolist() == whole.position_T[kept].tolist(), "positions restart with every example"
    part, _, _ = LAYOUTS["images"].part(np.array([1]))
    assert part.image_N2.tolist() == [[2, 11], [12, 13]]
