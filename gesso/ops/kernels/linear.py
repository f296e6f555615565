"""A matrix times the tokens of a batch on a GPU, alone or as the gated pair of an MLP.

A library's product picks its blocking by the number of rows, and so a row's last bits depend on who else is there;
these kernels add along a row in one order whatever the number of rows. With 256 rows a product is about as long in
arithmetic as it is in reading the weights, so tiles are large enough for the tensor cores and all row tiles of a column
run at the same time, while their weights are in the cache.

T tokens, I in, O out.
"""

from dataclasses import dataclass

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


# 2816 columns in tiles of 64 are 44; with 256 rows in tiles of 64 that makes 176 programs for 132 multiprocessors.
PLAIN = {
    torch.bfloat16: Tiling(64, 64, 128, 4, 4),
    torch.float32: Tiling(32, 32, 32, 4, 2),
    FP8: Tiling(64, 64, 128, 4, 4),
}
GATED = {
    torch.bfloat16: Tiling(64, 64, 64, 4, 4),
    torch.float32: Tiling(32, 32, 32, 4, 2),
    FP8: Tiling(64, 64, 128, 4, 4),
}


@dataclass(frozen=True)
class Matrix:
    """[O, I] in memory; an FP8 one with a scale an output channel [O]."""

    weight_OI: Tensor
    scale_O: Tensor | None = None


def linear(x_TI: Tensor, matrix: Matrix, scale_T: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """What `ops.linear` computes. An FP8 matrix takes FP8 rows, `scale_T` times which are the tokens."""
    return _launch(x_TI, matrix, None, scale_T, dtype)


def gated(
    x_TI: Tensor, gate: Matrix, up: Matrix, scale_T: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """gelu(x gate) * (x up)."""
    return _launch(x_TI, gate, up, scale_T, dtype)


def _launch(
    x_TI: Tensor, matrix: Matrix, other: Matrix | None, scale_T: Tensor | None, dtype: torch.dtype | None
) -> Tensor:
    tokens, depth = x_TI.shape
    columns, low = len(matrix.weight_OI), matrix.scale_O is not None
    tiling = (PLAIN if other is None else GATED)[matrix.weight_OI.dtype]
    y_TO = torch.empty(tokens, columns, device=x_TI.device, dtype=dtype or x_TI.dtype)
    grid = (triton.cdiv(tokens, tiling.rows), triton.cdiv(columns, tiling.columns))
    _product[grid](
        x_TI, scale_T, matrix.weight_OI, matrix.scale_O,
        other and other.weight_OI, other and other.scale_O, y_TO,
        tokens, depth, columns,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, LOW=low, GATED=other is not None,
        EVEN=depth % tiling.depth == 0 and columns % tiling.columns == 0,
        PRECISION=precision(x_TI), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return y_TO


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
    x_ptr, x_scale_ptr, weight_ptr, scale_ptr, other_ptr, other_scale_ptr, y_ptr, tokens, width, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, GATED: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
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
