"""The parts of the fused feed-forward that run without its GPU: the tile list, the division of work, and its limits.
`tests/gpu/test_feed_forward.py` tests the kernel.
"""

from types import FunctionType, SimpleNamespace

import pytest
import torch

feed_forward = pytest.importorskip("gesso.backends.cuda.kernels.feed_forward")

from gesso.backends.cuda.activations import Fp8Rows  # noqa: E402
from gesso.backends.cuda.kernels.experts import Matrices  # noqa: E402
from gesso.backends.cuda.kernels.feed_forward import ROWS  # noqa: E402
from gesso.backends.cuda.kernels.feed_forward_parts import FeedForward  # noqa: E402
from gesso.backends.cuda.kernels.linear import FP8, Matrix  # noqa: E402
from gesso.cards.named import CARDS  # noqa: E402
from gesso.cards.running import playing  # noqa: E402

HIDDEN, WIDTH, DENSE = 2816, 704, 2112


@pytest.mark.parametrize("tokens, experts, k, popular", [(70, 8, 2, False), (256, 128, 8, True), (3, 12, 4, False)])
def test_tiles_hold_the_pairs_of_one_expert_each(tokens, experts, k, popular):
    score_TE = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(0))
    if popular:
        score_TE[:, 5] = 2  # several tiles
    index_TK = score_TE.topk(k).indices.int()
    tiles = feed_forward.group(index_TK, experts)
    assert torch.equal(tiles.order_R.long(), index_TK.flatten().sort(stable=True).indices)
    expected, first = [], 0
    for expert, size in enumerate(torch.bincount(index_TK.flatten(), minlength=experts).tolist()):
        expected += [(expert, first + at, min(size - at, ROWS)) for at in range(0, size, ROWS)]
        first += size
    assert tiles.count_1.item() == len(expected) <= len(tiles.expert_N)
    found = zip(
        *(each[: len(expected)].tolist() for each in (tiles.expert_N, tiles.first_N, tiles.rows_N)), strict=True
    )
    assert list(found) == expected
    assert len(tiles.counters) == 1 + len(tiles.expert_N) + -(-tokens // ROWS) and not tiles.counters.any()


def plain(function):
    """Return a function of the kernel as one of Python numbers."""
    numbers = SimpleNamespace(where=lambda c, a, b: a if c else b, maximum=max, minimum=min)
    return FunctionType(function.fn.__code__, {"gl": numbers})


@pytest.mark.parametrize("programs", [264, 7])
@pytest.mark.parametrize("tokens, tiles", [(256, 128), (256, 103), (512, 140), (17, 60), (1, 8), (33, 1)])
def test_every_item_is_computed_once_and_programs_have_equal_work(programs, tokens, tiles):
    hopper = pytest.importorskip("gesso.backends.cuda.kernels.feed_forward_hopper")
    first_item, share, second_item = (
        plain(each) for each in (hopper.first_item, hopper.second_share, hopper.second_item)
    )
    dense_tiles, blocks, dense_blocks, second = -(-tokens // ROWS), WIDTH // 64, DENSE // 64, HIDDEN // 128
    items = dense_tiles * dense_blocks + tiles * blocks
    found = [first_item(each, dense_tiles * dense_blocks, dense_tiles, blocks) for each in range(items)]
    assert set(found) == {
        *((True, tile, block) for tile in range(dense_tiles) for block in range(dense_blocks)),
        *((False, tile, block) for tile in range(tiles) for block in range(blocks)),
    }
    found, costs = [], []
    for program in range(programs):
        *own, count = share(program, items, dense_tiles, tiles, programs, second, HIDDEN // WIDTH, DENSE // WIDTH)
        given = [second_item(each, *own, dense_tiles, tiles, programs, second) for each in range(count)]
        firsts = len(range(program, items, programs))
        costs.append(firsts * HIDDEN // WIDTH + sum(DENSE // WIDTH if dense else 1 for dense, *_ in given))
        found += given
    assert len(found) == len(set(found)) == (dense_tiles + tiles) * second
    assert set(found) == {
        (dense, tile, block)
        for dense, count in ((True, dense_tiles), (False, tiles))
        for tile in range(count)
        for block in range(second)
    }
    if tiles > 100:
        assert max(costs) - min(costs) <= 1


def weights_of(dtype=FP8, width=WIDTH, dense_dtype=FP8) -> FeedForward:
    dense = [Matrix(torch.empty(size, dtype=dense_dtype)) for size in ((64, 256), (64, 256), (256, 64))]
    return FeedForward(
        Matrices(torch.empty(2, 2 * width, 256, dtype=dtype)), Matrices(torch.empty(2, 256, width, dtype=dtype)), *dense
    )


def test_launch_applies_to_few_tokens_with_fp8_weights():
    def rows(tokens):
        return Fp8Rows(torch.empty(tokens, 256, dtype=FP8), torch.empty(tokens), torch.bfloat16)

    assert not feed_forward.applies(rows(8), weights_of())  # no Hopper GPU
    with playing(CARDS["h200"]):
        assert feed_forward.applies(rows(feed_forward.MOST_TOKENS), weights_of())
        assert not feed_forward.applies(rows(feed_forward.MOST_TOKENS + 1), weights_of())
        assert not feed_forward.applies(rows(8), weights_of(width=80))
        assert not feed_forward.applies(rows(8), weights_of(dense_dtype=torch.bfloat16))
        assert not feed_forward.applies(torch.empty(8, 256), weights_of(torch.float32, dense_dtype=torch.float32))
