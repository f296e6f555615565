"""The feed-forward of a layer in one persistent launch: dense MLP and experts, both products of each.

With up to MOST_TOKENS tokens, this reads all weights of a feed-forward without a pause. `mixture.py` and `linear.py`
run the same products as separate launches: with more tokens, with adapters, for weights in other formats, and on other
GPUs. A row gets the same bits from both. The kernel is in `feed_forward_hopper.py`.

T tokens, H hidden, E experts, K experts per token, I expert width, D dense width, R = T * K pairs, N tiles of rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.activations import Fp8Rows, Rows
from gesso.backends.cuda.kernels.feed_forward_parts import FeedForward, TileList
from gesso.backends.cuda.kernels.gluon_kernels import gluon_kernels
from gesso.backends.cuda.kernels.linear import BLOCK, FP8
from gesso.cards.running import card_of

MOST_TOKENS = 512  # with more, separate launches with larger tiles are faster
ROWS, STAGES, PROGRAMS = 64, 4, 2  # rows of a tile, fetched tiles in shared memory, programs per SM
DTYPES = (FP8,)


def applies(x_TH: Rows, weights: FeedForward) -> bool:
    """Return whether the launch supports these rows and weights."""
    x, _ = _tensors(x_TH)
    dtypes = {weights.gate_up.weight_EOI.dtype, weights.down.weight_EOI.dtype, x.dtype}
    dtypes |= {each.weight_OI.dtype for each in weights.dense}
    widths = weights.down.inputs, weights.dense_down.weight_OI.shape[1]
    return (
        len(x) <= MOST_TOKENS
        and len(dtypes) == 1
        and x.dtype in DTYPES
        and x.shape[1] % (2 * BLOCK) == 0
        and all(width % BLOCK == 0 for width in widths)
        and _has_kernel(x.device)
    )


def _has_kernel(device: torch.device) -> bool:
    """Return whether the kernel runs here."""
    return card_of(device).has_warp_group_products and gluon_kernels("feed_forward_hopper") is not None


def feed_forward(x_TH: Rows, dense_x_TH: Rows, index_TK: Tensor, weights: FeedForward) -> tuple[Tensor, Tensor]:
    """Return the outputs of the dense MLP [T, H], and the unweighted outputs of each token's experts [R, H]."""
    (x, x_scale), (dense_x, dense_x_scale) = _tensors(x_TH), _tensors(dense_x_TH)
    (tokens, hidden), device, low = x.shape, x.device, x.dtype == FP8
    pairs, width, dense_width = index_TK.numel(), weights.down.inputs, weights.dense_down.weight_OI.shape[1]
    groups = group(index_TK, weights.gate_up.count)
    # Rows between the products, and outputs: those of the pairs, then those of the dense MLP.
    h = torch.empty(pairs * width + tokens * dense_width, dtype=x.dtype, device=device)
    y = torch.empty(pairs + tokens, hidden, dtype=x_TH.dtype, device=device)
    # FP8 rows have one scale per block. Those of a tile lie together, with space for an even number of blocks.
    tiles, dense_tiles = len(groups.expert_N), triton.cdiv(tokens, ROWS)
    blocks = tiles * (width // BLOCK + 1) + dense_tiles * (dense_width // BLOCK + 1)
    scales = torch.empty(blocks, ROWS, device=device) if low else None
    hopper = gluon_kernels("feed_forward_hopper")
    assert hopper is not None, "see `applies`"
    hopper.launch(
        (x, x_scale, dense_x, dense_x_scale), weights, (h, scales, y), groups,
        index_TK.shape[1], rows=ROWS, stages=STAGES, programs=PROGRAMS * card_of(device).processors,
    )  # fmt: skip
    return y[pairs:], y[:pairs]


def group(index_TK: Tensor, experts: int) -> TileList:
    """Sort pairs by expert, and divide them into tiles of ROWS rows."""
    pairs, tiles = index_TK.numel(), index_TK.numel() // ROWS + experts
    counters = 1 + tiles + triton.cdiv(len(index_TK), ROWS)
    sizes = pairs, tiles, tiles, tiles, 1, counters
    lists = [torch.empty(size, dtype=torch.int32, device=index_TK.device) for size in sizes]
    chunk = min(max(triton.next_power_of_2(pairs), 1024), 4096)
    _group[(experts,)](
        index_TK.contiguous(), *lists, pairs, counters,
        EXPERTS=triton.next_power_of_2(experts), ROWS=ROWS, CHUNK=chunk, num_warps=chunk // 256,
    )  # fmt: skip
    return TileList(*lists)


def _tensors(x: Rows) -> tuple[Tensor, Tensor | None]:
    """Return rows, and their scales in FP8."""
    if isinstance(x, Fp8Rows):
        return x.low_TI, x.scale_T
    return (x if isinstance(x, Tensor) else x.interleaved_TI), None


@triton.jit
def _group(
    index_ptr, order_ptr, expert_ptr, first_ptr, rows_ptr, tiles_ptr, counter_ptr, pairs, counters,
    EXPERTS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sort the pairs of one expert, and list its tiles without gaps between experts.

    Grid: (E,). index is [R]; order [R] has the pair at each place of the sorted order. expert, first and rows [N] are
    the expert of each tile, the place of its first pair, and the number of its pairs; tiles [1] is their number.
    Counters are set to zero. Every program reads all choices, a few kilobytes, so that none waits for another.
    Latency-bound.
    """
    expert = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    every = tl.arange(0, EXPERTS)
    size = tl.zeros((EXPERTS,), tl.int32)
    for start in range(0, pairs, CHUNK):
        valid = start + lane < pairs
        chosen = tl.load(index_ptr + start + lane, mask=valid, other=0).to(tl.int32)
        size += tl.histogram(chosen, EXPERTS, mask=valid)
    tiles = (size + ROWS - 1) // ROWS
    first = tl.sum(tl.where(every < expert, size, 0), 0)
    own = tl.sum(tl.where(every == expert, size, 0), 0)
    tile = tl.sum(tl.where(every < expert, tiles, 0), 0)
    if expert == 0:
        tl.store(tiles_ptr, tl.sum(tiles, 0))
    for at in range(0, tl.cdiv(own, ROWS)):
        tl.store(expert_ptr + tile + at, expert)
        tl.store(first_ptr + tile + at, first + at * ROWS)
        tl.store(rows_ptr + tile + at, tl.minimum(own - at * ROWS, ROWS))
    for at in range(expert, counters, tl.num_programs(0)):
        tl.store(counter_ptr + at, 0)
    place = first
    for start in range(0, pairs, CHUNK):
        chosen = tl.load(index_ptr + start + lane, mask=start + lane < pairs, other=-1).to(tl.int32)
        is_own = (chosen == expert).to(tl.int32)
        tl.store(order_ptr + place + tl.cumsum(is_own, 0) - is_own, start + lane, mask=is_own == 1)
        place += tl.sum(is_own, 0)
