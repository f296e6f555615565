"""Low-rank changes of weights by adapters, added to a product inside its kernel.

An adapter changes a product by (x Aᵀ) Bᵀ. The inner values x Aᵀ, a few per row, are computed before the product
(`shrink.py`). The kernel of the product multiplies them by B after its own sum, before anything else reads that sum: in
float32, without another launch, and without another pass over the output.

Rows of a pass may have different adapters. Each row has the slot of its adapter, or -1 for the base model. A tile takes
the slots one after another, with inner values of zero for the rows of others, and skips those that none of its rows
has. So the cost depends on the adapters in use, not on those that are loaded, and a row gets the same bits whatever the
other rows are. To a row of the base model, zeros are added.

S slots, E experts, J matrices of a launch, L rank (padded), C = J L inner values, I inputs, O outputs of the J
matrices, R rows, P parts of the inputs.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

CHUNK = 16  # inner values that one product takes; more need registers that the main loop has to leave free


@dataclass(frozen=True)
class Factors:
    """The factors of all adapters for the matrices of one launch, and the slot of each token. Dense matrices are one
    expert. The scale of an adapter is part of B.
    """

    a_SECI: Tensor
    b_SEOL: Tensor
    slot_T: Tensor  # int32; -1: the base model

    @property
    def rank(self) -> int:
        return self.b_SEOL.shape[-1]


@dataclass(frozen=True)
class Inner:
    """The inner values of rows, as unreduced sums over P parts of the inputs. Rows of the base model have none, and
    their memory is not initialized.
    """

    sums_PRC: Tensor  # float32
    factors: Factors


def arguments(inner: Inner | None) -> tuple[list[Any], dict[str, int]]:
    """Return the arguments of a kernel that adds adapters, and their compile-time constants. Without inner values the
    kernel is compiled without adapters.
    """
    if inner is None:
        return [None, None, None, 0, 0, 0, 0], {"RANK": 0, "INNER_PARTS": 0, "CHUNK": 0}
    factors, (parts, rows, columns) = inner.factors, inner.sums_PRC.shape
    slots, experts, outputs, rank = factors.b_SEOL.shape
    given = [inner.sums_PRC, factors.b_SEOL, factors.slot_T, rows, columns, experts * outputs, slots * rank]
    return given, {"RANK": rank, "INNER_PARTS": parts, "CHUNK": CHUNK}


@triton.jit
def add_low_rank(
    y, inner_ptr, b_ptr, slot, place, line, valid_line, first, rows, columns, lines, count,
    RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, EXCHANGED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return a tile of sums plus the part of the adapters.

    y is [ROWS, COLUMNS], or [COLUMNS, ROWS] if EXCHANGED. slot [ROWS] is the slot of each row, or -1, and place [ROWS]
    its row in inner [INNER_PARTS, rows, columns], where the values of this matrix begin at column `first`. line
    [COLUMNS] is the line of each output in b [S, lines, RANK]; invalid ones are not read. count: S * RANK. Bound by the
    latency of the loads, and with experts by reading b.
    """
    for start in range(0, count, CHUNK):
        own = slot == start // RANK
        if tl.max(own.to(tl.int32), 0) > 0:
            b = _b(b_ptr, line, valid_line, start, lines, RANK, CHUNK)
            inner = _inner(inner_ptr, place, own, first, start, rows, columns, RANK, INNER_PARTS, CHUNK).to(b.dtype)
            if EXCHANGED:
                y = tl.dot(b, tl.trans(inner), y, input_precision=PRECISION)
            else:
                y = tl.dot(inner, tl.trans(b), y, input_precision=PRECISION)
    return y


@triton.jit
def add_low_rank_to_both(
    y, z, inner_ptr, b_ptr, slot, place, line, z_line, valid_line, first, z_first, rows, columns, lines, count,
    RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return tiles of the sums of gate and up, each plus the part of the adapters: `add_low_rank`, but with all loads
    before the products, so that they wait once.
    """
    for start in range(0, count, CHUNK):
        own = slot == start // RANK
        if tl.max(own.to(tl.int32), 0) > 0:
            b = _b(b_ptr, line, valid_line, start, lines, RANK, CHUNK)
            z_b = _b(b_ptr, z_line, valid_line, start, lines, RANK, CHUNK)
            inner = _inner(inner_ptr, place, own, first, start, rows, columns, RANK, INNER_PARTS, CHUNK).to(b.dtype)
            z_inner = _inner(inner_ptr, place, own, z_first, start, rows, columns, RANK, INNER_PARTS, CHUNK).to(b.dtype)
            y = tl.dot(inner, tl.trans(b), y, input_precision=PRECISION)
            z = tl.dot(z_inner, tl.trans(z_b), z, input_precision=PRECISION)
    return y, z


@triton.jit
def _b(b_ptr, line, valid_line, start, lines, RANK: tl.constexpr, CHUNK: tl.constexpr):
    """Return the factors [COLUMNS, CHUNK] of some outputs, from column `start` of all slots on."""
    column = start % RANK + tl.arange(0, CHUNK)
    at = (start // RANK * lines + line).to(tl.int64)[:, None] * RANK + column[None, :]
    return tl.load(b_ptr + at, mask=valid_line[:, None], other=0.0)


@triton.jit
def _inner(
    inner_ptr, place, own, first, start, rows, columns,
    RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return the inner values [ROWS, CHUNK] of some rows. Rows of other slots have zeros."""
    at = inner_ptr + first + (start % RANK + tl.arange(0, CHUNK))[None, :]
    inner = tl.load(at + place[:, None].to(tl.int64) * columns, mask=own[:, None], other=0.0)
    for part in tl.static_range(1, INNER_PARTS):
        row = part * rows + place.to(tl.int64)
        inner += tl.load(at + row[:, None] * columns, mask=own[:, None], other=0.0)
    return inner
