"""A matrix times the tokens of a batch on a GPU, alone or as the gated pair of an MLP.

A library's product picks its blocking by the number of rows, and so a row's last bits depend on who else is there;
these kernels add along a row in one order whatever the number of rows. With 256 rows a product is about as long in
arithmetic as it is in reading the weights, so tiles are large enough for the tensor cores and all row tiles of a column
run at the same time, while their weights are in the cache.

T tokens, I in, O out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Tiling:
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


Cuts = tuple[tuple[int, Tiling], ...]
MANY = 2**31

# Large tiles where enough of them fill the GPU, else small ones; the sums are the same to the last bit in both. 2816
# columns in tiles of 64 are 44; with 256 rows in tiles of 64 that makes 176 programs for 132 multiprocessors.
PLAIN = {
    torch.bfloat16: (Tiling(128, 128, 64, 8, 4), Tiling(64, 64, 128, 4, 3)),
    torch.float32: (Tiling(32, 32, 32, 4, 2),) * 2,
    FP8: (Tiling(128, 128, 128, 8, 4), Tiling(64, 64, 128, 4, 4)),
}
GATED = {
    torch.bfloat16: (Tiling(128, 64, 64, 4, 3), Tiling(64, 32, 128, 4, 3)),
    torch.float32: (Tiling(32, 32, 32, 4, 2),) * 2,
    FP8: (Tiling(128, 64, 128, 4, 3), Tiling(64, 64, 128, 4, 4)),
}
ENOUGH = 120  # programs to fill a GPU


def cut(table: dict[torch.dtype, tuple[Tiling, Tiling]], x_TI: Tensor, weight_OI: Tensor, columns: int) -> Tiling:
    large, small = table[weight_OI.dtype]
    full = triton.cdiv(len(x_TI), large.rows) * triton.cdiv(columns, large.columns) >= ENOUGH
    tiling = large if full else small
    # A step that does not go into the rows would need a mask for every load.
    return tiling if x_TI.shape[1] % tiling.depth == 0 else replace(tiling, depth=tiling.depth // 2, stages=4)


@dataclass(frozen=True)
class Matrix:
    """[O, I] in memory; an FP8 one with a scale an output channel [O]."""

    weight_OI: Tensor
    scale_O: Tensor | None = None


def linear(x_TI: Tensor, matrix: Matrix, scale_T: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """What `ops.linear` computes. An FP8 matrix takes FP8 rows, `scale_T` times which are the tokens."""
    return linears(x_TI, [matrix], scale_T, dtype)[0]


def linears(
    x_TI: Tensor, matrices: Sequence[Matrix], scale_T: Tensor | None = None, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Up to three products of the same tokens, in one launch: alone, a small one would leave most of the GPU idle."""
    ys = [_out(x_TI, matrix, dtype) for matrix in matrices]
    columns = [len(matrix.weight_OI) for matrix in matrices]
    tiling = cut(PLAIN, x_TI, matrices[0].weight_OI, sum(columns))
    tiles = sum(triton.cdiv(each, tiling.columns) for each in columns)
    given: list[Any] = []
    for matrix, y_TO in zip(matrices, ys, strict=True):
        given += [matrix.weight_OI, matrix.scale_O, y_TO]
    missing = 3 - len(matrices)
    _product[triton.cdiv(len(x_TI), tiling.rows), tiles](
        x_TI, scale_T, *given, *[None] * 3 * missing, len(x_TI), x_TI.shape[1], *columns, *[0] * missing,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth,
        LOW=matrices[0].scale_O is not None, GATED=False, EVEN=_even(x_TI, columns, tiling),
        PRECISION=precision(x_TI), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return ys


def gated(
    x_TI: Tensor, gate: Matrix, up: Matrix, scale_T: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """gelu(x gate) * (x up)."""
    columns = len(gate.weight_OI)
    tiling = cut(GATED, x_TI, gate.weight_OI, columns)
    y_TO = _out(x_TI, gate, dtype)
    _product[triton.cdiv(len(x_TI), tiling.rows), triton.cdiv(columns, tiling.columns)](
        x_TI, scale_T, gate.weight_OI, gate.scale_O, y_TO, up.weight_OI, up.scale_O, None, None, None, None,
        len(x_TI), x_TI.shape[1], columns, 0, 0,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth,
        LOW=gate.scale_O is not None, GATED=True, EVEN=_even(x_TI, [columns], tiling),
        PRECISION=precision(x_TI), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return y_TO


def _out(x_TI: Tensor, matrix: Matrix, dtype: torch.dtype | None) -> Tensor:
    return torch.empty(len(x_TI), len(matrix.weight_OI), device=x_TI.device, dtype=dtype or x_TI.dtype)


def _even(x_TI: Tensor, columns: Sequence[int], tiling: Tiling) -> bool:
    return x_TI.shape[1] % tiling.depth == 0 and all(each % tiling.columns == 0 for each in columns)


def precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def quantize_rows(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 with one scale a row."""
    low_TI, scale_T = torch.empty_like(x_TI, dtype=FP8), torch.empty(len(x_TI), device=x_TI.device)
    width = x_TI.shape[1]
    _quantize_rows[(len(x_TI),)](x_TI, low_TI, scale_T, width, COLUMNS=triton.next_power_of_2(width))
    return low_TI, scale_T


@triton.jit
def gelu(x):
    """The tanh form: x sigmoid(2z) with z = sqrt(2/pi) (x + 0.044715 x^3). Below -80 the sigmoid is nothing."""
    return x * tl.sigmoid(tl.maximum(1.5957691216057308 * (x + 0.044715 * x * x * x), -80.0))


@triton.jit
def fp8(x):
    """Rounding may have left the largest a hair beyond what FP8 holds."""
    return tl.clamp(x, -448.0, 448.0).to(tl.float8e4nv)


@triton.jit
def fp8_scale(most):
    """What to divide by, so that the largest of a row becomes the largest of FP8; a row of zeros stays one."""
    return tl.maximum(most, 1e-12) / 448.0


@triton.jit
def _quantize_rows(x_ptr, low_ptr, scale_ptr, width, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row * width + column, mask=column < width, other=0.0).to(tl.float32)
    scale = fp8_scale(tl.max(tl.abs(x), 0))
    tl.store(low_ptr + row * width + column, fp8(x / scale), mask=column < width)
    tl.store(scale_ptr + row, scale)


@triton.jit
def _product(
    x_ptr, x_scale_ptr, weight_ptr, scale_ptr, y_ptr, other_ptr, other_scale_ptr, other_y_ptr,
    third_ptr, third_scale_ptr, third_y_ptr, tokens, width, columns, other_columns, third_columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, GATED: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of x weight, or of gelu(x weight) * (x other). Of several matrices, the tiles of one follow another's."""
    tile = tl.program_id(1)
    if other_y_ptr is not None:
        tiles = tl.cdiv(columns, COLUMNS)
        if tile >= tiles:
            tile -= tiles
            tiles = tl.cdiv(other_columns, COLUMNS)
            weight_ptr, y_ptr, columns = other_ptr, other_y_ptr, other_columns
            if LOW:
                scale_ptr = other_scale_ptr
            if third_y_ptr is not None:  # noqa: SIM102 - this is known when it is compiled, the next when it runs
                if tile >= tiles:
                    tile -= tiles
                    weight_ptr, y_ptr, columns = third_ptr, third_y_ptr, third_columns
                    if LOW:
                        scale_ptr = third_scale_ptr
        weight_ptr = tl.multiple_of(weight_ptr, 16)
        y_ptr = tl.multiple_of(y_ptr, 16)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    live, there = row < tokens, column < columns
    x_at = x_ptr + row[:, None].to(tl.int64) * width + depth[None, :]
    within = column[None, :].to(tl.int64) * width + depth[:, None]
    weight_at = weight_ptr + within
    y = tl.zeros((ROWS, COLUMNS), tl.float32)
    if GATED:
        other_at = other_ptr + within
        z = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, DEPTH):
        if EVEN:
            x = tl.load(x_at, mask=live[:, None], other=0.0)
            weight = tl.load(weight_at)
        else:
            inside = (start + depth[:, None] < width) & there[None, :]
            x = tl.load(x_at, mask=live[:, None] & (start + depth[None, :] < width), other=0.0)
            weight = tl.load(weight_at, mask=inside, other=0.0)
        y = tl.dot(x, weight, y, input_precision=PRECISION)
        if GATED:
            other = tl.load(other_at) if EVEN else tl.load(other_at, mask=inside, other=0.0)
            z = tl.dot(x, other, z, input_precision=PRECISION)
            other_at += DEPTH
        x_at += DEPTH
        weight_at += DEPTH
    if LOW:
        x_scale = tl.load(x_scale_ptr + row, mask=live, other=0.0)[:, None]
        y *= x_scale * tl.load(scale_ptr + column, mask=there, other=0.0)[None, :]
        if GATED:
            z *= x_scale * tl.load(other_scale_ptr + column, mask=there, other=0.0)[None, :]
    if GATED:
        y = gelu(y) * z
    y_at = y_ptr + row[:, None].to(tl.int64) * columns + column[None, :]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=live[:, None] & there[None, :])
