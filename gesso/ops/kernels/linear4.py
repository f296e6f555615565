"""Products with matrices of four bits, int4 or NVFP4: as in linear.py, with the weights as the left operand (four.py).

A tile widens its weights for itself, so tiles are as tall as the tokens of a canvas allow. T tokens, I in, O out.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.ops.kernels.four import Packed, check_fits, gate_and_other, gated_sum, in_ptx, over, places, tile
from gesso.ops.kernels.linear import Tiling, precision

# Depth is in bytes, each two values.
TILINGS = {"plain": Tiling(128, 64, 64, 4, 3), "gated": Tiling(128, 32, 64, 4, 3)}
UNIT = 1  # bytes


def linear(x_TI: Tensor, matrix: Packed) -> Tensor:
    return _launch(x_TI, matrix, None)


def gated(x_TI: Tensor, gate: Packed, up: Packed) -> Tensor:
    """gelu(x gate) * (x up)."""
    return _launch(x_TI, gate, up)


def _launch(x_TI: Tensor, matrix: Packed, other: Packed | None) -> Tensor:
    """A matrix is the one expert of a `Packed`."""
    (tokens, width), columns = x_TI.shape, matrix.packed_EOB.shape[1]
    tiling = TILINGS["plain" if other is None else "gated"]
    if matrix.packed_EOB.shape[-1] % tiling.depth:
        tiling = replace(tiling, depth=tiling.depth // 2, stages=4)
    check_fits(matrix, tiling)
    y_TO = torch.empty(tokens, columns, device=x_TI.device, dtype=x_TI.dtype)
    _product[triton.cdiv(tokens, tiling.rows), triton.cdiv(columns, tiling.columns)](
        x_TI.contiguous(), matrix.units(UNIT), matrix.scales(UNIT), matrix.over_E,
        other and other.units(UNIT), other and other.scales(UNIT), other and other.over_E, y_TO,
        tokens, WIDTH=width, WIDE=columns,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, GROUP=matrix.group, UNIT=UNIT,
        TOGETHER=matrix.scales_together(UNIT), PTX=in_ptx(x_TI), PRECISION=precision(x_TI),
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return y_TO


@triton.jit
def _product(
    x_ptr, packed_ptr, scale_ptr, over_ptr, other_ptr, other_scale_ptr, other_over_ptr, y_ptr, tokens,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, UNIT: tl.constexpr, TOGETHER: tl.constexpr, PTX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * COLUMNS
    HALF: tl.constexpr = WIDTH // 2
    FLOAT: tl.constexpr = over_ptr is not None
    SCALES: tl.constexpr = HALF // GROUP // TOGETHER
    GATED: tl.constexpr = other_ptr is not None
    LINES: tl.constexpr = 2 * COLUMNS if GATED else COLUMNS
    kind: tl.constexpr = x_ptr.dtype.element_ty
    # What lies beyond the last reads the last; it is not stored.
    x_at = x_ptr + tl.minimum(token, tokens - 1)[None, :].to(tl.int64) * WIDTH + places(DEPTH, UNIT)[:, None]
    if GATED:
        place_in_tile, second = gate_and_other(COLUMNS)
        row = tl.minimum(first + place_in_tile, WIDE - 1).to(tl.int64)
        packed_at = tl.where(second == 1, other_ptr + row * (HALF // UNIT), packed_ptr + row * (HALF // UNIT))
        scale_at = tl.where(second == 1, other_scale_ptr + row * SCALES, scale_ptr + row * SCALES)
    else:
        row = tl.minimum(first + tl.arange(0, COLUMNS), WIDE - 1).to(tl.int64)
        packed_at, scale_at = packed_ptr + row * (HALF // UNIT), scale_ptr + row * SCALES
    y = tl.zeros((LINES, ROWS), tl.float32)
    for start in range(0, HALF, DEPTH):
        x = tl.load(x_at + 2 * start)
        weight = tile(packed_at, scale_at, start, LINES, DEPTH, GROUP, UNIT, TOGETHER, FLOAT, PTX, kind)
        y = tl.dot(weight, x, y, input_precision=PRECISION)
    if FLOAT:
        if GATED:
            y *= tl.where(second == 1, over(other_over_ptr, 0), over(over_ptr, 0))[:, None]
        else:
            y *= over(over_ptr, 0)
    if GATED:
        y = gated_sum(y, COLUMNS, ROWS)
    column = first + tl.arange(0, COLUMNS)
    y_at = y_ptr + token[None, :].to(tl.int64) * WIDE + column[:, None]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=(token < tokens)[None, :] & (column < WIDE)[:, None])
