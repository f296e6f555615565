"""The two grouped products of `experts.py` with four-bit weights, int4, uint4 or NVFP4, converted as they are read.

Operands are exchanged: the weights are the left operand, and the rows of a tile are the columns of the result
(`four_bit.py` gives the reason). Weights are fetched by the copy engine. A step reads fewer bytes of a row than one
memory access delivers; the copy engine keeps the rest in the cache for the next step. On Hopper, int4 without adapters
has faster kernels with the same results: `experts_int4_hopper.py`.

T tokens, H hidden, E experts, K experts per token, I expert width, R = T * K pairs, N tiles of rows.
"""

from types import ModuleType

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents
from triton.tools.tensor_descriptor import TensorDescriptor

from gesso.backends.cuda.kernels.experts import Groups
from gesso.backends.cuda.kernels.four_bit import (
    FourBitMatrices,
    check_fits,
    gate_up_rows,
    gated_sum,
    in_ptx,
    interleaved_to,
    sum_scale,
    tile,
)
from gesso.backends.cuda.kernels.gluon_kernels import gluon_kernels
from gesso.backends.cuda.kernels.hidden import Hidden
from gesso.backends.cuda.kernels.linear import BLOCK, MANY, Tiling, Tilings, fp8, fp8_scale, precision
from gesso.backends.cuda.kernels.low_rank import NOT_SPECIALIZED, Inner, add_low_rank, arguments
from gesso.cards.running import card_of

# Each entry: the largest number of tokens, and the tiling up to there. Depth is in bytes of two values each. It is the
# same for any number of tokens, because it defines the order of the sums. More stages are slower: scales pass through
# the L1 cache, from which shared memory is taken, and NVFP4 has twice as many scales. A tile at most half full is
# multiplied as one of half its rows, because some experts have several times as many rows as others. The tilings of
# uint4 are those of int4; no others have been measured.
TILINGS: dict[tuple[str, str], Tilings] = {
    ("up", "int4"): ((768, Tiling(32, BLOCK, 64, 4, 3)), (MANY, Tiling(64, BLOCK, 64, 8, 3))),
    ("up", "uint4"): ((768, Tiling(32, BLOCK, 64, 4, 3)), (MANY, Tiling(64, BLOCK, 64, 8, 3))),
    ("up", "nvfp4"): ((768, Tiling(32, BLOCK, 32, 4, 3)), (MANY, Tiling(64, BLOCK, 32, 4, 3))),
    ("down", "int4"): ((768, Tiling(32, 128, 32, 4, 4)), (MANY, Tiling(64, 128, 32, 4, 4))),
    ("down", "uint4"): ((768, Tiling(32, 128, 32, 4, 4)), (MANY, Tiling(64, 128, 32, 4, 4))),
    ("down", "nvfp4"): ((768, Tiling(32, 128, 32, 4, 4)), (MANY, Tiling(64, 128, 32, 4, 4))),
}

# Tokens from which on the kernels for Hopper run, with the same bits. Token by token, int4 was slower with them.
LEAST_FOR_HOPPER = 32


def choose_tiling(product: str, format: str, tokens: int) -> Tiling:
    return next(tiling for limit, tiling in TILINGS[product, format] if tokens <= limit)


def depth(product: str, format: str) -> int:
    """Return the tile depth for which the input of a product is interleaved."""
    return choose_tiling(product, format, 1).depth


def up_product(
    x_TH: Tensor, groups: Groups, k: int, gate_up: FourBitMatrices, h: Hidden, inner: Inner | None = None
) -> None:
    """Write gelu(x gate) * (x up) [R, I] of all pairs to `h`, in the order of `groups`. x is interleaved."""
    (tokens, hidden), width = x_TH.shape, gate_up.packed_EOB.shape[1] // 2
    tiling = choose_tiling("up", gate_up.format, tokens)
    check_fits(gate_up, tiling)
    h.check_block(tiling.columns, "first")
    hopper = _hopper(x_TH, tokens, gate_up, inner)
    if hopper is not None and hopper.fits_up(x_TH, gate_up, h):
        return hopper.up_product(x_TH, groups, k, gate_up, h, tiling.rows)
    grid = (triton.cdiv(width, tiling.columns), len(groups.expert_N))
    adapters, constants = arguments(inner)
    _up[grid](
        x_TH, _gate_up(gate_up, tiling), gate_up.scales, gate_up.global_scale_EX, h.rows_RI, h.scale_RB,
        groups.order_R, groups.end_E, groups.expert_N, groups.first_N,
        k, *adapters, HIDDEN=hidden, WIDTH=width,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, GROUP=gate_up.group,
        IN_WORD=gate_up.scales_in_word, GLOBALS=gate_up.global_scales, FORMAT=gate_up.format, INTERLEAVE=h.interleave,
        **constants, PTX=in_ptx(x_TH), PRECISION=precision(x_TH),
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip


def down_product(h: Hidden, groups: Groups, k: int, matrices: FourBitMatrices, inner: Inner | None = None) -> Tensor:
    """Return h @ down [R, H], with rows in the order of the pairs. h is interleaved, the result is not."""
    h_RI = h.rows_RI
    (pairs, width), hidden = h_RI.shape, matrices.packed_EOB.shape[1]
    tiling = choose_tiling("down", matrices.format, pairs // k)
    check_fits(matrices, tiling)
    if h.interleave != tiling.depth:
        raise ValueError(f"expected rows interleaved for tiles of {tiling.depth} bytes, got {h.interleave}")
    if matrices.global_scales != 1:
        raise ValueError(f"expected one global scale per expert in the second product, got {matrices.global_scales}")
    hopper = _hopper(h_RI, pairs // k, matrices, inner)
    if hopper is not None and hopper.fits(h_RI, matrices):
        return hopper.down_product(h, groups, matrices, tiling.rows)
    y_RH = torch.empty(pairs, hidden, dtype=h_RI.dtype, device=h_RI.device)
    grid = (triton.cdiv(hidden, tiling.columns), len(groups.expert_N))
    adapters, constants = arguments(inner)
    if inner is not None and tiling.rows < 64:
        constants["maxnreg"] = 96  # for five programs on an SM, as without adapters
    _down[grid](
        h_RI, TensorDescriptor.from_tensor(matrices.words, [1, tiling.columns, tiling.depth // 4]),
        matrices.scales, matrices.global_scale_EX, y_RH,
        groups.order_R, groups.end_E, groups.expert_N, groups.first_N,
        k, *adapters, WIDTH=width, HIDDEN=hidden,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, GROUP=matrices.group,
        IN_WORD=matrices.scales_in_word, FORMAT=matrices.format, **constants,
        PTX=in_ptx(h_RI), PRECISION=precision(h_RI),
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return y_RH


def _hopper(x: Tensor, tokens: int, matrices: FourBitMatrices, inner: Inner | None) -> ModuleType | None:
    """Return the kernels for Hopper if they may apply to a product of rows x."""
    if inner is not None or tokens < LEAST_FOR_HOPPER or matrices.format != "int4":
        return None
    if not card_of(x.device).has_warp_group_products:
        return None
    return gluon_kernels("experts_int4_hopper")


def _gate_up(gate_up: FourBitMatrices, tiling: Tiling) -> TensorDescriptor:
    """Return a descriptor of both matrices of an expert in the order of `gate_up_rows`: [E, I / 8, gate or up, 8,
    words].
    """
    words_EOW = gate_up.words
    experts, both, words = words_EOW.shape
    shape = [experts, both // 16, 2, 8, words]
    strides = [both * words, 8 * words, both // 2 * words, words, 1]
    return TensorDescriptor(words_EOW, shape, strides, [1, tiling.columns // 8, 2, 8, tiling.depth // 4])


# Model sizes are compile-time constants here, because the alignment of rows follows from them. Without it the scales, a
# few bytes per row, could not be prefetched.


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def _up(
    x_ptr, packed, scale_ptr, global_scale_ptr, h_ptr, h_scale_ptr, order_ptr, end_ptr, expert_ptr, first_ptr, choices,
    inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, IN_WORD: tl.constexpr, GLOBALS: tl.constexpr, FORMAT: tl.constexpr,
    INTERLEAVE: tl.constexpr, RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, WAITS: tl.constexpr,
    PTX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute gelu(x gate) * (x up) for one tile of rows and one block of columns.

    Grid: (I / COLUMNS, N). x is [T, H], interleaved; packed is the descriptor of `_gate_up`; h is [R, I] in sorted
    order. If h_scale [R, I / COLUMNS] is given, h is quantized to FP8. If INTERLEAVE is not 0, the columns of h are
    interleaved for tiles of that many bytes. GROUP: bytes per scale. IN_WORD: scales per 32-bit word. global_scale [E,
    GLOBALS] is given for NVFP4. If inner values are given, adapters are added (`low_rank.arguments`). Bound by the
    conversion to bfloat16 rather than by memory or the tensor cores alone.
    """
    if WAITS != "not":
        gdc_launch_dependents()
    expert = tl.load(expert_ptr + tl.program_id(1))
    if expert < 0:
        return
    first = tl.load(first_ptr + tl.program_id(1))
    end = tl.load(end_ptr + expert)
    if end - first <= ROWS // 2:
        _up_rows(
            x_ptr, packed, scale_ptr, global_scale_ptr, h_ptr, h_scale_ptr, order_ptr, expert, first, end, choices,
            inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
            HIDDEN, WIDTH, ROWS // 2, COLUMNS, DEPTH, GROUP, IN_WORD, GLOBALS, FORMAT, INTERLEAVE,
            RANK, INNER_PARTS, CHUNK, WAITS, PTX, PRECISION,
        )  # fmt: skip
    else:
        _up_rows(
            x_ptr, packed, scale_ptr, global_scale_ptr, h_ptr, h_scale_ptr, order_ptr, expert, first, end, choices,
            inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
            HIDDEN, WIDTH, ROWS, COLUMNS, DEPTH, GROUP, IN_WORD, GLOBALS, FORMAT, INTERLEAVE,
            RANK, INNER_PARTS, CHUNK, WAITS, PTX, PRECISION,
        )  # fmt: skip


@triton.jit
def _up_rows(
    x_ptr, packed, scale_ptr, global_scale_ptr, h_ptr, h_scale_ptr, order_ptr, expert, first, end, choices,
    inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, IN_WORD: tl.constexpr, GLOBALS: tl.constexpr, FORMAT: tl.constexpr,
    INTERLEAVE: tl.constexpr, RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, WAITS: tl.constexpr,
    PTX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute up to ROWS rows of `_up`."""
    place = first + tl.arange(0, ROWS)
    valid_row = place < end
    token = tl.load(order_ptr + place, mask=valid_row, other=0) // choices
    if inner_ptr is not None:
        slot = tl.load(slot_ptr + place, mask=valid_row, other=-1)
    # Columns beyond the last are zeros with the last column's scale, and are not stored.
    column_in_tile, is_up = gate_up_rows(COLUMNS)
    column = tl.minimum(tl.program_id(0) * COLUMNS + column_in_tile, WIDTH - 1)
    row = (expert.to(tl.int64) * 2 + is_up) * WIDTH + column
    HALF: tl.constexpr = HIDDEN // 2
    SCALES: tl.constexpr = HALF // GROUP // IN_WORD
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    x_at = x_ptr + token[None, :].to(tl.int64) * HIDDEN + tl.arange(0, 2 * DEPTH)[:, None]
    scale_at = scale_ptr + row * SCALES
    both = tl.zeros((2 * COLUMNS, ROWS), tl.float32)
    for start in range(0, HALF, DEPTH):
        x = tl.load(x_at + 2 * start, mask=valid_row[None, :], other=0.0)
        word = packed.load([expert, tl.program_id(0) * (COLUMNS // 8), 0, 0, start // 4])
        word = word.reshape((2 * COLUMNS, DEPTH // 4))
        weight = tile(word, scale_at, start, 2 * COLUMNS, DEPTH, GROUP, IN_WORD, FORMAT, PTX, dtype)
        both = tl.dot(weight, x, both, input_precision=PRECISION)
    if GLOBALS == 2:
        both *= sum_scale(global_scale_ptr, 2 * expert + is_up)[:, None]
    else:
        both *= sum_scale(global_scale_ptr, expert)
    if inner_ptr is not None:
        inside = tl.program_id(0) * COLUMNS + column_in_tile < WIDTH
        both = add_low_rank(
            both, inner_ptr, b_ptr, slot, place, row, inside, 0,
            inner_rows, inner_columns, b_lines, b_slots, RANK, INNER_PARTS, CHUNK, WAITS, True, PRECISION,
        )  # fmt: skip
    h = gated_sum(both, COLUMNS, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    if h_scale_ptr is not None:
        h_scale = fp8_scale(tl.max(tl.where((column < WIDTH)[:, None], tl.abs(h), 0.0), 0))
        tl.store(h_scale_ptr + place * tl.num_programs(0) + tl.program_id(0), h_scale, mask=valid_row)
        h = fp8(h / h_scale[None, :])
    target = interleaved_to(column, INTERLEAVE) if INTERLEAVE else column
    h_at = h_ptr + place[None, :].to(tl.int64) * WIDTH + target[:, None]
    tl.store(h_at, h.to(h_ptr.dtype.element_ty), mask=valid_row[None, :] & (column < WIDTH)[:, None])


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def _down(
    h_ptr, packed, scale_ptr, global_scale_ptr, y_ptr, order_ptr, end_ptr, expert_ptr, first_ptr, choices,
    inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
    WIDTH: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, IN_WORD: tl.constexpr, FORMAT: tl.constexpr,
    RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, WAITS: tl.constexpr,
    PTX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute h @ down for one tile of rows and one block of columns, and store each row at the index of its pair.

    Grid: (H / COLUMNS, N). h is [R, I] in sorted order, interleaved; packed is a descriptor of [E, H, words]; y is [R,
    H]. Other arguments and bounds as for `_up`.
    """
    expert = tl.load(expert_ptr + tl.program_id(1))
    if expert < 0:
        return
    first = tl.load(first_ptr + tl.program_id(1))
    end = tl.load(end_ptr + expert)
    if end - first <= ROWS // 2:
        _down_rows(
            h_ptr, packed, scale_ptr, global_scale_ptr, y_ptr, order_ptr, expert, first, end, choices,
            inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
            WIDTH, HIDDEN, ROWS // 2, COLUMNS, DEPTH, GROUP, IN_WORD, FORMAT,
            RANK, INNER_PARTS, CHUNK, WAITS, PTX, PRECISION,
        )  # fmt: skip
    else:
        _down_rows(
            h_ptr, packed, scale_ptr, global_scale_ptr, y_ptr, order_ptr, expert, first, end, choices,
            inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
            WIDTH, HIDDEN, ROWS, COLUMNS, DEPTH, GROUP, IN_WORD, FORMAT,
            RANK, INNER_PARTS, CHUNK, WAITS, PTX, PRECISION,
        )  # fmt: skip


@triton.jit
def _down_rows(
    h_ptr, packed, scale_ptr, global_scale_ptr, y_ptr, order_ptr, expert, first, end, choices,
    inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
    WIDTH: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, IN_WORD: tl.constexpr, FORMAT: tl.constexpr,
    RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, WAITS: tl.constexpr,
    PTX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute up to ROWS rows of `_down`."""
    place = first + tl.arange(0, ROWS)
    valid_row = place < end
    pair = tl.load(order_ptr + place, mask=valid_row, other=0)
    if inner_ptr is not None:
        slot = tl.load(slot_ptr + place, mask=valid_row, other=-1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = expert.to(tl.int64) * HIDDEN + tl.minimum(column, HIDDEN - 1)
    HALF: tl.constexpr = WIDTH // 2
    SCALES: tl.constexpr = HALF // GROUP // IN_WORD
    dtype: tl.constexpr = h_ptr.dtype.element_ty
    h_at = h_ptr + place[None, :].to(tl.int64) * WIDTH + tl.arange(0, 2 * DEPTH)[:, None]
    scale_at = scale_ptr + row * SCALES
    y = tl.zeros((COLUMNS, ROWS), tl.float32)
    for start in range(0, HALF, DEPTH):
        h = tl.load(h_at + 2 * start, mask=valid_row[None, :], other=0.0)
        word = packed.load([expert, tl.program_id(0) * COLUMNS, start // 4]).reshape((COLUMNS, DEPTH // 4))
        weight = tile(word, scale_at, start, COLUMNS, DEPTH, GROUP, IN_WORD, FORMAT, PTX, dtype)
        y = tl.dot(weight, h, y, input_precision=PRECISION)
    y *= sum_scale(global_scale_ptr, expert)
    if inner_ptr is not None:
        y = add_low_rank(
            y, inner_ptr, b_ptr, slot, place, row, column < HIDDEN, 0,
            inner_rows, inner_columns, b_lines, b_slots, RANK, INNER_PARTS, CHUNK, WAITS, True, PRECISION,
        )  # fmt: skip
    y_at = y_ptr + pair[None, :].to(tl.int64) * HIDDEN + column[:, None]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=valid_row[None, :] & (column < HIDDEN)[:, None])
