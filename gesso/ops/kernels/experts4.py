"""The two products of the experts with weights of four bits, int4 or NVFP4, that are widened as they are read.

The layouts are those of `gesso/quantize`: byte j of a row holds value 2j in its low half and 2j + 1 in its high half.
Rather than putting the halves side by side in every program, the tokens are put apart once: all even columns, then all
odd ones (`apart`), and the low halves are multiplied with the first, the high halves with the second.

T tokens, H hidden, E experts, K experts a token, I expert width, R = T * K pairs, O out, B = I / 2 bytes, G groups.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from gesso.ops.kernels.experts import Groups, group
from gesso.ops.kernels.linear import Tiling, gelu, precision

# Depth is in bytes, each two values.
TILINGS = {"up": Tiling(32, 64, 64, 4, 4), "back": Tiling(32, 128, 32, 4, 4)}


@dataclass(frozen=True)
class Packed:
    """One matrix an expert. int4: scales of 32 values; NVFP4: of 16, over a scale of the whole matrix."""

    packed_EOB: Tensor  # uint8
    scale_EOG: Tensor
    over_E: Tensor | None  # NVFP4's `weight_global_scale`

    @property
    def group(self) -> int:
        """Bytes that share a scale."""
        return self.packed_EOB.shape[-1] // self.scale_EOG.shape[-1]


def apart(x_TI: Tensor) -> Tensor:
    return x_TI.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1)


def answers(x_TH: Tensor, index_TK: Tensor, gate_up: Packed, down: Packed) -> Tensor:
    """What each token's experts say to it [R, H], not yet weighted."""
    first, second = TILINGS["up"].rows, TILINGS["back"].rows
    groups = group(index_TK, len(gate_up.packed_EOB), first)
    h_RI = up(x_TH, groups, index_TK.shape[1], gate_up)
    return back(h_RI, groups if first == second else group(index_TK, len(down.packed_EOB), second), down)


def up(x_TH: Tensor, groups: Groups, k: int, gate_up: Packed) -> Tensor:
    """gelu(x gate) * (x up) [R, I] of all pairs, in the order of `groups`, with even and odd columns apart."""
    (tokens, hidden), width = x_TH.shape, gate_up.packed_EOB.shape[1] // 2
    h_RI = x_TH.new_empty(tokens * k, width)
    tiling = _fitting(gate_up, "up")
    grid = (triton.cdiv(width, tiling.columns), len(groups.expert_N))
    _up[grid](
        apart(x_TH), gate_up.packed_EOB, gate_up.scale_EOG, gate_up.over_E, h_RI,
        groups.order_R, groups.end_E, groups.expert_N, groups.first_N,
        k, hidden, width,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, GROUP=gate_up.group,
        FLOAT=gate_up.over_E is not None, PRECISION=precision(x_TH), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return h_RI


def back(h_RI: Tensor, groups: Groups, matrices: Packed) -> Tensor:
    """h down [R, H], each row where its pair stands."""
    (pairs, width), hidden = h_RI.shape, matrices.packed_EOB.shape[1]
    y_RH = h_RI.new_empty(pairs, hidden)
    tiling = _fitting(matrices, "back")
    grid = (triton.cdiv(hidden, tiling.columns), len(groups.expert_N))
    _down[grid](
        h_RI, matrices.packed_EOB, matrices.scale_EOG, matrices.over_E, y_RH,
        groups.order_R, groups.end_E, groups.expert_N, groups.first_N,
        width, hidden,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, GROUP=matrices.group,
        FLOAT=matrices.over_E is not None, PRECISION=precision(h_RI), num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return y_RH


def _fitting(matrices: Packed, which: str) -> Tiling:
    tiling, depth = TILINGS[which], matrices.packed_EOB.shape[-1]
    if depth % tiling.depth or tiling.depth % matrices.group:
        raise ValueError(f"rows of {2 * depth} values do not go into steps of {2 * tiling.depth}")
    return tiling


@triton.jit
def _values(nibble, FLOAT: tl.constexpr):
    """Four bits as a number: e2m1, or a whole number with 8 added."""
    if FLOAT:
        # The exponent and the mantissa bit, at their places in a float16, are that number less 14 powers of two,
        # the subnormal ones included.
        bits = ((nibble & 7).to(tl.uint16) << 9) | ((nibble & 8).to(tl.uint16) << 12)
        return bits.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0
    # In a bfloat16 between 128 and 256 the last bits of the mantissa count ones.
    return ((nibble.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)).to(tl.float32) - 136.0


@triton.jit
def weights(
    packed_ptr, scale_ptr, row, start, bytes_a_row,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, FLOAT: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """The even and the odd values [DEPTH, COLUMNS] of `DEPTH` bytes of these rows, from byte `start` on."""
    GROUPS: tl.constexpr = DEPTH // GROUP
    byte = start + tl.arange(0, DEPTH)
    packed = tl.load(packed_ptr + row[None, :] * bytes_a_row + byte[:, None])
    group = start // GROUP + tl.arange(0, GROUPS)
    scale = tl.load(scale_ptr + row[None, :] * (bytes_a_row // GROUP) + group[:, None]).to(tl.float32)
    scale = tl.broadcast_to(scale[:, None, :], (GROUPS, GROUP, COLUMNS)).reshape((DEPTH, COLUMNS))
    even = (_values(packed & 15, FLOAT) * scale).to(TYPE)
    odd = (_values(packed >> 4, FLOAT) * scale).to(TYPE)
    return even, odd


@triton.jit
def _up(
    x_ptr, packed_ptr, scale_ptr, over_ptr, h_ptr, order_ptr, end_ptr, expert_ptr, first_ptr, choices, hidden, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, FLOAT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    expert = tl.load(expert_ptr + tl.program_id(1))
    if expert < 0:
        return
    place = tl.load(first_ptr + tl.program_id(1)) + tl.arange(0, ROWS)
    live = place < tl.load(end_ptr + expert)
    token = tl.load(order_ptr + place, mask=live, other=0) // choices
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < width
    # A column beyond the last reads the last: what it gives is not stored.
    gate_row = expert.to(tl.int64) * 2 * width + tl.minimum(column, width - 1)
    half = hidden // 2
    x_at = x_ptr + token[:, None].to(tl.int64) * hidden + tl.arange(0, DEPTH)[None, :]
    kind: tl.constexpr = x_ptr.dtype.element_ty
    gate = tl.zeros((ROWS, COLUMNS), tl.float32)
    up = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, half, DEPTH):
        even_x = tl.load(x_at + start, mask=live[:, None], other=0.0)
        odd_x = tl.load(x_at + half + start, mask=live[:, None], other=0.0)
        even, odd = weights(packed_ptr, scale_ptr, gate_row, start, half, COLUMNS, DEPTH, GROUP, FLOAT, kind)
        gate = tl.dot(even_x, even, gate, input_precision=PRECISION)
        gate = tl.dot(odd_x, odd, gate, input_precision=PRECISION)
        even, odd = weights(packed_ptr, scale_ptr, gate_row + width, start, half, COLUMNS, DEPTH, GROUP, FLOAT, kind)
        up = tl.dot(even_x, even, up, input_precision=PRECISION)
        up = tl.dot(odd_x, odd, up, input_precision=PRECISION)
    if over_ptr is not None:
        over = tl.load(over_ptr + expert)
        gate /= over
        up /= over
    h = (gelu(gate) * up).to(h_ptr.dtype.element_ty)
    # Even and odd columns apart, as the second product wants them.
    target = column // 2 + (column % 2) * (width // 2)
    tl.store(h_ptr + place[:, None].to(tl.int64) * width + target[None, :], h, mask=live[:, None] & there[None, :])


@triton.jit
def _down(
    h_ptr, packed_ptr, scale_ptr, over_ptr, y_ptr, order_ptr, end_ptr, expert_ptr, first_ptr, width, hidden,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, FLOAT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    expert = tl.load(expert_ptr + tl.program_id(1))
    if expert < 0:
        return
    place = tl.load(first_ptr + tl.program_id(1)) + tl.arange(0, ROWS)
    live = place < tl.load(end_ptr + expert)
    pair = tl.load(order_ptr + place, mask=live, other=0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < hidden
    row = expert.to(tl.int64) * hidden + tl.minimum(column, hidden - 1)
    half = width // 2
    h_at = h_ptr + place[:, None].to(tl.int64) * width + tl.arange(0, DEPTH)[None, :]
    kind: tl.constexpr = h_ptr.dtype.element_ty
    y = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, half, DEPTH):
        even_h = tl.load(h_at + start, mask=live[:, None], other=0.0)
        odd_h = tl.load(h_at + half + start, mask=live[:, None], other=0.0)
        even, odd = weights(packed_ptr, scale_ptr, row, start, half, COLUMNS, DEPTH, GROUP, FLOAT, kind)
        y = tl.dot(even_h, even, y, input_precision=PRECISION)
        y = tl.dot(odd_h, odd, y, input_precision=PRECISION)
    if over_ptr is not None:
        y /= tl.load(over_ptr + expert)
    y_at = y_ptr + pair[:, None].to(tl.int64) * hidden + column[None, :]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=live[:, None] & there[None, :])
