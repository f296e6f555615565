"""The mixture of experts on a GPU: sort the (token, choice) pairs by expert, then two grouped products.

The sum of a token's answers is in rows.py, with what comes after it.

With one canvas an expert of 128 is given some 16 rows, so the products cost what it takes to read the weights: every
kernel here is built to read each weight once, at the speed of the memory. Weights are bfloat16 (or float32), or FP8
with a scale for each of an expert's output channels. FP8 tokens have one scale each; between the two products, where
no program sees a whole row, a scale for as many columns as a program makes of it.

Nothing here depends on numbers that only the GPU knows: grids are as large as they could have to be, and programs
without work return. The sums of a row run in one order whatever else is in the batch.

T tokens, H hidden, E experts, K experts a token, I expert width, R = T * K pairs, O out.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gesso.backends.cuda.kernels.linear import FP8, MANY, Cuts, Tiling, fp8, fp8_scale, gelu, precision

# Up to how many tokens, and how they are cut then. With one canvas an expert has some 16 rows, and by far most bytes
# are weights: what counts is how many are in flight, columns * depth * stages * bytes, times the programs that fit a
# multiprocessor. Tiles of 64 rows cost no more then than lower ones, and hold an expert's rows of up to three canvases;
# with eight it has 128.
# In bfloat16 the sums are the same to the last bit in all tilings. In FP8 they are so from 64 rows on, where the matrix
# unit works by the warp group; below, it adds in another order.
UP = {
    torch.bfloat16: ((1536, Tiling(64, 64, 64, 4, 3)), (MANY, Tiling(128, 64, 64, 8, 3))),
    torch.float32: ((MANY, Tiling(16, 32, 32, 4, 2)),),
    FP8: ((MANY, Tiling(64, 64, 128, 4, 3)),),
}
DOWN = {
    torch.bfloat16: ((1536, Tiling(64, 128, 64, 4, 4)), (MANY, Tiling(128, 256, 64, 8, 4))),
    torch.float32: ((MANY, Tiling(16, 32, 32, 4, 2)),),
    FP8: ((MANY, Tiling(64, 128, 64, 4, 6)),),
}


def cut(table: dict[torch.dtype, Cuts], matrices: "Matrices", tokens: int) -> Tiling:
    return next(tiling for limit, tiling in table[matrices.weight_EOI.dtype] if tokens <= limit)


@dataclass(frozen=True)
class Matrices:
    """One matrix an expert, [E, O, I] in memory; FP8 ones with a scale an output channel [E, O]."""

    weight_EOI: Tensor
    scale_EO: Tensor | None = None


@dataclass(frozen=True)
class Groups:
    """Pairs in the order of their experts, cut into tiles of one expert each."""

    order_R: Tensor  # the pair at each place
    end_E: Tensor  # the place where each expert's pairs end
    expert_N: Tensor  # of each tile; -1: nothing to do
    first_N: Tensor  # the place of its first pair


def answers(
    x_TH: Tensor, scale_T: Tensor | None, index_TK: Tensor, gate_up: Matrices, down: Matrices, dtype: torch.dtype
) -> Tensor:
    """What each token's experts say to it [R, H], not yet weighted. FP8 experts take FP8 rows, with their scales."""
    k, count = index_TK.shape[1], len(gate_up.weight_EOI)
    first, second = cut(UP, gate_up, len(x_TH)), cut(DOWN, down, len(x_TH))
    groups = group(index_TK, count, first.rows)
    h_RI, scale_RB = up(x_TH, scale_T, groups, k, gate_up)
    if second.rows != first.rows:
        groups = group(index_TK, count, second.rows)
    return back(h_RI, scale_RB, groups, k, down, dtype)


def up(x_TH: Tensor, scale_T: Tensor | None, groups: Groups, k: int, gate_up: Matrices) -> tuple[Tensor, Tensor | None]:
    """gelu(x gate) * (x up) [R, I] of all pairs, in the order of `groups`; in FP8 with scales [R, B]."""
    (tokens, hidden), width = x_TH.shape, gate_up.weight_EOI.shape[1] // 2
    tiling, low = cut(UP, gate_up, tokens), gate_up.scale_EO is not None
    blocks = triton.cdiv(width, tiling.columns)
    h_RI = x_TH.new_empty(tokens * k, width)
    h_scale_RB = torch.empty(tokens * k, blocks, device=x_TH.device) if low else None
    _up[blocks, len(groups.expert_N)](
        x_TH, scale_T, _lines(gate_up, tiling), gate_up.scale_EO, h_RI, h_scale_RB,
        groups.order_R, groups.end_E, groups.expert_N, groups.first_N,
        k, hidden, width,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, LOW=low, EVEN=hidden % tiling.depth == 0,
        PRECISION=precision(x_TH), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return h_RI, h_scale_RB


def back(
    h_RI: Tensor, scale_RB: Tensor | None, groups: Groups, k: int, matrices: Matrices, dtype: torch.dtype
) -> Tensor:
    """h down [R, H], each row where its pair stands."""
    (pairs, width), hidden = h_RI.shape, matrices.weight_EOI.shape[1]
    tiling = cut(DOWN, matrices, pairs // k)
    if scale_RB is not None and scale_RB.shape[1] != triton.cdiv(width, tiling.depth):
        raise ValueError(f"FP8 rows scaled by {scale_RB.shape[1]} blocks cannot be read in steps of {tiling.depth}")
    y_RH = torch.empty(pairs, hidden, device=h_RI.device, dtype=dtype)
    grid = (triton.cdiv(hidden, tiling.columns), len(groups.expert_N))
    _down[grid](
        TensorDescriptor.from_tensor(h_RI, [tiling.rows, tiling.depth]), scale_RB,
        _lines(matrices, tiling), matrices.scale_EO, y_RH,
        groups.order_R, groups.end_E, groups.expert_N, groups.first_N,
        width, hidden,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, LOW=scale_RB is not None,
        PRECISION=precision(h_RI), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return y_RH


def group(index_TK: Tensor, experts: int, rows: int) -> Groups:
    pairs, device = index_TK.numel(), index_TK.device
    order_R, end_E = (torch.empty(n, dtype=torch.int32, device=device) for n in (pairs, experts))
    # An expert's tiles begin at slot (its first place) // rows + (its number): that leaves room for all before it,
    # without counting their tiles.
    tiles = pairs // rows + experts
    expert_N, first_N = (torch.empty(tiles, dtype=torch.int32, device=device) for _ in range(2))
    chunk = min(max(triton.next_power_of_2(pairs), 1024), 4096)
    _group[(experts,)](
        index_TK.contiguous(), order_R, end_E, expert_N, first_N, pairs, ROWS=rows, CHUNK=chunk, num_warps=chunk // 256
    )
    return Groups(order_R, end_E, expert_N, first_N)


def _lines(matrices: Matrices, tiling: Tiling) -> TensorDescriptor:
    """All experts' matrices below each other, as the copy engine takes tiles from them: [E O, I]."""
    lines_OI = matrices.weight_EOI.flatten(0, 1)
    return TensorDescriptor.from_tensor(lines_OI, [tiling.columns, tiling.depth])


@triton.jit
def _group(index_ptr, order_ptr, end_ptr, expert_ptr, first_ptr, pairs, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """One program an expert. All read all choices, a few kilobytes; none waits for another."""
    expert = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    before = tl.zeros((CHUNK,), tl.int32)
    mine = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, pairs, CHUNK):
        chosen = tl.load(index_ptr + start + lane, mask=start + lane < pairs, other=2147483647).to(tl.int32)
        before += (chosen < expert).to(tl.int32)
        mine += (chosen == expert).to(tl.int32)
    first = tl.sum(before, 0)
    end = first + tl.sum(mine, 0)
    tl.store(end_ptr + expert, end)

    place = first
    for start in range(0, pairs, CHUNK):
        chosen = tl.load(index_ptr + start + lane, mask=start + lane < pairs, other=2147483647).to(tl.int32)
        is_mine = (chosen == expert).to(tl.int32)
        tl.store(order_ptr + place + tl.cumsum(is_mine, 0) - is_mine, start + lane, mask=is_mine == 1)
        place += tl.sum(is_mine, 0)

    slot = first // ROWS + expert
    after = end // ROWS + expert + 1  # where the next expert's begin
    for tile in range(slot, after):
        row = first + (tile - slot) * ROWS
        tl.store(expert_ptr + tile, tl.where(row < end, expert, -1))
        tl.store(first_ptr + tile, row)


# Weights are fetched by the GPU's copy engine, a tile an instruction. A tile may reach beyond its expert's rows: what
# comes of those is not stored. Beyond the width of a row the engine gives zeros.


@triton.jit
def _up(
    x_ptr, x_scale_ptr, weights, scale_ptr, h_ptr, h_scale_ptr, order_ptr, end_ptr, expert_ptr, first_ptr,
    choices, hidden, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """gelu(x gate) * (x up) of the rows of one tile, for as many columns."""
    expert = tl.load(expert_ptr + tl.program_id(1))
    if expert < 0:
        return
    place = tl.load(first_ptr + tl.program_id(1)) + tl.arange(0, ROWS)
    live = place < tl.load(end_ptr + expert)
    token = tl.load(order_ptr + place, mask=live, other=0) // choices
    depth = tl.arange(0, DEPTH)
    x_at = x_ptr + token[:, None].to(tl.int64) * hidden + depth[None, :]
    gate_line = expert * 2 * width + tl.program_id(0) * COLUMNS
    gate = tl.zeros((ROWS, COLUMNS), tl.float32)
    up = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, hidden, DEPTH):
        within = live[:, None] if EVEN else live[:, None] & (start + depth[None, :] < hidden)
        x = tl.load(x_at, mask=within, other=0.0)
        gate_weight = weights.load([gate_line, start])
        up_weight = weights.load([gate_line + width, start])
        gate = tl.dot(x, tl.trans(gate_weight), gate, input_precision=PRECISION)
        up = tl.dot(x, tl.trans(up_weight), up, input_precision=PRECISION)
        x_at += DEPTH
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < width
    if LOW:
        x_scale = tl.load(x_scale_ptr + token, mask=live, other=0.0)[:, None]
        scale_at = scale_ptr + expert * 2 * width + column
        gate *= x_scale * tl.load(scale_at, mask=there, other=0.0)[None, :]
        up *= x_scale * tl.load(scale_at + width, mask=there, other=0.0)[None, :]
    h = gelu(gate) * up
    if LOW:
        h_scale = fp8_scale(tl.max(tl.where(there[None, :], tl.abs(h), 0.0), 1))
        tl.store(h_scale_ptr + place * tl.num_programs(0) + tl.program_id(0), h_scale, mask=live)
        h = fp8(h / h_scale[:, None])
    h = h.to(h_ptr.dtype.element_ty)
    tl.store(h_ptr + place[:, None].to(tl.int64) * width + column[None, :], h, mask=live[:, None] & there[None, :])


@triton.jit
def _down(
    rows, h_scale_ptr, weights, scale_ptr, y_ptr, order_ptr, end_ptr, expert_ptr, first_ptr, width, hidden,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h down, each row written where its pair stands."""
    expert = tl.load(expert_ptr + tl.program_id(1))
    if expert < 0:
        return
    first = tl.load(first_ptr + tl.program_id(1))
    place = first + tl.arange(0, ROWS)
    live = place < tl.load(end_ptr + expert)
    line = expert * hidden + tl.program_id(0) * COLUMNS
    if LOW:
        h_scale_at = h_scale_ptr + place * tl.cdiv(width, DEPTH)
    y = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, DEPTH):
        h = rows.load([first, start])
        weight = weights.load([line, start])
        if LOW:
            y += tl.dot(h, tl.trans(weight)) * tl.load(h_scale_at, mask=live, other=0.0)[:, None]
            h_scale_at += 1
        else:
            y = tl.dot(h, tl.trans(weight), y, input_precision=PRECISION)
    pair = tl.load(order_ptr + place, mask=live, other=0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < hidden
    if LOW:
        y *= tl.load(scale_ptr + expert * hidden + column, mask=there, other=0.0)[None, :]
    y_at = y_ptr + pair[:, None].to(tl.int64) * hidden + column[None, :]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=live[:, None] & there[None, :])
