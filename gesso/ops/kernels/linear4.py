"""Products with matrices of four bits, int4 or NVFP4: as in linear.py, with weights as in experts4.py.

A tile widens its weights for itself, so tiles are as tall as the tokens of a canvas allow. T tokens, I in, O out.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.ops.kernels.experts4 import Packed, apart, weights
from gesso.ops.kernels.linear import Tiling, gelu, precision

# Depth is in bytes, each two values. 2816 columns in tiles of 32 and 256 rows in tiles of 128 are 176 programs.
TILINGS = {"plain": Tiling(128, 32, 32, 4, 3), "gated": Tiling(128, 32, 32, 8, 3)}


def linear(x_TI: Tensor, matrix: Packed) -> Tensor:
    return _launch(x_TI, matrix, None)


def gated(x_TI: Tensor, gate: Packed, up: Packed) -> Tensor:
    """gelu(x gate) * (x up)."""
    return _launch(x_TI, gate, up)


def _launch(x_TI: Tensor, matrix: Packed, other: Packed | None) -> Tensor:
    """A matrix is the one expert of a `Packed`."""
    (tokens, width), columns = x_TI.shape, matrix.packed_EOB.shape[1]
    tiling = TILINGS["plain" if other is None else "gated"]
    if width // 2 % tiling.depth or tiling.depth % matrix.group:
        raise ValueError(f"rows of {width} values do not go into steps of {2 * tiling.depth}")
    y_TO = torch.empty(tokens, columns, device=x_TI.device, dtype=x_TI.dtype)
    _product[triton.cdiv(tokens, tiling.rows), triton.cdiv(columns, tiling.columns)](
        apart(x_TI), matrix.packed_EOB, matrix.scale_EOG, matrix.over_E,
        other and other.packed_EOB, other and other.scale_EOG, other and other.over_E, y_TO,
        tokens, width, columns,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, GROUP=matrix.group,
        FLOAT=matrix.over_E is not None, GATED=other is not None, PRECISION=precision(x_TI),
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return y_TO


@triton.jit
def _product(
    x_ptr, packed_ptr, scale_ptr, over_ptr, other_ptr, other_scale_ptr, other_over_ptr, y_ptr, tokens, width, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, FLOAT: tl.constexpr,
    GATED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live, there = row < tokens, column < columns
    weight_row = tl.minimum(column, columns - 1).to(tl.int64)  # one beyond the last reads the last; it is not stored
    half = width // 2
    x_at = x_ptr + row[:, None].to(tl.int64) * width + tl.arange(0, DEPTH)[None, :]
    kind: tl.constexpr = x_ptr.dtype.element_ty
    y = tl.zeros((ROWS, COLUMNS), tl.float32)
    if GATED:
        z = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, half, DEPTH):
        even_x = tl.load(x_at + start, mask=live[:, None], other=0.0)
        odd_x = tl.load(x_at + half + start, mask=live[:, None], other=0.0)
        even, odd = weights(packed_ptr, scale_ptr, weight_row, start, half, COLUMNS, DEPTH, GROUP, FLOAT, kind)
        y = tl.dot(even_x, even, y, input_precision=PRECISION)
        y = tl.dot(odd_x, odd, y, input_precision=PRECISION)
        if GATED:
            even, odd = weights(other_ptr, other_scale_ptr, weight_row, start, half, COLUMNS, DEPTH, GROUP, FLOAT, kind)
            z = tl.dot(even_x, even, z, input_precision=PRECISION)
            z = tl.dot(odd_x, odd, z, input_precision=PRECISION)
    if over_ptr is not None:
        y /= tl.load(over_ptr)
        if GATED:
            z /= tl.load(other_over_ptr)
    if GATED:
        y = gelu(y) * z
    y_at = y_ptr + row[:, None].to(tl.int64) * columns + column[None, :]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=live[:, None] & there[None, :])
