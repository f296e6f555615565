"""Low-rank changes of weights by adapters, added to a product inside its kernel.

An adapter changes a product by (x Aᵀ) Bᵀ. The inner values x Aᵀ, a few per row, are computed before the product
(`shrink.py`). The kernel of the product multiplies them by B after its own sum, before anything else reads that sum: in
float32, without another launch, and without another pass over the output. It needs the inner values at its end only,
so on a GPU that can it starts together with the launch that computes them.

Rows of a pass may have different adapters. Each row has the slot of its adapter, or -1 for the base model. A tile takes
the slots one after another, with inner values of zero for the rows of others, and skips those that none of its rows
has. So the cost depends on the adapters in use, not on those that are loaded, and a row gets the same bits whatever the
other rows are. To a row of the base model, zeros are added.

S slots, E experts, J matrices of a launch, L rank (padded), C = J L inner values, I inputs, O outputs of the J
matrices, R rows, P parts of the inputs.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from gesso.cards.running import card_of

# Triton compiles a kernel for the value 1 alone. A second adapter must not need another, while requests wait for it.
NOT_SPECIALIZED = ["b_slots"]
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


# A kernel that starts when the one before it starts has to wait for it: at the start, or before it adds inner values.
Waits = Literal["not", "at the start", "at the end"]


@dataclass(frozen=True)
class Inner:
    """The inner values of rows, as unreduced sums over P parts of the inputs. Rows of the base model have none, and
    their memory is not initialized.
    """

    sums_PRC: Tensor  # float32
    slot_R: Tensor
    factors: Factors
    waits: Waits = "not"  # of the kernel that adds them, for the launch that computes them


def arguments(inner: Inner | None) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a kernel that adds adapters, and its compile-time constants and launch options. Without
    inner values the kernel is compiled without adapters.
    """
    if inner is None:
        return [None, None, None, 0, 0, 0, 0], {"RANK": 0, "INNER_PARTS": 0, "CHUNK": 0, "WAITS": "not"}
    factors, (parts, rows, columns) = inner.factors, inner.sums_PRC.shape
    slots, experts, outputs, rank = factors.b_SEOL.shape
    given = [inner.sums_PRC, factors.b_SEOL, inner.slot_R, rows, columns, experts * outputs, slots]
    constants = {"RANK": rank, "INNER_PARTS": parts, "CHUNK": CHUNK, "WAITS": inner.waits}
    return given, constants | launch_early(inner.waits != "not")


def launch_early(early: bool) -> dict[str, bool]:
    """Return the option of a launch that starts a kernel when all programs of the one before have allowed it."""
    return {"launch_pdl": True} if early else {}


def can_launch_early(device: torch.device) -> bool:
    """Return whether a kernel can start before the one that it depends on has ended."""
    return card_of(device).launches_early


@triton.jit
def add_low_rank(
    y, inner_ptr, b_ptr, slot, place, line, valid_line, first, rows, columns, lines, slots,
    RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, WAITS: tl.constexpr, EXCHANGED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return a tile of sums plus the part of the adapters.

    y is [ROWS, COLUMNS], or [COLUMNS, ROWS] if EXCHANGED. slot [ROWS] is the slot of each row, or -1,
    and place [ROWS] its row in inner [INNER_PARTS, rows, columns], where the values of this matrix begin at column
    `first`. line [COLUMNS] is the line of each output in b [slots, lines, RANK]; invalid ones are not read. WAITS:
    `Inner.waits`. Bound by the latency of the loads, and with experts by reading b.
    """
    highest = tl.max(slot, 0)
    if WAITS == "at the end":
        gdc_wait()
    b = _b(b_ptr, line, tl.where(highest >= 0, valid_line, False), tl.maximum(highest, 0), 0, lines, RANK, CHUNK)
    inner = _inner(inner_ptr, place, slot, first, highest, 0, rows, columns, INNER_PARTS, CHUNK, b.dtype)
    y = _add(y, inner, b, EXCHANGED, PRECISION)
    for each in tl.range(0, slots, num_stages=1):
        if tl.max((slot == each).to(tl.int32), 0) > 0:
            for chunk in tl.range(tl.where(each == highest, 1, 0), RANK // CHUNK, num_stages=1):
                c = _b(b_ptr, line, valid_line, each, chunk, lines, RANK, CHUNK)
                other = _inner(inner_ptr, place, slot, first, each, chunk, rows, columns, INNER_PARTS, CHUNK, c.dtype)
                y = _add(y, other, c, EXCHANGED, PRECISION)
    return y


@triton.jit
def add_low_rank_to_both(
    y, z, inner_ptr, b_ptr, slot, place, line, z_line, valid_line, first, z_first, rows, columns, lines, slots,
    RANK: tl.constexpr, INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, WAITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return tiles of the sums of gate and up, each plus the part of the adapters: `add_low_rank`, but with all loads
    before the products, so that they wait once.
    """
    highest = tl.max(slot, 0)
    if WAITS == "at the end":
        gdc_wait()
    valid = tl.where(highest >= 0, valid_line, False)
    b = _b(b_ptr, line, valid, tl.maximum(highest, 0), 0, lines, RANK, CHUNK)
    z_b = _b(b_ptr, z_line, valid, tl.maximum(highest, 0), 0, lines, RANK, CHUNK)
    inner = _inner(inner_ptr, place, slot, first, highest, 0, rows, columns, INNER_PARTS, CHUNK, b.dtype)
    z_inner = _inner(inner_ptr, place, slot, z_first, highest, 0, rows, columns, INNER_PARTS, CHUNK, b.dtype)
    y = _add(y, inner, b, False, PRECISION)
    z = _add(z, z_inner, z_b, False, PRECISION)
    for each in tl.range(0, slots, num_stages=1):
        if tl.max((slot == each).to(tl.int32), 0) > 0:
            for chunk in tl.range(tl.where(each == highest, 1, 0), RANK // CHUNK, num_stages=1):
                c = _b(b_ptr, line, valid_line, each, chunk, lines, RANK, CHUNK)
                z_c = _b(b_ptr, z_line, valid_line, each, chunk, lines, RANK, CHUNK)
                w = _inner(inner_ptr, place, slot, first, each, chunk, rows, columns, INNER_PARTS, CHUNK, c.dtype)
                z_w = _inner(inner_ptr, place, slot, z_first, each, chunk, rows, columns, INNER_PARTS, CHUNK, c.dtype)
                y = _add(y, w, c, False, PRECISION)
                z = _add(z, z_w, z_c, False, PRECISION)
    return y, z


@triton.jit
def _add(y, inner, b, EXCHANGED: tl.constexpr, PRECISION: tl.constexpr):
    if EXCHANGED:
        y = tl.dot(b, tl.trans(inner), y, input_precision=PRECISION)
    else:
        y = tl.dot(inner, tl.trans(b), y, input_precision=PRECISION)
    return y


@triton.jit
def _b(b_ptr, line, valid_line, each, chunk, lines, RANK: tl.constexpr, CHUNK: tl.constexpr):
    """Return one of the chunks of the factors of some outputs in slot `each`: [COLUMNS, CHUNK]."""
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    at = (each * lines + line).to(tl.int64)[:, None] * RANK + column[None, :]
    return tl.load(b_ptr + at, mask=valid_line[:, None], other=0.0)


@triton.jit
def _inner(
    inner_ptr, place, slot, first, each, chunk, rows, columns,
    INNER_PARTS: tl.constexpr, CHUNK: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Return one of the chunks of the inner values of some rows: [ROWS, CHUNK]. Rows of other slots have zeros."""
    own = (slot >= 0) & (slot == each)
    at = inner_ptr + first + (chunk * CHUNK + tl.arange(0, CHUNK))[None, :]
    inner = tl.load(at + place[:, None].to(tl.int64) * columns, mask=own[:, None], other=0.0)
    for part in tl.static_range(1, INNER_PARTS):
        row = part * rows + place.to(tl.int64)
        inner += tl.load(at + row[:, None] * columns, mask=own[:, None], other=0.0)
    return inner.to(dtype)
