"""Mixture of experts: sort the (token, choice) pairs by expert, then run two grouped products. `Experts` in
`gesso/model/experts.py` is the specification. `mixture.py` runs both products. The weighted sum of a token's expert
outputs is in `rows.py`, fused with the norms that follow.

With one canvas, each of 128 experts gets some 16 rows, so the products take as long as reading the weights. Every
kernel here reads each weight once, at the speed of the memory. Weights are bfloat16 (or float32), or FP8 with one scale
per output channel of each expert. FP8 tokens have one scale each. Between the two products no program sees a whole row,
so each block of columns that a program computes has its own scale.

Nothing here depends on numbers that only the GPU knows: grids have the largest size that could be needed, and programs
without work return. The sums of a row run in one order, whatever else is in the batch.

T tokens, H hidden, E experts, K experts per token, I expert width, R = T * K pairs, N tiles of rows, O outputs, B
blocks of columns with a scale.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents
from triton.tools.tensor_descriptor import TensorDescriptor

from gesso.backends.cuda.kernels.four_bit import interleaved_to
from gesso.backends.cuda.kernels.hidden import Hidden
from gesso.backends.cuda.kernels.linear import (
    BLOCK,
    FP8,
    MANY,
    Tiling,
    Tilings,
    fitted,
    gelu,
    precision,
    quantize_block,
)
from gesso.backends.cuda.kernels.low_rank import (
    NOT_SPECIALIZED,
    Inner,
    add_low_rank,
    add_low_rank_to_both,
    arguments,
    can_launch_early,
)
from gesso.cards.card import Card
from gesso.cards.running import card_of

# Each entry: the largest number of tokens, and the tiling up to there. With one canvas an expert has some 16 rows, and
# most bytes by far are weights. What matters then is how many bytes are in flight: columns * depth * stages * bytes,
# times the programs that fit on an SM. Tiles of 64 rows cost no more than smaller ones, and hold an expert's rows of up
# to three canvases; with eight canvases an expert has 128 rows. In bfloat16 the sums are the same to the last bit in
# all tilings. In FP8 they are so from 64 rows on, where the tensor cores work by warp group; below, they add in another
# order.
#
# FP8 rows between the products have one scale per BLOCK columns. A program of the first product computes as many, since
# it has to know the largest of them; a step of the second product reads as many, since it multiplies its sum by the
# scale.
UP = {
    torch.bfloat16: ((1536, Tiling(64, BLOCK, 64, 4, 3)), (MANY, Tiling(128, BLOCK, 64, 8, 3))),
    torch.float32: ((MANY, Tiling(16, BLOCK, 32, 4, 2)),),
    FP8: ((MANY, Tiling(64, BLOCK, 128, 4, 3)),),
}
DOWN = {
    torch.bfloat16: ((1536, Tiling(64, 128, 64, 4, 4)), (MANY, Tiling(128, 256, 64, 8, 4))),
    torch.float32: ((MANY, Tiling(16, 32, 32, 4, 2)),),
    FP8: ((MANY, Tiling(64, 128, BLOCK, 4, 6)),),
}


def choose_tiling(table: dict[torch.dtype, Tilings], matrices: "Matrices", tokens: int) -> Tiling:
    return tiling_for(table, matrices.weight_EOI.dtype, tokens, card_of(matrices.weight_EOI.device))


def tiling_for(table: dict[torch.dtype, Tilings], dtype: torch.dtype, tokens: int, card: Card) -> Tiling:
    """Return the tiling for this many tokens, or the largest before it if that does not fit the card."""
    pairs = 2 if table is UP else 1
    chosen = None
    for limit, entry in table[dtype]:
        chosen = fitted(entry, card, dtype, pairs) or chosen
        if tokens <= limit:
            break
    assert chosen is not None, "the first tiling of every table fits every card"
    return chosen


@dataclass(frozen=True)
class Matrices:
    """One matrix per expert, [E, O, I]. FP8 matrices have one scale per output channel [E, O]."""

    weight_EOI: Tensor
    scale_EO: Tensor | None = None

    @property
    def count(self) -> int:
        return len(self.weight_EOI)

    @property
    def inputs(self) -> int:
        return self.weight_EOI.shape[2]


@dataclass(frozen=True)
class Groups:
    """Pairs sorted by expert, in tiles of one expert each."""

    order_R: Tensor  # the pair at each place of the sorted order
    end_E: Tensor  # the place after each expert's last pair
    expert_N: Tensor  # the expert of each tile; -1: nothing to do
    first_N: Tensor  # the place of its first pair
    slot_R: Tensor | None = None  # the slot of the adapter at each place, if there are adapters


def up_product(
    x_TH: Tensor, scale_T: Tensor | None, groups: Groups, k: int, gate_up: Matrices, h: Hidden,
    inner: Inner | None = None,
) -> None:  # fmt: skip
    """Write gelu(x gate) * (x up) [R, I] of all pairs to `h`, in the order of `groups`."""
    (tokens, hidden), width = x_TH.shape, gate_up.weight_EOI.shape[1] // 2
    tiling = choose_tiling(UP, gate_up, tokens)
    h.check_block(tiling.columns, "first")
    adapters, constants = arguments(inner)
    _up[triton.cdiv(width, tiling.columns), len(groups.expert_N)](
        x_TH, scale_T, _lines(gate_up, tiling), gate_up.scale_EO, h.rows_RI, h.scale_RB,
        groups.order_R, groups.end_E, groups.expert_N, groups.first_N,
        k, hidden, width, *adapters,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, LOW=gate_up.scale_EO is not None,
        EVEN=hidden % tiling.depth == 0, INTERLEAVE=h.interleave, **constants,
        PRECISION=precision(x_TH), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip


def down_product(
    h: Hidden, groups: Groups | None, k: int, matrices: Matrices, dtype: torch.dtype, inner: Inner | None = None
) -> Tensor:
    """Return h @ down [R, H], with rows in the order of the pairs. Without groups, all rows have the first matrix."""
    (pairs, width), hidden = h.rows_RI.shape, matrices.weight_EOI.shape[1]
    tiling = choose_tiling(DOWN, matrices, pairs // k)
    h.check_block(tiling.depth, "second")
    y_RH = torch.empty(pairs, hidden, device=h.rows_RI.device, dtype=dtype)
    tiles = triton.cdiv(pairs, tiling.rows) if groups is None else len(groups.expert_N)
    lists = (None,) * 4 if groups is None else (groups.order_R, groups.end_E, groups.expert_N, groups.first_N)
    adapters, constants = arguments(inner)
    if "launch_pdl" in constants and h.scale_RB is not None:
        constants["maxnreg"] = 168  # for three programs on an SM, as without adapters
    _down[triton.cdiv(hidden, tiling.columns), tiles](
        TensorDescriptor.from_tensor(h.rows_RI, [tiling.rows, tiling.depth]), h.scale_RB,
        _lines(matrices, tiling), matrices.scale_EO, y_RH, *lists,
        pairs, width, hidden, *adapters,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, LOW=h.scale_RB is not None, **constants,
        PRECISION=precision(h.rows_RI), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return y_RH


def group(index_TK: Tensor, experts: int, rows: int) -> Groups:
    """Sort pairs by expert, and divide them into tiles of `rows` rows."""
    return group_for_both(index_TK, experts, rows, rows)[0]


def group_for_both(
    index_TK: Tensor, experts: int, first_rows: int, second_rows: int, slot_T: Tensor | None = None
) -> tuple[Groups, Groups]:
    """Sort pairs by expert, and divide them into tiles of as many rows as each of the two products takes.

    The order is the same for both. Slots of tokens are sorted with their pairs.
    """
    pairs, device = index_TK.numel(), index_TK.device
    order_R, end_E = (torch.empty(n, dtype=torch.int32, device=device) for n in (pairs, experts))

    def tiles(rows: int) -> tuple[Tensor, Tensor]:
        # An expert's tiles begin at slot (its first place) // rows + (its number). That leaves enough slots for all
        # experts before it, without counting their tiles.
        count = pairs // rows + experts
        expert_N, first_N = (torch.empty(count, dtype=torch.int32, device=device) for _ in range(2))
        return expert_N, first_N

    first = tiles(first_rows)
    second = first if second_rows == first_rows else tiles(second_rows)
    slot_R = None if slot_T is None else torch.empty(pairs, dtype=torch.int32, device=device)
    chunk = min(max(triton.next_power_of_2(pairs), 1024), 4096)
    _group[(experts,)](
        index_TK.contiguous(), order_R, end_E, *first, *((None, None) if second is first else second),
        slot_T, slot_R, pairs,
        CHOICES=index_TK.shape[1], ROWS=first_rows, SECOND_ROWS=second_rows, CHUNK=chunk,
        EARLY=can_launch_early(device), num_warps=chunk // 256,
    )  # fmt: skip
    return Groups(order_R, end_E, *first, slot_R), Groups(order_R, end_E, *second, slot_R)


def _lines(matrices: Matrices, tiling: Tiling) -> TensorDescriptor:
    """Return a descriptor of all experts' matrices as one [E O, I] matrix, from which the copy engine fetches tiles."""
    lines_OI = matrices.weight_EOI.flatten(0, 1)
    return TensorDescriptor.from_tensor(lines_OI, [tiling.columns, tiling.depth])


@triton.jit
def _group(
    index_ptr, order_ptr, end_ptr, expert_ptr, first_ptr, second_expert_ptr, second_first_ptr,
    slot_ptr, sorted_slot_ptr, pairs,
    CHOICES: tl.constexpr, ROWS: tl.constexpr, SECOND_ROWS: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Sort the pairs of one expert, and list its tiles, for both products if their tiles differ.

    Grid: (E,). index is [R], slot [T] if given; the outputs are those of `Groups`. Every program reads all choices, a
    few kilobytes, so that none waits for another. EARLY: let the next launch start. Latency-bound.
    """
    if EARLY:
        gdc_launch_dependents()
    expert = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    before = tl.zeros((CHUNK,), tl.int32)
    own = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, pairs, CHUNK):
        chosen = tl.load(index_ptr + start + lane, mask=start + lane < pairs, other=2147483647).to(tl.int32)
        before += (chosen < expert).to(tl.int32)
        own += (chosen == expert).to(tl.int32)
    first = tl.sum(before, 0)
    end = first + tl.sum(own, 0)
    tl.store(end_ptr + expert, end)

    place = first
    for start in range(0, pairs, CHUNK):
        chosen = tl.load(index_ptr + start + lane, mask=start + lane < pairs, other=2147483647).to(tl.int32)
        if slot_ptr is not None:  # of all pairs, so that this load does not wait for the other
            slot = tl.load(slot_ptr + (start + lane) // CHOICES, mask=start + lane < pairs, other=-1)
        is_own = (chosen == expert).to(tl.int32)
        to = place + tl.cumsum(is_own, 0) - is_own
        tl.store(order_ptr + to, start + lane, mask=is_own == 1)
        if slot_ptr is not None:
            tl.store(sorted_slot_ptr + to, slot, mask=is_own == 1)
        place += tl.sum(is_own, 0)

    _list_tiles(expert_ptr, first_ptr, expert, first, end, ROWS)
    if second_expert_ptr is not None:
        _list_tiles(second_expert_ptr, second_first_ptr, expert, first, end, SECOND_ROWS)


@triton.jit
def _list_tiles(expert_ptr, first_ptr, expert, first, end, ROWS: tl.constexpr):
    """List the tiles of the pairs of one expert, at places `first` to `end`."""
    slot = first // ROWS + expert
    after = end // ROWS + expert + 1  # first slot of the next expert
    for tile in range(slot, after):
        row = first + (tile - slot) * ROWS
        tl.store(expert_ptr + tile, tl.where(row < end, expert, -1))
        tl.store(first_ptr + tile, row)


# Weights are fetched by the GPU's copy engine, one tile per instruction. A tile may extend beyond its expert's rows:
# the results of those are not stored. Beyond the width of a row the engine returns zeros.


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def _up(
    x_ptr, x_scale_ptr, weights, scale_ptr, h_ptr, h_scale_ptr, order_ptr, end_ptr, expert_ptr, first_ptr,
    choices, hidden, width, inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, EVEN: tl.constexpr,
    INTERLEAVE: tl.constexpr, RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, WAITS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute gelu(x gate) * (x up) for one tile of rows and one block of columns.

    Grid: (I / COLUMNS, N). x is [T, H], weights a descriptor of [E 2I, H] with the gate's rows first, h [R, I] in
    sorted order. LOW: operands are FP8, with scales x_scale [T] and scale [E, 2I]. If h_scale [R, I / COLUMNS] is
    given, h is quantized to FP8. If INTERLEAVE is not 0, the columns of h are interleaved for tiles of that many bytes.
    EVEN: DEPTH divides H, so that loads of x need no column mask. If inner values are given, adapters are added
    (`low_rank.arguments`). With one canvas, memory-bound: it reads the weights.
    """
    if WAITS != "not":
        gdc_launch_dependents()
    expert = tl.load(expert_ptr + tl.program_id(1))
    if expert < 0:
        return
    place = tl.load(first_ptr + tl.program_id(1)) + tl.arange(0, ROWS)
    valid_row = place < tl.load(end_ptr + expert)
    token = tl.load(order_ptr + place, mask=valid_row, other=0) // choices
    if inner_ptr is not None:
        slot = tl.load(slot_ptr + place, mask=valid_row, other=-1)
    depth = tl.arange(0, DEPTH)
    x_at = x_ptr + token[:, None].to(tl.int64) * hidden + depth[None, :]
    gate_line = expert * 2 * width + tl.program_id(0) * COLUMNS
    gate = tl.zeros((ROWS, COLUMNS), tl.float32)
    up = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, hidden, DEPTH):
        within = valid_row[:, None] if EVEN else valid_row[:, None] & (start + depth[None, :] < hidden)
        x = tl.load(x_at, mask=within, other=0.0)
        gate_weight = weights.load([gate_line, start])
        up_weight = weights.load([gate_line + width, start])
        gate = tl.dot(x, tl.trans(gate_weight), gate, input_precision=PRECISION)
        up = tl.dot(x, tl.trans(up_weight), up, input_precision=PRECISION)
        x_at += DEPTH
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    valid_column = column < width
    if LOW:
        x_scale = tl.load(x_scale_ptr + token, mask=valid_row, other=0.0)[:, None]
        scale_at = scale_ptr + expert * 2 * width + column
        gate *= x_scale * tl.load(scale_at, mask=valid_column, other=0.0)[None, :]
        up *= x_scale * tl.load(scale_at + width, mask=valid_column, other=0.0)[None, :]
    if inner_ptr is not None:
        line = expert * 2 * width + column
        gate, up = add_low_rank_to_both(
            gate, up, inner_ptr, b_ptr, slot, place, line, line + width, valid_column, 0, 0,
            inner_rows, inner_columns, b_lines, b_slots, RANK, INNER_PARTS, CHUNK, WAITS, PRECISION,
        )  # fmt: skip
    h = gelu(gate) * up
    if h_scale_ptr is not None:
        h, h_scale = quantize_block(h, valid_column)
        tl.store(h_scale_ptr + place * tl.num_programs(0) + tl.program_id(0), h_scale, mask=valid_row)
    target = interleaved_to(column, INTERLEAVE) if INTERLEAVE else column
    h_at = h_ptr + place[:, None].to(tl.int64) * width + target[None, :]
    tl.store(h_at, h.to(h_ptr.dtype.element_ty), mask=valid_row[:, None] & valid_column[None, :])


@triton.jit(do_not_specialize=[*NOT_SPECIALIZED, "pairs"])
def _down(
    rows, h_scale_ptr, weights, scale_ptr, y_ptr, order_ptr, end_ptr, expert_ptr, first_ptr,
    pairs, width, hidden, inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr,
    RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, WAITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute h @ down for one tile of rows and one block of columns, and store each row at the index of its pair.

    Grid: (H / COLUMNS, N). rows is a descriptor of h [R, I] in sorted order, weights one of [E H, I], y [R, H]. LOW:
    operands are FP8, with scales h_scale [R, I / DEPTH] and scale [E, H]. If no order is given, there is one expert,
    and rows keep their order. Adapters and bounds as for `_up`.
    """
    if order_ptr is None:
        expert = tl.program_id(1) * 0
        first = tl.program_id(1) * ROWS
        place = first + tl.arange(0, ROWS)
        valid_row = place < pairs
    else:
        expert = tl.load(expert_ptr + tl.program_id(1))
        if expert < 0:
            return
        first = tl.load(first_ptr + tl.program_id(1))
        place = first + tl.arange(0, ROWS)
        valid_row = place < tl.load(end_ptr + expert)
    line = expert * hidden + tl.program_id(0) * COLUMNS
    if LOW:
        h_scale_at = h_scale_ptr + place * tl.cdiv(width, DEPTH)
    y = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, DEPTH):
        h = rows.load([first, start])
        weight = weights.load([line, start])
        if LOW:
            y += tl.dot(h, tl.trans(weight)) * tl.load(h_scale_at, mask=valid_row, other=0.0)[:, None]
            h_scale_at += 1
        else:
            y = tl.dot(h, tl.trans(weight), y, input_precision=PRECISION)
    pair = place if order_ptr is None else tl.load(order_ptr + place, mask=valid_row, other=0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    valid_column = column < hidden
    if LOW:
        y *= tl.load(scale_ptr + expert * hidden + column, mask=valid_column, other=0.0)[None, :]
    if inner_ptr is not None:
        slot = tl.load(slot_ptr + place, mask=valid_row, other=-1)
        y = add_low_rank(
            y, inner_ptr, b_ptr, slot, place, expert * hidden + column, valid_column, 0,
            inner_rows, inner_columns, b_lines, b_slots, RANK, INNER_PARTS, CHUNK, WAITS, False, PRECISION,
        )  # fmt: skip
    y_at = y_ptr + pair[:, None].to(tl.int64) * hidden + column[None, :]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=valid_row[:, None] & valid_column[None, :])
