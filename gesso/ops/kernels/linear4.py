"""Products with matrices of four bits, int4 or NVFP4: as in linear.py, with the weights as the left operand (four.py).

A tile widens its weights for itself, so tiles are as tall as the tokens of a canvas allow. Its tokens come by the copy
engine: a third of the instructions of a step were addresses. T tokens, I in, O out.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gesso.ops.kernels.four import Packed, check_fits, gate_and_other, gated_sum, in_ptx, over, tile
from gesso.ops.kernels.linear import Tiling, precision

# Depth is in bytes, each two values.
TILINGS = {"plain": Tiling(128, 64, 64, 4, 3), "gated": Tiling(128, 32, 64, 4, 3)}
UNIT = 1  # bytes, since the copy engine leaves the columns of x in their order


def linear(x_TI: Tensor, matrix: Packed) -> Tensor:
    return linears(x_TI, [matrix])[0]


def linears(x_TI: Tensor, matrices: Sequence[Packed]) -> list[Tensor]:
    """Up to three products of the same tokens, in one launch: alone, a small one would leave most of the GPU idle."""
    tiling, columns = _cut(TILINGS["plain"], matrices[0]), [_columns(matrix) for matrix in matrices]
    ys = [x_TI.new_empty(len(x_TI), each) for each in columns]
    given: list[Any] = []
    for matrix, y_TO in zip(matrices, ys, strict=True):
        given += [*_tensors(matrix), y_TO]
    missing = 3 - len(matrices)
    tiles = sum(triton.cdiv(each, tiling.columns) for each in columns)
    _launch(x_TI, matrices[0], tiling, tiles, [*given, *[None] * 4 * missing], [*columns, *[0] * missing], GATED=False)
    return ys


def gated(x_TI: Tensor, gate: Packed, up: Packed) -> Tensor:
    """gelu(x gate) * (x up)."""
    tiling, columns = _cut(TILINGS["gated"], gate), _columns(gate)
    y_TO = x_TI.new_empty(len(x_TI), columns)
    given = [*_tensors(gate), y_TO, *_tensors(up), *[None] * 5]
    _launch(x_TI, gate, tiling, triton.cdiv(columns, tiling.columns), given, [columns, 0, 0], GATED=True)
    return y_TO


def _launch(
    x_TI: Tensor, matrix: Packed, tiling: Tiling, tiles: int, given: list[Any], columns: list[int], GATED: bool
) -> None:
    _product[triton.cdiv(len(x_TI), tiling.rows), tiles](
        TensorDescriptor.from_tensor(x_TI.contiguous(), [tiling.rows, 2 * tiling.depth]),
        *given, len(x_TI), *columns, WIDTH=x_TI.shape[1],
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, GROUP=matrix.group,
        TOGETHER=matrix.scales_together(UNIT), GATED=GATED, PTX=in_ptx(x_TI), PRECISION=precision(x_TI),
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip


def _cut(tiling: Tiling, matrix: Packed) -> Tiling:
    if matrix.packed_EOB.shape[-1] % tiling.depth:
        tiling = replace(tiling, depth=tiling.depth // 2, stages=4)
    check_fits(matrix, tiling)
    return tiling


def _columns(matrix: Packed) -> int:
    """A matrix is the one expert of a `Packed`."""
    return matrix.packed_EOB.shape[1]


def _tensors(matrix: Packed) -> tuple[Tensor, Tensor, Tensor | None]:
    return matrix.units(UNIT), matrix.scales(UNIT), matrix.over_E


@triton.jit
def _product(
    tokens_TI, packed_ptr, scale_ptr, over_ptr, y_ptr, other_ptr, other_scale_ptr, other_over_ptr, other_y_ptr,
    third_ptr, third_scale_ptr, third_over_ptr, third_y_ptr, tokens, columns, other_columns, third_columns,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    TOGETHER: tl.constexpr, GATED: tl.constexpr, PTX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of x weight, or of gelu(x weight) * (x other). Of several matrices, the tiles of one follow another's."""
    HALF: tl.constexpr = WIDTH // 2
    FLOAT: tl.constexpr = over_ptr is not None
    SCALES: tl.constexpr = HALF // GROUP // TOGETHER
    LINES: tl.constexpr = 2 * COLUMNS if GATED else COLUMNS
    kind: tl.constexpr = y_ptr.dtype.element_ty
    part = tl.program_id(1)
    if other_y_ptr is not None:
        parts = tl.cdiv(columns, COLUMNS)
        if part >= parts:
            part -= parts
            parts = tl.cdiv(other_columns, COLUMNS)
            packed_ptr, scale_ptr, y_ptr, columns = other_ptr, other_scale_ptr, other_y_ptr, other_columns
            if FLOAT:
                over_ptr = other_over_ptr
            if third_y_ptr is not None:  # noqa: SIM102 - this is known when it is compiled, the next when it runs
                if part >= parts:
                    part -= parts
                    packed_ptr, scale_ptr, y_ptr, columns = third_ptr, third_scale_ptr, third_y_ptr, third_columns
                    if FLOAT:
                        over_ptr = third_over_ptr
        packed_ptr, scale_ptr = tl.multiple_of(packed_ptr, 16), tl.multiple_of(scale_ptr, 16)
        y_ptr = tl.multiple_of(y_ptr, 16)
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = part * COLUMNS
    # Columns beyond the last read the last, tokens read zeros; neither is stored.
    if GATED:
        place_in_tile, second = gate_and_other(COLUMNS)
        row = tl.minimum(first + place_in_tile, columns - 1).to(tl.int64)
        packed_at = tl.where(second == 1, other_ptr + row * HALF, packed_ptr + row * HALF)
        scale_at = tl.where(second == 1, other_scale_ptr + row * SCALES, scale_ptr + row * SCALES)
    else:
        row = tl.minimum(first + tl.arange(0, COLUMNS), columns - 1).to(tl.int64)
        packed_at, scale_at = packed_ptr + row * HALF, scale_ptr + row * SCALES
    y = tl.zeros((LINES, ROWS), tl.float32)
    for start in range(0, HALF, DEPTH):
        x = tokens_TI.load([tl.program_id(0) * ROWS, 2 * start])
        unit = tl.load(packed_at[:, None] + start + tl.arange(0, DEPTH)[None, :])
        weight = tile(unit, scale_at, start, LINES, DEPTH, GROUP, 1, TOGETHER, FLOAT, PTX, kind)
        y = tl.dot(weight, tl.trans(x), y, input_precision=PRECISION)
    if GATED:
        y *= tl.where(second == 1, over(other_over_ptr, 0), over(over_ptr, 0))[:, None]
        y = gated_sum(y, COLUMNS, ROWS)
    else:
        y *= over(over_ptr, 0)
    column = first + tl.arange(0, COLUMNS)
    y_at = y_ptr + token[None, :].to(tl.int64) * columns + column[:, None]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=(token < tokens)[None, :] & (column < columns)[:, None])
