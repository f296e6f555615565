"""The two grouped products of `experts_four_bit.py` for int4 on Hopper, in Gluon: the same sums, in the same order.

The Triton kernels there are the specification, and the fallback on other GPUs and with adapters. They copy scales one
word at a time, in a ring of two or three tiles.

Here the copy engine fills a ring of three tiles, in the first product with their scales. Each program has two blocks of
64 outputs with an accumulator each: gate and up in the first product, the two halves of 128 columns in the second.
While the tensor cores multiply one block, the threads convert the other (`int4_hopper.py`). A step takes 128 values of
a row: 16 words.

T tokens, H hidden, E experts, K experts per token, I expert width, R = T * K pairs, N tiles of rows.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import constexpr_function

from gesso.backends.cuda.kernels.experts import Groups
from gesso.backends.cuda.kernels.four_bit import FourBitMatrices
from gesso.backends.cuda.kernels.gluon_names import barrier, copy_to_shared, fetch_tile
from gesso.backends.cuda.kernels.hidden import Hidden
from gesso.backends.cuda.kernels.int4_hopper import convert, row_layout, selector, sliced

STAGES = 3  # tiles of weights in the ring. Three programs of the first product, and four of the second, fit on an SM
TOKEN_STAGES = 4  # tiles of tokens in the ring of the first product; two of them are being multiplied
BLOCK = gl.constexpr(64)  # outputs per accumulator, as many as one instruction of a warp group multiplies
STEP = gl.constexpr(128)  # values of a row per step
WORDS = gl.constexpr(16)
SUM_SCALE = gl.constexpr(1099511627776.0)  # 2^40, as in `four_bit.sum_scale`


def fits(x: Tensor, matrices: FourBitMatrices) -> bool:
    """Return whether the kernels here apply to a product of rows x with int4 weights: in bfloat16, for whole blocks."""
    outputs, inputs = matrices.packed_EOB.shape[1], matrices.inputs
    return (
        x.dtype == torch.bfloat16
        and outputs % (2 * BLOCK.value) == 0
        and inputs % 64 == 0
        and all(each.data_ptr() % 16 == 0 for each in (x, matrices.packed_EOB, matrices.scale_EOG))
    )


def fits_up(x_TH: Tensor, gate_up: FourBitMatrices, h: Hidden) -> bool:
    """Return whether `up_product` applies. The copy engine fetches scales for 256 values, 16 bytes, at once. Triton 3.6
    does not compile the loop for 256 values alone.
    """
    two = 2 * STEP.value
    return fits(x_TH, gate_up) and gate_up.inputs % two == 0 and gate_up.inputs > two and h.scale_RB is None


def up_product(x_TH: Tensor, groups: Groups, k: int, gate_up: FourBitMatrices, h: Hidden, rows: int) -> None:
    """Write gelu(x gate) * (x up) [R, I] of all pairs to `h`, like `experts_four_bit.up_product`, in tiles of `rows`
    rows.
    """
    hidden, width = x_TH.shape[1], gate_up.packed_EOB.shape[1] // 2
    _up[width // BLOCK.value, len(groups.expert_N)](
        x_TH, _tiles(gate_up.words.unflatten(1, (2, -1)), WORDS.value, swizzle=64),
        _tiles(gate_up.scales.unflatten(1, (2, -1)), 4, swizzle=0), h.rows_RI,
        groups.order_R, groups.end_E, groups.expert_N, groups.first_N,
        k, HIDDEN=hidden, WIDTH=width, ROWS=rows, STAGES=STAGES, TOKEN_STAGES=TOKEN_STAGES, INTERLEAVE=h.interleave,
        num_warps=4,
    )  # fmt: skip


def down_product(h: Hidden, groups: Groups, matrices: FourBitMatrices, rows: int) -> Tensor:
    """Return h @ down [R, H], like `experts_four_bit.down_product`, in tiles of `rows` rows."""
    h_RI, hidden = h.rows_RI, matrices.packed_EOB.shape[1]
    y_RH = torch.empty(len(h_RI), hidden, dtype=h_RI.dtype, device=h_RI.device)
    swizzled = gl.NVMMASharedLayout(128, 16, 2)
    full, half = (TensorDescriptor.from_tensor(h_RI, [each, STEP.value], swizzled) for each in (rows, rows // 2))
    _down[hidden // (2 * BLOCK.value), len(groups.expert_N)](
        full, half, _tiles(matrices.words.unflatten(1, (-1, BLOCK.value)), WORDS.value, swizzle=64),
        matrices.scales, y_RH, groups.order_R, groups.end_E, groups.expert_N, groups.first_N,
        WIDTH=h_RI.shape[1], HIDDEN=hidden, ROWS=rows, STAGES=STAGES, num_warps=4,
    )  # fmt: skip
    return y_RH


def _tiles(words_EBOW: Tensor, words: int, swizzle: int) -> TensorDescriptor:
    """Return a descriptor of two blocks of 64 rows, `words` words each."""
    block = [1, 2, BLOCK.value, words]
    return TensorDescriptor.from_tensor(words_EBOW, block, gl.NVMMASharedLayout(swizzle, 32, 4))


@constexpr_function
def _smaller(a, b):
    return min(a, b)


@constexpr_function
def _sums(rows):
    """Return the layout of sums [64, rows]."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, rows, 16])


@gluon.jit
def _barriers(STAGES: gl.constexpr):
    """Return one barrier per stage, which opens when all bytes of that stage have arrived."""
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    fence_async_shared()
    barrier()
    return ready


# --- first product ----------------------------------------------------------------------------------------------------


@gluon.jit
def _up(
    x_ptr, packed, scales, h_ptr, order_ptr, end_ptr, expert_ptr, first_ptr, choices,
    HIDDEN: gl.constexpr, WIDTH: gl.constexpr, ROWS: gl.constexpr,
    STAGES: gl.constexpr, TOKEN_STAGES: gl.constexpr, INTERLEAVE: gl.constexpr,
):  # fmt: skip
    """Compute gelu(x gate) * (x up) for one tile of rows and 64 columns.

    Grid: (I / 64, N). x is [T, H], interleaved for tiles of 64 bytes; packed and scales are descriptors of words [E,
    gate or up, I, ...]; h is [R, I] in sorted order, interleaved for tiles of INTERLEAVE bytes, if that is not 0. A
    tile at most half full is multiplied as one of half its rows. With one canvas, copies alone take 85 % of the time.
    """
    SCALE_STAGES: gl.constexpr = STAGES // 2 + 1
    expert = gl.load(expert_ptr + gl.program_id(1))
    if expert >= 0:
        weight = gl.allocate_shared_memory(gl.int32, [STAGES, 1, 2, BLOCK, WORDS], packed.layout)
        scale = gl.allocate_shared_memory(gl.int32, [SCALE_STAGES, 1, 2, BLOCK, 4], scales.layout)
        ready = _barriers(STAGES)
        for step in gl.static_range(_smaller(STAGES - 1, HIDDEN // STEP)):
            _fetch_up(packed, scales, ready, weight, scale, step, expert, step % 2 == 0, HIDDEN, STAGES, SCALE_STAGES)
        first = gl.load(first_ptr + gl.program_id(1))
        end = gl.load(end_ptr + expert)
        if end - first <= ROWS // 2:
            _up_rows(
                x_ptr, packed, scales, ready, weight, scale, h_ptr, order_ptr, expert, first, end, choices,
                HIDDEN, WIDTH, ROWS // 2, STAGES, TOKEN_STAGES, SCALE_STAGES, INTERLEAVE,
            )  # fmt: skip
        else:
            _up_rows(
                x_ptr, packed, scales, ready, weight, scale, h_ptr, order_ptr, expert, first, end, choices,
                HIDDEN, WIDTH, ROWS, STAGES, TOKEN_STAGES, SCALE_STAGES, INTERLEAVE,
            )  # fmt: skip


@gluon.jit
def _fetch_up(
    packed, scales, ready, weight, scale, step, expert,
    EVEN: gl.constexpr, HIDDEN: gl.constexpr, STAGES: gl.constexpr, SCALE_STAGES: gl.constexpr,
):  # fmt: skip
    """Fetch the weights of a step, and in even steps the scales of two."""
    line, inside, stage = gl.program_id(0) * BLOCK, step < HIDDEN // STEP, step % STAGES
    mbarrier.expect(ready.index(stage), 2 * BLOCK * (4 * WORDS + 16 if EVEN else 4 * WORDS), pred=inside)
    fetch_tile(packed, [expert, 0, line, step * WORDS], ready.index(stage), weight.index(stage), pred=inside)
    if EVEN:
        to = scale.index(step // 2 % SCALE_STAGES)
        fetch_tile(scales, [expert, 0, line, step * 2], ready.index(stage), to, pred=inside)


@gluon.jit
def _up_rows(
    x_ptr, packed, scales, ready, weight, scale, h_ptr, order_ptr, expert, first, end, choices,
    HIDDEN: gl.constexpr, WIDTH: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, TOKEN_STAGES: gl.constexpr,
    SCALE_STAGES: gl.constexpr, INTERLEAVE: gl.constexpr,
):  # fmt: skip
    """Compute up to ROWS rows of `_up`."""
    STEPS: gl.constexpr = HIDDEN // STEP
    SUMS: gl.constexpr = _sums(ROWS)
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    WORD: gl.constexpr = row_layout([1, 2], [4, 8], 16)
    SCALE: gl.constexpr = row_layout([2], [0, 1], 4)
    TOKENS: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    place = first + gl.arange(0, ROWS, layout=sliced(TOKENS, 1))
    valid_row = (place < end)[:, None]
    token = gl.load(order_ptr + place, mask=place < end, other=0) // choices
    x_at = x_ptr + token[:, None].to(gl.int64) * HIDDEN + gl.arange(0, STEP, layout=sliced(TOKENS, 0))[None, :]
    x = gl.allocate_shared_memory(gl.bfloat16, [TOKEN_STAGES, ROWS, STEP], gl.NVMMASharedLayout(128, 16, 2))
    for step in gl.static_range(TOKEN_STAGES - 2):
        copy_to_shared(x.index(step), x_at + step * STEP, mask=valid_row)
        async_copy.commit_group()
    choice = selector(1)
    gate = warpgroup_mma_init(gl.zeros([BLOCK, ROWS], gl.float32, layout=SUMS))
    up = warpgroup_mma_init(gl.zeros([BLOCK, ROWS], gl.float32, layout=SUMS))
    for two in range(STEPS // 2):
        for odd in gl.static_range(2):
            now = 2 * two + odd
            async_copy.wait_group(TOKEN_STAGES - 3)
            fence_async_shared()
            barrier()
            # All warps have converted the weights of the last step, and multiplied the tokens of the last but one.
            _fetch_up(
                packed, scales, ready, weight, scale, now + STAGES - 1, expert,
                (odd + STAGES - 1) % 2 == 0, HIDDEN, STAGES, SCALE_STAGES,
            )  # fmt: skip
            ahead = now + TOKEN_STAGES - 2
            if ahead < STEPS:
                copy_to_shared(x.index(ahead % TOKEN_STAGES), x_at + ahead * STEP, mask=valid_row)
            async_copy.commit_group()
            mbarrier.wait(ready.index(now % STAGES), now // STAGES & 1)
            if odd == 0:
                both = scale.index(two % SCALE_STAGES).reshape([2 * BLOCK, 4])
                gate_even, gate_odd = _even_and_odd(both.slice(0, BLOCK).load(SCALE))
                up_even, up_odd = _even_and_odd(both.slice(BLOCK, BLOCK).load(SCALE))
            word = weight.index(now % STAGES).reshape([2 * BLOCK, WORDS])
            gate_word, up_word = word.slice(0, BLOCK).load(WORD), word.slice(BLOCK, BLOCK).load(WORD)
            x_now = x.index(now % TOKEN_STAGES).permute((1, 0))
            gate_weight = convert(gate_word, gate_odd if odd else gate_even, choice, 1, OPERAND)
            gate = warpgroup_mma(gate_weight, x_now, gate, is_async=True)
            up = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[up]))  # that of the last step, not the one just begun
            up_weight = convert(up_word, up_odd if odd else up_even, choice, 1, OPERAND)
            up = warpgroup_mma(up_weight, x_now, up, is_async=True)
            gate = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[gate]))
    gate, up = warpgroup_mma_wait(0, deps=[gate, up])
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])
    h = gl.convert_layout((_gelu(gate * SUM_SCALE) * (up * SUM_SCALE)).to(gl.bfloat16), OUT)
    place = first + gl.arange(0, ROWS, layout=sliced(OUT, 0))
    column = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=sliced(OUT, 1))
    target = _interleaved_to(column, INTERLEAVE) if INTERLEAVE else column
    h_at = h_ptr + place[None, :].to(gl.int64) * WIDTH + target[:, None]
    gl.store(h_at, h, mask=(place < end)[None, :])


@gluon.jit
def _even_and_odd(scale):
    """Return the words of scales of an even step and of the step after it: [64, 2] each."""
    return gl.split(scale.reshape([64, 2, 2]).permute([0, 2, 1]))


@gluon.jit
def _gelu(x):
    """`linear.gelu`"""
    return x * (1 / (1 + gl.exp(-gl.maximum(1.5957691216057308 * (x + 0.044715 * x * x * x), -80.0))))


@gluon.jit
def _interleaved_to(column, DEPTH: gl.constexpr):
    """`four_bit.interleaved_to`"""
    EACH: gl.constexpr = DEPTH // 16
    pair, half, word, thread = column % 4, column // 4 % 2, column // 8 % EACH, column // 8 // EACH % 4
    return column // (2 * DEPTH) * (2 * DEPTH) + ((word * 4 + pair) * 4 + thread) * 2 + half


# --- second product ---------------------------------------------------------------------------------------------------


@gluon.jit
def _down(
    rows, half_rows, packed, scale_ptr, y_ptr, order_ptr, end_ptr, expert_ptr, first_ptr,
    WIDTH: gl.constexpr, HIDDEN: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute h @ down for one tile of rows and 128 columns, and store each row at the index of its pair.

    Grid: (H / 128, N). rows and half_rows are descriptors of ROWS and ROWS / 2 rows of h [R, I] in sorted order,
    interleaved for tiles of 32 bytes; packed is a descriptor of words [E, H / 64, 64, ...], scale [E, H, I / 64] words
    of two scales, y [R, H]. Beyond the width of a row, weights, scales and h are zeros. Bounds as for `_up`.
    """
    SCALE_WORDS: gl.constexpr = WIDTH // 64
    expert = gl.load(expert_ptr + gl.program_id(1))
    if expert >= 0:
        first = gl.load(first_ptr + gl.program_id(1))
        end = gl.load(end_ptr + expert)
        weight = gl.allocate_shared_memory(gl.int32, [STAGES, 1, 2, BLOCK, WORDS], packed.layout)
        # Rows of scales are not multiples of 16 bytes, as the copy engine requires. All are copied at the start.
        steps: gl.constexpr = (WIDTH + STEP - 1) // STEP
        scale = gl.allocate_shared_memory(gl.int32, [steps, 2 * BLOCK, 2], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
        ready = _barriers(STAGES)
        SCALES: gl.constexpr = gl.BlockedLayout([1, 1], [16, 2], [4, 1], [1, 0])
        word = gl.arange(0, 2, layout=sliced(SCALES, 0))[None, :]
        row = gl.program_id(0) * (2 * BLOCK) + gl.arange(0, 2 * BLOCK, layout=sliced(SCALES, 1))[:, None]
        scale_at = scale_ptr + (expert * HIDDEN + row) * SCALE_WORDS + word
        for step in gl.static_range(steps):
            copy_to_shared(
                scale.index(step), scale_at + 2 * step, mask=(word + 2 * step < SCALE_WORDS) & (row < HIDDEN)
            )
        async_copy.commit_group()
        if end - first <= ROWS // 2:
            _down_rows(
                half_rows, packed, ready, weight, scale, y_ptr, order_ptr, expert, first, end,
                WIDTH, HIDDEN, ROWS // 2, STAGES,
            )  # fmt: skip
        else:
            _down_rows(
                rows, packed, ready, weight, scale, y_ptr, order_ptr, expert, first, end, WIDTH, HIDDEN, ROWS, STAGES
            )


@gluon.jit
def _fetch_down(
    rows, packed, ready, weight, h, step, expert, first,
    WIDTH: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fetch the weights and the rows of a step."""
    inside, stage = step * STEP < WIDTH, step % STAGES
    mbarrier.expect(ready.index(stage), 2 * BLOCK * 4 * WORDS + ROWS * STEP * 2, pred=inside)
    line = 2 * gl.program_id(0)
    fetch_tile(packed, [expert, line, 0, step * WORDS], ready.index(stage), weight.index(stage), pred=inside)
    fetch_tile(rows, [first, step * STEP], ready.index(stage), h.index(stage), pred=inside)


@gluon.jit
def _down_rows(
    rows, packed, ready, weight, scale, y_ptr, order_ptr, expert, first, end,
    WIDTH: gl.constexpr, HIDDEN: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute up to ROWS rows of `_down`."""
    SUMS: gl.constexpr = _sums(ROWS)
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    WORD: gl.constexpr = row_layout([1, 8], [2, 4], 16)
    SCALE: gl.constexpr = row_layout([1], [0, 0], 2)
    h = gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, STEP], gl.NVMMASharedLayout(128, 16, 2))
    for step in gl.static_range(_smaller(STAGES, (WIDTH + STEP - 1) // STEP)):
        _fetch_down(rows, packed, ready, weight, h, step, expert, first, WIDTH, ROWS, STAGES)
    choice = selector(2)
    left = warpgroup_mma_init(gl.zeros([BLOCK, ROWS], gl.float32, layout=SUMS))
    right = warpgroup_mma_init(gl.zeros([BLOCK, ROWS], gl.float32, layout=SUMS))
    async_copy.wait_group(0)
    for now in range((WIDTH + STEP - 1) // STEP):
        barrier()
        if now >= 2:  # all warps have finished the products of the last step but one
            _fetch_down(rows, packed, ready, weight, h, now + STAGES - 2, expert, first, WIDTH, ROWS, STAGES)
        mbarrier.wait(ready.index(now % STAGES), now // STAGES & 1)
        both = scale.index(now)
        left_scale, right_scale = both.slice(0, BLOCK).load(SCALE), both.slice(BLOCK, BLOCK).load(SCALE)
        word = weight.index(now % STAGES).reshape([2 * BLOCK, WORDS])
        left_word, right_word = word.slice(0, BLOCK).load(WORD), word.slice(BLOCK, BLOCK).load(WORD)
        h_now = h.index(now % STAGES).permute((1, 0))
        left_weight = convert(left_word, left_scale, choice, 2, OPERAND)
        left = warpgroup_mma(left_weight, h_now, left, is_async=True)
        right = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[right]))  # that of the last step
        right_weight = convert(right_word, right_scale, choice, 2, OPERAND)
        right = warpgroup_mma(right_weight, h_now, right, is_async=True)
        left = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[left]))
    left, right = warpgroup_mma_wait(0, deps=[left, right])
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])
    place = first + gl.arange(0, ROWS, layout=sliced(OUT, 0))
    valid_row = place < end
    pair = gl.load(order_ptr + place, mask=valid_row, other=0)
    column = gl.program_id(0) * (2 * BLOCK) + gl.arange(0, BLOCK, layout=sliced(OUT, 1))
    y_at = y_ptr + pair[None, :].to(gl.int64) * HIDDEN + column[:, None]
    gl.store(y_at, gl.convert_layout((left * SUM_SCALE).to(gl.bfloat16), OUT), mask=valid_row[None, :])
    gl.store(y_at + BLOCK, gl.convert_layout((right * SUM_SCALE).to(gl.bfloat16), OUT), mask=valid_row[None, :])
