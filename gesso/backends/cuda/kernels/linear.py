"""Dense matrix products of the tokens of a batch: up to three matrices at once, or the gated pair of an MLP.
`gesso/model/modules.py` is the specification.

A library's product picks its blocking by the number of rows, so the last bits of a row depend on the rest of the batch.
These kernels add along a row in one order, whatever the number of rows. With 256 rows a product takes about as long in
arithmetic as in reading the weights. Tiles are therefore large enough for the tensor cores, and all row tiles of a
column run at the same time, while their weights are in the L2 cache.

Tiles are fetched by the GPU's copy engine (TMA). It requires rows of a multiple of 16 bytes, and returns zeros beyond
the edges.

Adapters are added inside the kernels (`low_rank.py`), if there are inner values.

T tokens, I inputs, O outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from gesso.backends.cuda.kernels.low_rank import NOT_SPECIALIZED, Inner, add_low_rank, add_low_rank_to_both, arguments
from gesso.cards.card import KIB, Card
from gesso.cards.running import card_of

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Tiling:
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


Tilings = tuple[tuple[int, Tiling], ...]
MANY = 2**31
# Shared memory of a kernel besides its stages: barriers, and what is exchanged between warps at the end.
SHARED_REST = 4 * KIB
# Split-K: a product with few columns is also split along its inputs into PARTS sums, to fill the GPU. With more than
# UNREDUCED_TOKENS tokens that is not needed: one program adds the same sums itself, in the same order.
PARTS, UNREDUCED_TOKENS = 3, 512
SPLIT_ALIGNMENT = tl.constexpr(256)  # splits start at multiples of this many inputs: the depth of the deepest tile

# Each entry: the least number of programs on a GPU of PROCESSORS SMs, and the tiling from there on. On other GPUs that
# number is scaled, and a tiling has as many of its stages as fit (`fitted`). Large tiles are used where they are enough
# to fill the SMs. With more programs than that, their stages must leave space for two on each SM; with fewer, each gets
# more stages instead. The sums are the same to the last bit in all of them.
PROCESSORS = 132
PLAIN: dict[torch.dtype, Tilings] = {
    torch.bfloat16: (
        (133, Tiling(128, 128, 64, 8, 3)),
        (120, Tiling(128, 128, 64, 8, 6)),
        (80, Tiling(64, 128, 64, 4, 6)),
        (0, Tiling(64, 64, 128, 4, 6)),
    ),
    torch.float32: ((0, Tiling(32, 32, 32, 4, 2)),),
    FP8: (
        (133, Tiling(128, 128, 128, 8, 3)),
        (120, Tiling(128, 128, 128, 8, 6)),
        (80, Tiling(64, 128, 128, 4, 6)),
        (0, Tiling(64, 64, 256, 4, 6)),
    ),
}
GATED: dict[torch.dtype, Tilings] = {
    torch.bfloat16: ((264, Tiling(128, 64, 64, 4, 4)), (0, Tiling(64, 32, 128, 4, 4))),
    torch.float32: ((0, Tiling(32, 32, 32, 4, 2)),),
    FP8: ((264, Tiling(128, 64, 128, 4, 3)), (120, Tiling(64, 64, 128, 4, 6)), (0, Tiling(64, 32, 256, 4, 4))),
}
# If the result is quantized to FP8: tiles of BLOCK columns, whatever the number of rows. They share a scale.
BLOCK = 64
GATED_LOW: dict[torch.dtype, Tilings] = {
    FP8: ((264, Tiling(128, BLOCK, 128, 4, 3)), (0, Tiling(64, BLOCK, 128, 4, 6))),
}


@lru_cache
def fitted(tiling: Tiling, card: Card, dtype: torch.dtype, pairs: int = 1) -> Tiling | None:
    """Return a tiling with as many of its stages as fit the card's shared memory. None: fewer than two do.

    A stage holds a tile of rows, and one of each of `pairs` matrices.
    """
    stage_bytes = (tiling.rows + pairs * tiling.columns) * tiling.depth * dtype.itemsize
    for stages in range(tiling.stages, 1, -1):
        if card.tiles_in_memory(stages) * stage_bytes <= card.block_bytes - SHARED_REST:
            return replace(tiling, stages=stages)
    return None


def choose_tiling(
    table: dict[torch.dtype, Tilings], tokens: int, columns: Sequence[int], dtype: torch.dtype, card: Card,
    parts: int = 1, pairs: int = 1,
) -> tuple[Tiling, int]:  # fmt: skip
    """Return the tiling, and the number of column tiles of all matrices together. `pairs`: as for `fitted`."""
    for least, entry in table[dtype]:
        tiling = fitted(entry, card, dtype, pairs)
        if tiling is None:
            continue
        tiles = sum(triton.cdiv(each, tiling.columns) for each in columns)
        programs = tiles * triton.cdiv(tokens, tiling.rows) * parts
        if programs * PROCESSORS >= least * card.processors:
            return tiling, tiles
    raise AssertionError("every table ends with 0, and with a tiling that fits every card")


@dataclass(frozen=True)
class Matrix:
    """A matrix [O, I]. An FP8 matrix has one scale per output channel [O]."""

    weight_OI: Tensor
    scale_O: Tensor | None = None


def linear(x_TI: Tensor, matrix: Matrix, scale_T: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Return x @ weight.T. An FP8 matrix takes FP8 rows, whose scales are `scale_T`."""
    return linears(x_TI, [matrix], scale_T, dtype)[0]


def linears(
    x_TI: Tensor, matrices: Sequence[Matrix], scale_T: Tensor | None = None, dtype: torch.dtype | None = None,
    inner: Inner | None = None,
) -> list[Tensor]:  # fmt: skip
    """Return up to three products of the same tokens, in one launch: alone, a small one would leave most of the GPU
    idle.
    """
    ys = [_out(x_TI, matrix, dtype) for matrix in matrices]
    _launch(x_TI, matrices, scale_T, ys, inner, parts=1, unreduced=False)
    return ys


def split_k(
    x_TI: Tensor, matrix: Matrix, scale_T: Tensor | None = None, dtype: torch.dtype | None = None,
    inner: Inner | None = None,
) -> Tensor:  # fmt: skip
    """Return the product as PARTS unreduced split-K sums [P, T, O] in float32, to be added in order.

    With more than UNREDUCED_TOKENS tokens, the sums are added here, and the result is [T, O].
    """
    unreduced, columns = len(x_TI) <= UNREDUCED_TOKENS, len(matrix.weight_OI)
    y = x_TI.new_empty(PARTS, len(x_TI), columns, dtype=torch.float32) if unreduced else _out(x_TI, matrix, dtype)
    _launch(x_TI, [matrix], scale_T, [y], inner, PARTS, unreduced)
    return y


def _launch(
    x_TI: Tensor, matrices: Sequence[Matrix], scale_T: Tensor | None, ys: Sequence[Tensor], inner: Inner | None,
    parts: int, unreduced: bool,
) -> None:  # fmt: skip
    columns = [len(matrix.weight_OI) for matrix in matrices]
    programs = parts if unreduced else 1
    tiling, tiles = choose_tiling(PLAIN, len(x_TI), columns, x_TI.dtype, card_of(x_TI.device), programs)
    tensors: list[Any] = []
    for matrix, y_TO in zip(matrices, ys, strict=True):
        tensors += [_tiled(matrix.weight_OI, tiling.columns, tiling), matrix.scale_O, y_TO]
    missing = 3 - len(matrices)
    adapters, constants = arguments(inner)
    if inner is not None and (tiling.warps, tiling.stages) == (8, 3):
        constants["maxnreg"] = 128  # for two programs on an SM, as without adapters
    # Without fusion: a program that multiplies by scales and adds must round in between, as separate programs do.
    _product[triton.cdiv(len(x_TI), tiling.rows), tiles, programs](
        _tiled(x_TI, tiling.rows, tiling), scale_T, *tensors, *[None] * 3 * missing,
        len(x_TI), x_TI.shape[1], *columns, *[0] * missing, *adapters,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, LOW=matrices[0].scale_O is not None,
        PARTS=parts, UNREDUCED=unreduced, **constants,
        PRECISION=precision(x_TI), num_warps=tiling.warps, num_stages=tiling.stages, enable_fp_fusion=parts == 1,
    )  # fmt: skip


def gated(
    x_TI: Tensor, gate: Matrix, up: Matrix, scale_T: Tensor | None = None, dtype: torch.dtype | None = None,
    inner: Inner | None = None,
) -> Tensor:  # fmt: skip
    """Return gelu(x gate) * (x up)."""
    y_TO = _out(x_TI, gate, dtype)
    _launch_gated(x_TI, gate, up, scale_T, y_TO, None, inner)
    return y_TO


def gated_low(
    x_TI: Tensor, gate: Matrix, up: Matrix, scale_T: Tensor, inner: Inner | None = None
) -> tuple[Tensor, Tensor]:
    """Return gelu(x gate) * (x up) in FP8, and one scale per row and BLOCK columns. Matrices and rows are FP8."""
    y_TO = _out(x_TI, gate, FP8)
    y_scale_TB = torch.empty(len(x_TI), triton.cdiv(y_TO.shape[1], BLOCK), device=x_TI.device)
    _launch_gated(x_TI, gate, up, scale_T, y_TO, y_scale_TB, inner)
    return y_TO, y_scale_TB


def _launch_gated(
    x_TI: Tensor, gate: Matrix, up: Matrix, scale_T: Tensor | None, y_TO: Tensor, y_scale_TB: Tensor | None,
    inner: Inner | None,
) -> None:  # fmt: skip
    table, columns = GATED if y_scale_TB is None else GATED_LOW, y_TO.shape[1]
    tiling, tiles = choose_tiling(table, len(x_TI), [columns], x_TI.dtype, card_of(x_TI.device), pairs=2)
    adapters, constants = arguments(inner)
    _gated[triton.cdiv(len(x_TI), tiling.rows), tiles](
        _tiled(x_TI, tiling.rows, tiling), scale_T,
        _tiled(gate.weight_OI, tiling.columns, tiling), gate.scale_O,
        _tiled(up.weight_OI, tiling.columns, tiling), up.scale_O, y_TO, y_scale_TB, len(x_TI), x_TI.shape[1], columns,
        *adapters,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, LOW=gate.scale_O is not None, **constants,
        PRECISION=precision(x_TI), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip


def _tiled(rows: Tensor, count: int, tiling: Tiling) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(rows, [count, tiling.depth])


def _out(x_TI: Tensor, matrix: Matrix, dtype: torch.dtype | None) -> Tensor:
    return torch.empty(len(x_TI), len(matrix.weight_OI), device=x_TI.device, dtype=dtype or x_TI.dtype)


def precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def quantize_rows(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows in FP8, and one scale per row."""
    low_TI, scale_T = torch.empty_like(x_TI, dtype=FP8), torch.empty(len(x_TI), device=x_TI.device)
    width = x_TI.shape[1]
    _quantize_rows[(len(x_TI),)](x_TI, low_TI, scale_T, width, COLUMNS=triton.next_power_of_2(width))
    return low_TI, scale_T


@triton.jit
def gelu(x):
    """The tanh form: x sigmoid(2z) with z = sqrt(2/pi) (x + 0.044715 x^3). Below -80 the sigmoid is negligible."""
    return x * tl.sigmoid(tl.maximum(1.5957691216057308 * (x + 0.044715 * x * x * x), -80.0))


@triton.jit
def fp8(x):
    """Convert to FP8. Rounding may have left the largest value slightly beyond the range."""
    return tl.clamp(x, -448.0, 448.0).to(tl.float8e4nv)


@triton.jit
def fp8_scale(largest):
    """Return the divisor that maps the largest magnitude of a row to the largest FP8 value. Zeros stay zeros."""
    return tl.maximum(largest, 1e-12) / 448.0


@triton.jit
def quantize_block(y, valid_column):
    """Return a tile in FP8, and the scale of each row."""
    scale = fp8_scale(tl.max(tl.where(valid_column[None, :], tl.abs(y), 0.0), 1))
    return fp8(y / scale[:, None]), scale


@triton.jit
def _quantize_rows(x_ptr, low_ptr, scale_ptr, width, COLUMNS: tl.constexpr):
    """Quantize one row to FP8. Grid: (T,). x and low are [T, width], scale is [T]. Latency-bound."""
    quantize_row(x_ptr, low_ptr, scale_ptr, tl.program_id(0).to(tl.int64), width, COLUMNS)


@triton.jit
def quantize_row(x_ptr, low_ptr, scale_ptr, row, width, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row * width + column, mask=column < width, other=0.0).to(tl.float32)
    scale = fp8_scale(tl.max(tl.abs(x), 0))
    tl.store(low_ptr + row * width + column, fp8(x / scale), mask=column < width)
    tl.store(scale_ptr + row, scale)


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def _product(
    x, x_scale_ptr, first, first_scale_ptr, first_y_ptr, second, second_scale_ptr, second_y_ptr,
    third, third_scale_ptr, third_y_ptr, tokens, width, first_columns, second_columns, third_columns,
    inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr, PARTS: tl.constexpr,
    UNREDUCED: tl.constexpr, RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, WAITS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Multiply a tile of x by one of up to three matrices, whose column tiles are numbered one after another.

    Grid: (T / ROWS, column tiles of all matrices, PARTS if UNREDUCED, otherwise 1). x and the matrices are tensor
    descriptors of [T, I] and [O, I]; missing matrices are None. Each y is [T, O], or [P, T, O] if UNREDUCED. LOW:
    operands are FP8, with scales per row and per output channel. If inner values are given, adapters are added: b has
    the lines of all matrices, one after another (`low_rank.arguments`).

    The inputs are split into PARTS ranges. If UNREDUCED, a program stores one of the sums; otherwise it adds all of
    them.

    With one canvas, bound about equally by reading the weights and by the tensor cores.
    """
    if WAITS == "at the start":
        gdc_wait()
    tile = tl.program_id(1)
    matrix, before = tile * 0, tile * 0  # number of the matrix, and columns of those before it
    weights, scale_ptr, y_ptr, columns = first, first_scale_ptr, first_y_ptr, first_columns
    if second is not None:
        tiles = tl.cdiv(columns, COLUMNS)
        if tile >= tiles:
            tile -= tiles
            matrix, before = matrix + 1, before + first_columns
            tiles = tl.cdiv(second_columns, COLUMNS)
            weights, scale_ptr, y_ptr, columns = second, second_scale_ptr, second_y_ptr, second_columns
            if third is not None:  # noqa: SIM102 - a compile-time condition around a run-time one
                if tile >= tiles:
                    tile -= tiles
                    matrix, before = matrix + 1, before + second_columns
                    weights, scale_ptr, y_ptr, columns = third, third_scale_ptr, third_y_ptr, third_columns
    part = tl.program_id(2)
    if inner_ptr is not None:
        place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        adapted = tl.where(part == 0, tokens, 0)  # adapters are added once, to the first part
        slot = tl.load(slot_ptr + place, mask=place < adapted, other=-1)
    y = _sum(x, weights, tile, part, width, ROWS, COLUMNS, DEPTH, PARTS, PRECISION)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    if LOW:
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        scale = _scales(x_scale_ptr, row, row < tokens)[:, None] * _scales(scale_ptr, column, column < columns)[None, :]
        y *= scale
    if inner_ptr is not None:
        y = add_low_rank(
            y, inner_ptr, b_ptr, slot, place, before + column, column < columns, matrix * RANK,
            inner_rows, inner_columns, b_lines, b_slots, RANK, INNER_PARTS, CHUNK, WAITS, False, PRECISION,
        )  # fmt: skip
    if UNREDUCED:
        y_ptr += part.to(tl.int64) * tokens * columns
    else:
        for other in tl.static_range(1, PARTS):
            z = _sum(x, weights, tile, other, width, ROWS, COLUMNS, DEPTH, PARTS, PRECISION)
            y += z * scale if LOW else z
    _store(y, y_ptr, column, tokens, columns, ROWS)


@triton.jit
def _sum(
    x, weights, tile, part, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the sum over one of PARTS ranges of the inputs."""
    first, end = 0, width
    if PARTS > 1:
        ranges = tl.cdiv(width, SPLIT_ALIGNMENT)
        first = ranges * part // PARTS * SPLIT_ALIGNMENT
        end = tl.minimum(ranges * (part + 1) // PARTS * SPLIT_ALIGNMENT, width)
    y = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(first, end, DEPTH):
        rows = x.load([tl.program_id(0) * ROWS, start])
        y = tl.dot(rows, tl.trans(weights.load([tile * COLUMNS, start])), y, input_precision=PRECISION)
    return y


@triton.jit
def _store(y, y_ptr, column, tokens, columns, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y_at = y_ptr + row[:, None].to(tl.int64) * columns + column[None, :]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=(row < tokens)[:, None] & (column < columns)[None, :])


@triton.jit
def _scales(scale_ptr, at, valid):
    return tl.load(scale_ptr + at, mask=valid, other=0.0)


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def _gated(
    x, x_scale_ptr, gate, gate_scale_ptr, up, up_scale_ptr, y_ptr, y_scale_ptr, tokens, width, columns,
    inner_ptr, b_ptr, slot_ptr, inner_rows, inner_columns, b_lines, b_slots,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, LOW: tl.constexpr,
    RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, WAITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a tile of gelu(x gate) * (x up).

    Grid: (T / ROWS, O / COLUMNS). x, gate and up are tensor descriptors of [T, I] and [O, I]; y is [T, O]. LOW:
    operands are FP8, with scales per row and per output channel. If y_scale [T, O / COLUMNS] is given, y is quantized
    to FP8. Adapters and bounds as for `_product`.
    """
    if WAITS == "at the start":
        gdc_wait()
    tile = tl.program_id(1) * COLUMNS
    if inner_ptr is not None:
        place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        slot = tl.load(slot_ptr + place, mask=place < tokens, other=-1)
    y = tl.zeros((ROWS, COLUMNS), tl.float32)
    z = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, DEPTH):
        rows = x.load([tl.program_id(0) * ROWS, start])
        y = tl.dot(rows, tl.trans(gate.load([tile, start])), y, input_precision=PRECISION)
        z = tl.dot(rows, tl.trans(up.load([tile, start])), z, input_precision=PRECISION)
    column = tile + tl.arange(0, COLUMNS)
    if LOW:
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        x_scale = _scales(x_scale_ptr, row, row < tokens)[:, None]
        y *= x_scale * _scales(gate_scale_ptr, column, column < columns)[None, :]
        z *= x_scale * _scales(up_scale_ptr, column, column < columns)[None, :]
    if inner_ptr is not None:
        y, z = add_low_rank_to_both(
            y, z, inner_ptr, b_ptr, slot, place, column, columns + column, column < columns, 0, RANK,
            inner_rows, inner_columns, b_lines, b_slots, RANK, INNER_PARTS, CHUNK, WAITS, PRECISION,
        )  # fmt: skip
    y = gelu(y) * z
    if y_scale_ptr is not None:
        y, scale = quantize_block(y, column < columns)
        token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        tl.store(y_scale_ptr + token * tl.num_programs(1) + tl.program_id(1), scale, mask=token < tokens)
    _store(y, y_ptr, column, tokens, columns, ROWS)
