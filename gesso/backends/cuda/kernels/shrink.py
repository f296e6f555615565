"""The inner values x Aᵀ of adapters, for the products that `low_rank.py` adds them to.

Rows have a few inner values each, so one program per tile of rows would read its inputs too slowly and leave most of
the GPU idle. Long rows are therefore split into parts, whose sums the product adds in order. The number of parts
depends on the width alone, so that a row always gets the same bits.

x has the form that the product reads: plain, in FP8 with one scale per row or per block of columns, or interleaved for
four-bit weights; then the columns of A are interleaved, too. A is bfloat16 or float32, and FP8 values are converted to
that, which is exact. If a dense product has yet to round its tokens to FP8, one launch does both: it computes the inner
values from the tokens before rounding.

T tokens, S slots, E experts, C inner values of a launch, I inputs, R rows, P parts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from gesso.backends.cuda.kernels.experts import Groups
from gesso.backends.cuda.kernels.hidden import Hidden
from gesso.backends.cuda.kernels.linear import FP8, Tiling, precision, quantize_row
from gesso.backends.cuda.kernels.low_rank import Factors, Inner, can_launch_early, launch_early

# Columns: at most so many. A tile of more rows is divided among several programs, most of which have nothing to do.
DENSE = {torch.bfloat16: Tiling(32, 64, 128, 4, 4), torch.float32: Tiling(16, 64, 32, 4, 2)}
EXPERTS = {torch.bfloat16: Tiling(32, 64, 128, 2, 4), torch.float32: Tiling(16, 64, 32, 4, 2)}
# Rows of more than WHOLE inputs are split into parts. The products of experts take long enough to hide a slower launch;
# what they notice is the number of sums to add.
WHOLE, PARTS, EXPERT_PARTS = 1024, 4, 1


# Triton compiles a kernel for the value 1 alone. A second adapter must not need another, while requests wait for it.
NOT_SPECIALIZED = ["slots"]


def parts_of(width: int, experts: int) -> int:
    return 1 if width <= WHOLE else PARTS if experts == 1 else EXPERT_PARTS


def shrink(x_TI: Tensor, scale_T: Tensor | None, factors: Factors) -> Inner:
    """Return the inner values of tokens for the dense matrices of one launch. FP8 tokens have scales."""
    rows = DENSE[factors.a_SECI.dtype].rows
    return _launch(x_TI, scale_T, factors, len(x_TI), triton.cdiv(len(x_TI), rows), rows)


def quantize_and_shrink(x_TI: Tensor, factors: Factors) -> tuple[Tensor, Tensor, Inner]:
    """Return rows in FP8, one scale per row, and the inner values of the rows before rounding."""
    low_TI, scale_T = torch.empty_like(x_TI, dtype=FP8), torch.empty(len(x_TI), device=x_TI.device)
    (tokens, width), (slots, _, lines, _) = x_TI.shape, factors.a_SECI.shape
    tiling, parts = DENSE[factors.a_SECI.dtype], parts_of(width, 1)
    columns, tiles = min(tiling.columns, factors.rank), triton.cdiv(tokens, tiling.rows)
    sums_PRC, early = torch.empty(parts, tokens, lines, device=x_TI.device), can_launch_early(x_TI.device)
    _quantize_and_shrink[(tokens + tiles * parts * (lines // columns),)](
        x_TI, low_TI, scale_T, TensorDescriptor.from_tensor(factors.a_SECI.view(-1, width), [columns, tiling.depth]),
        sums_PRC, factors.slot_T, tokens, width, slots, lines, tiles,
        WIDTH=triton.next_power_of_2(width), ROWS=tiling.rows, COLUMNS=columns, DEPTH=tiling.depth, PARTS=parts,
        EVEN=width % tiling.depth == 0, EARLY=early, PRECISION=precision(x_TI),
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return low_TI, scale_T, Inner(sums_PRC, factors.slot_T, factors, "at the start" if early else "not")


def shrink_tokens(x_TH: Tensor, scale_T: Tensor | None, groups: Groups, rows: int, k: int, factors: Factors) -> Inner:
    """Return the inner values of all pairs for the first matrices of experts, in the order of `groups`, whose tiles
    have `rows` rows.
    """
    pairs, tiles = len(groups.order_R), len(groups.expert_N)
    return _launch(x_TH, scale_T, factors, pairs, tiles, rows, groups, k)


def shrink_blocks(h: Hidden, factors: Factors) -> Inner:
    """Return the inner values of FP8 rows with a scale per block of columns, for a dense matrix."""
    rows = DENSE[factors.a_SECI.dtype].rows
    tokens = len(h.rows_RI)
    return _launch(h.rows_RI, h.scale_RB, factors, tokens, triton.cdiv(tokens, rows), rows, block=h.block)


def shrink_hidden(h: Hidden, groups: Groups, rows: int, k: int, factors: Factors) -> Inner:
    """Return the inner values of the rows between the products for the second matrices of experts."""
    tiles = len(groups.expert_N)
    return _launch(h.rows_RI, h.scale_RB, factors, len(h.rows_RI), tiles, rows, groups, k, True, h.block)


def _launch(
    x: Tensor, scale: Tensor | None, factors: Factors, count: int, tiles: int, tile_rows: int,
    groups: Groups | None = None, k: int = 1, is_sorted: bool = False, block: int = 0,
) -> Inner:  # fmt: skip
    a_SECI = factors.a_SECI
    slots, experts, lines, width = a_SECI.shape
    tiling = (DENSE if groups is None else EXPERTS)[a_SECI.dtype]
    depth, columns, parts = block or tiling.depth, min(tiling.columns, factors.rank), parts_of(width, experts)
    rows = min(tile_rows, tiling.rows)
    sums_PRC, early = torch.empty(parts, count, lines, device=x.device), can_launch_early(x.device)
    slot_R = factors.slot_T if groups is None else groups.slot_R
    assert slot_R is not None, "experts with adapters need sorted slots"
    after_start = early and groups is not None  # the launches before those of experts allow it
    order = (None,) * 4 if groups is None else (groups.order_R, groups.end_E, groups.expert_N, groups.first_N)
    _shrink[tiles * (tile_rows // rows), lines // columns, parts](
        x, scale, TensorDescriptor.from_tensor(a_SECI.view(-1, width), [columns, depth]), sums_PRC, slot_R,
        *order, count, k, width, slots, experts, lines,
        TILE=tile_rows, ROWS=rows, COLUMNS=columns, DEPTH=depth, PARTS=parts, SORTED=is_sorted, BLOCK=block,
        ROW_SCALES=scale is not None and block == 0, EVEN=width % depth == 0, EARLY=early,
        WAITS=after_start, PRECISION=precision(a_SECI), num_warps=tiling.warps, num_stages=tiling.stages,
        **launch_early(after_start),
    )  # fmt: skip
    return Inner(sums_PRC, slot_R, factors, "at the end" if early else "not")


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def _shrink(
    x_ptr, x_scale_ptr, a, inner_ptr, slot_ptr, order_ptr, end_ptr, expert_ptr, first_ptr,
    rows, choices, width, slots, experts, lines,
    TILE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr,
    SORTED: tl.constexpr, BLOCK: tl.constexpr, ROW_SCALES: tl.constexpr, EVEN: tl.constexpr, EARLY: tl.constexpr,
    WAITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute some inner values of ROWS rows over one part of the inputs, for every slot that one of them has.

    Grid: (R / ROWS, or with experts tiles of `Groups` times TILE / ROWS; C / COLUMNS; PARTS). x is [T, I], or [R, I] in
    sorted order if SORTED; a is a descriptor of [S E C, I]; inner is [P, R, C]; slot is [R]. The tensors of `Groups`
    are given for experts. x_scale is given for FP8: [T] with ROW_SCALES, or [R, I / BLOCK] if BLOCK is not 0; then
    DEPTH is BLOCK. EVEN: DEPTH divides I, so that loads of x need no column mask. EARLY: let the product
    start. WAITS: this kernel has started early itself, with the launch before it.

    Latency-bound; with experts, bound about equally by reading a.
    """
    if WAITS:
        gdc_wait()
    if EARLY:  # not before: the product reads what the launch before this one wrote
        gdc_launch_dependents()
    tile, part = tl.program_id(0) // (TILE // ROWS), tl.program_id(2)
    offset = tl.program_id(0) % (TILE // ROWS) * ROWS + tl.arange(0, ROWS)
    if order_ptr is None:
        expert = tile * 0
        place = tile * TILE + offset
        valid = place < rows
        token = place
    else:
        chosen = tl.load(expert_ptr + tile)  # -1: nothing to do
        expert = tl.maximum(chosen, 0)
        place = tl.load(first_ptr + tile) + offset
        valid = place < tl.where(chosen >= 0, tl.load(end_ptr + expert), 0)
        # Masked by `rows`, so that this load does not wait for that of `end`.
        token = tl.load(order_ptr + place, mask=place < rows, other=0) // choices
    row = place if SORTED else token
    slot = tl.where(valid, tl.load(slot_ptr + place, mask=place < rows, other=-1), -1)
    _store_inner(
        x_ptr, x_scale_ptr, a, inner_ptr, slot, place, row, expert, tl.program_id(1), part,
        rows, width, slots, experts, lines, ROWS, COLUMNS, DEPTH, PARTS, BLOCK, ROW_SCALES, EVEN, PRECISION,
    )  # fmt: skip


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def _quantize_and_shrink(
    x_ptr, low_ptr, scale_ptr, a, inner_ptr, slot_ptr, tokens, width, slots, lines, tiles,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr,
    EVEN: tl.constexpr, EARLY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Quantize one row to FP8, as `linear.quantize_rows`, or compute inner values, as `_shrink` for dense matrices.

    Grid: (T + T / ROWS * PARTS * C / COLUMNS,): first the rows, then tiles of ROWS rows, then parts. low is [T, I] and
    scale [T]; WIDTH is a power of two not less than I. Other arguments as for `_shrink`. Latency-bound.
    """
    if EARLY:
        gdc_launch_dependents()
    number = tl.program_id(0) - tokens
    if number < 0:
        quantize_row(x_ptr, low_ptr, scale_ptr, tl.program_id(0).to(tl.int64), width, WIDTH)
    else:
        place = number % tiles * ROWS + tl.arange(0, ROWS)
        slot = tl.load(slot_ptr + place, mask=place < tokens, other=-1)
        part, block = number // tiles % PARTS, number // tiles // PARTS
        _store_inner(
            x_ptr, None, a, inner_ptr, slot, place, place, number * 0, block, part,
            tokens, width, slots, 1, lines, ROWS, COLUMNS, DEPTH, PARTS, 0, False, EVEN, PRECISION,
        )  # fmt: skip


@triton.jit
def _store_inner(
    x_ptr, x_scale_ptr, a, inner_ptr, slot, place, row, expert, block, part, rows, width, slots, experts, lines,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    ROW_SCALES: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute and store inner values of ROWS rows over one part of the inputs: the COLUMNS values of one block.

    slot [ROWS] is the slot of each row, or -1; place is its row in inner, and row that in x.
    """
    if ROW_SCALES:
        row_scale = tl.load(x_scale_ptr + row, mask=slot >= 0, other=0.0)[:, None]
    depth = tl.arange(0, DEPTH)
    x_at = x_ptr + row[:, None].to(tl.int64) * width + depth[None, :]
    steps = tl.cdiv(width, DEPTH)
    begin, end = steps * part // PARTS * DEPTH, tl.minimum(steps * (part + 1) // PARTS * DEPTH, width)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    for each in range(0, slots):
        own = slot == each
        if tl.max(own.to(tl.int32), 0) > 0:
            line = (each * experts + expert) * lines + block * COLUMNS
            inner = tl.zeros((ROWS, COLUMNS), tl.float32)
            for start in range(begin, end, DEPTH):
                within = own[:, None] if EVEN else own[:, None] & (start + depth[None, :] < width)
                x = tl.load(x_at + start, mask=within, other=0.0)
                weight = a.load([line, start])
                if BLOCK:
                    scale_at = x_scale_ptr + row * tl.cdiv(width, BLOCK) + start // BLOCK
                    scale = tl.load(scale_at, mask=own, other=0.0)[:, None]
                    inner += tl.dot(x.to(weight.dtype), tl.trans(weight), input_precision=PRECISION) * scale
                else:
                    inner = tl.dot(x.to(weight.dtype), tl.trans(weight), inner, input_precision=PRECISION)
            if ROW_SCALES:
                inner *= row_scale
            at = (part.to(tl.int64) * rows + place[:, None]) * lines + column[None, :]
            tl.store(inner_ptr + at, inner, mask=own[:, None])
