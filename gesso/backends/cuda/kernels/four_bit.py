"""Weights of four bits, int4 or NVFP4, widened to bfloat16 as a product reads them.

The layouts are those of `gesso/quantize`: byte j of a row holds value 2j in its low half and 2j + 1 in its high half.
A product takes its weights as the left operand, [COLUMNS, depth]: there the tensor cores read it from registers, and
what was widened never goes through shared memory. In that operand four threads share a row, and each holds every
fourth pair of its values. Instead each reads a quarter of the row as it lies there, whole words under one scale or two,
and the columns of x are turned to match (`turned_to`), which costs whoever writes x nothing.

On a GPU, in bfloat16, the widening is written in PTX: two values at a time, little more than one instruction a value,
where the compiler makes eight. The plain expression beside it says what it computes.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.kernels.linear import Tiling, gelu


@dataclass(frozen=True)
class Packed:
    """One matrix an expert. int4: scales of 32 values; NVFP4: of 16, over a scale of the whole matrix."""

    packed_EOB: Tensor  # uint8
    scale_EOG: Tensor
    over_E: Tensor | None  # NVFP4's `weight_global_scale`

    @property
    def kind(self) -> str:
        return "int4" if self.over_E is None else "nvfp4"

    @property
    def group(self) -> int:
        """Bytes that share a scale."""
        return self.packed_EOB.shape[-1] // self.scale_EOG.shape[-1]

    @property
    def words(self) -> Tensor:
        return self.packed_EOB.view(torch.int32)

    @property
    def scales(self) -> Tensor:
        """As words, two or four of them in each: what is smaller cannot be fetched ahead."""
        return self.scale_EOG.view(torch.int32)

    @property
    def scales_in_word(self) -> int:
        return 4 // self.scale_EOG.itemsize


def turned(x_TI: Tensor, depth: int) -> Tensor:
    """Rows with every column where `turned_to` says, for tiles of `depth` bytes."""
    tiles = x_TI.unflatten(1, (-1, 4, depth // 16, 2, 4))  # thread, word, half, pair
    return tiles.permute(0, 1, 3, 5, 2, 4).reshape(x_TI.shape)


def check_fits(matrix: Packed, tiling: Tiling) -> None:
    depth = matrix.packed_EOB.shape[-1]
    if depth % tiling.depth or tiling.depth % matrix.group:
        raise ValueError(f"rows of {2 * depth} values do not go into steps of {2 * tiling.depth}")


def in_ptx(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.bfloat16


# --- in PTX -----------------------------------------------------------------------------------------------------------

# A word becomes four pairs of bfloat16: values i and i + 4, which are 16 bits apart. As the lowest bits of one, up to
# eight of them, a whole number is itself less 133 powers of two: subnormal, or of the first exponent that is not, which
# goes on counting. So the lower half of a byte stays where it is, the higher half is 16 times too large, and both get
# their scale, less 40 powers of two, and lose the 8 in one step that rounds once. For it the scale is multiplied with
# 2^93 and 2^89, and for the 8 with -2^-37, which is exact up to scales of 2^35. `over` puts the 40 back.
INT4_SCALES = tl.constexpr("""{
    .reg .b32 s, c;
    mov.b32 s, {$3, $3};
    mov.b32 c, 0xAD00AD00;
    mul.rn.bf16x2 $0, s, c;
    mov.b32 c, 0x6E006E00;
    mul.rn.bf16x2 $1, s, c;
    mov.b32 c, 0x6C006C00;
    mul.rn.bf16x2 $2, s, c;
}""")
INT4 = tl.constexpr("""{
    .reg .b32 p, q;
    and.b32 p, $8, 0x000F000F;
    fma.rn.bf16x2 p, p, $10, $9;
    mov.b32 {$0, $4}, p;
    and.b32 p, $8, 0x00F000F0;
    fma.rn.bf16x2 p, p, $11, $9;
    mov.b32 {$1, $5}, p;
    shr.u32 q, $8, 8;
    and.b32 p, q, 0x000F000F;
    fma.rn.bf16x2 p, p, $10, $9;
    mov.b32 {$2, $6}, p;
    and.b32 p, q, 0x00F000F0;
    fma.rn.bf16x2 p, p, $11, $9;
    mov.b32 {$3, $7}, p;
}""")


def _e2m1(i: int) -> str:
    """Values i and i + 4: the sign where signs belong, exponent and mantissa as those of the number less 126 powers of
    two, the subnormal ones included. The scale makes up for 112 of them, and `over` for the rest."""
    move = 6 - 4 * i
    return f"""
    shl.b32 q, $8, {12 - 4 * i};
    and.b32 q, q, 0x80008000;
    {"shl.b32" if move > 0 else "shr.u32"} p, $8, {abs(move)};
    lop3.b32 p, p, 0x01C001C0, q, 0xEA;
    mul.rn.bf16x2 p, p, $9;
    mov.b32 {{${i}, ${i + 4}}}, p;"""


E2M1 = tl.constexpr("{ .reg .b32 p, q;" + "".join(map(_e2m1, range(4))) + "}")
# The bits of e4m3 at their places in a bfloat16 are that number less 120 powers of two: times 2^127 and 2^105, two
# exact steps since no bfloat16 is that large, it is 112 powers of two more than it was.
E4M3 = tl.constexpr("""{
    .reg .b32 s, c;
    mul.lo.u32 s, $1, 0x00100010;
    mov.b32 c, 0x7F007F00;
    mul.rn.bf16x2 s, s, c;
    mov.b32 c, 0x74007400;
    mul.rn.bf16x2 $0, s, c;
}""")


@triton.jit
def _eight_ptx(word, scale, GROUPS: tl.constexpr, FLOAT: tl.constexpr):
    """The values of every word; the scales, as bits, are of GROUPS of words each."""
    WORDS: tl.constexpr = word.shape[1]
    eight: tl.constexpr = (tl.bfloat16,) * 8
    if FLOAT:
        pair = tl.inline_asm_elementwise(E4M3, "=r,r", [scale], dtype=tl.uint32, is_pure=True, pack=1)
        return tl.inline_asm_elementwise(
            E2M1, "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [word, _each_word(pair, GROUPS, WORDS)],
            dtype=eight, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        less, low, high = tl.inline_asm_elementwise(
            INT4_SCALES, "=r,=r,=r,h", [scale.to(tl.uint16)],
            dtype=(tl.uint32, tl.uint32, tl.uint32), is_pure=True, pack=1,
        )  # fmt: skip
        return tl.inline_asm_elementwise(
            INT4, "=h,=h,=h,=h,=h,=h,=h,=h,r,r,r,r",
            [word, _each_word(less, GROUPS, WORDS), _each_word(low, GROUPS, WORDS), _each_word(high, GROUPS, WORDS)],
            dtype=eight, is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def _each_word(scale, GROUPS: tl.constexpr, WORDS: tl.constexpr):
    rows: tl.constexpr = scale.shape[0]
    return tl.broadcast_to(scale[:, :, None], (rows, GROUPS, WORDS // GROUPS)).reshape((rows, WORDS))


# --- plainly ----------------------------------------------------------------------------------------------------------


@triton.jit
def _value(word, scale, PLACE: tl.constexpr, FLOAT: tl.constexpr, TYPE: tl.constexpr):
    """The value at this half byte of a word: e2m1, or a whole number with 8 added; times its scale."""
    half = (word >> (4 * PLACE)) & 15
    if FLOAT:
        # The exponent and the mantissa bit, at their places in a float16, are that number less 14 powers of two,
        # the subnormal ones included; `over` puts them back.
        bits = ((half & 7).to(tl.uint16) << 9) | ((half & 8).to(tl.uint16) << 12)
        number = bits.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        number = (half.to(tl.float32) - 8.0) * (1.0 / (1 << 40))
    return (number * scale).to(TYPE)


@triton.jit
def _number(scale, FLOAT: tl.constexpr):
    if FLOAT:
        return scale.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        return scale.to(tl.uint16).to(tl.bfloat16, bitcast=True).to(tl.float32)


@triton.jit
def over(over_ptr, expert):
    """What to multiply a sum of products with, for what their weights are too small by."""
    if over_ptr is None:
        return 1099511627776.0  # 2^40
    else:
        return 16384.0 / tl.load(over_ptr + expert)


# --- tiles ------------------------------------------------------------------------------------------------------------


@triton.jit
def turned_to(column, DEPTH: tl.constexpr):
    """Where a column stands when columns are turned for tiles of DEPTH bytes."""
    EACH: tl.constexpr = DEPTH // 16  # words of a row that a thread has
    pair, half, word, thread = column % 4, column // 4 % 2, column // 8 % EACH, column // 8 // EACH % 4
    return column // (2 * DEPTH) * (2 * DEPTH) + ((word * 4 + pair) * 4 + thread) * 2 + half


@triton.jit
def gate_and_other(COLUMNS: tl.constexpr):
    """Two matrices as one of 2 * COLUMNS rows: of every 16 rows, 8 of the gate and 8 of what it gates.

    So one thread gets both sums of a column. The column of each row, and whether it is of the second matrix.
    """
    line = tl.arange(0, 2 * COLUMNS)
    return line // 16 * 8 + line % 8, line // 8 % 2


@triton.jit
def gated_sum(both, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """gelu(gate) * other [COLUMNS, ROWS]."""
    gate, other = tl.split(both.reshape((COLUMNS // 8, 2, 8, ROWS)).permute((0, 2, 3, 1)))
    return (gelu(gate) * other).reshape((COLUMNS, ROWS))


@triton.jit
def tile(
    word, scale_at, start, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    IN_WORD: tl.constexpr, FLOAT: tl.constexpr, PTX: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """The weights [COLUMNS, 2 * DEPTH] of `DEPTH` bytes of rows, from byte `start` on; their scales begin there."""
    WORDS: tl.constexpr = DEPTH // 4
    GROUPS: tl.constexpr = DEPTH // GROUP
    group = start // GROUP + tl.arange(0, GROUPS)
    bits = tl.load(scale_at[:, None] + (group // IN_WORD)[None, :])
    scale = (bits >> (group % IN_WORD * (32 // IN_WORD))[None, :]) & (0xFF if FLOAT else 0xFFFF)
    if PTX:
        a, b, c, d, e, f, g, h = _eight_ptx(word, scale, GROUPS, FLOAT)
    else:
        number = _each_word(_number(scale, FLOAT), GROUPS, WORDS)
        a, b = _value(word, number, 0, FLOAT, TYPE), _value(word, number, 1, FLOAT, TYPE)
        c, d = _value(word, number, 2, FLOAT, TYPE), _value(word, number, 3, FLOAT, TYPE)
        e, f = _value(word, number, 4, FLOAT, TYPE), _value(word, number, 5, FLOAT, TYPE)
        g, h = _value(word, number, 6, FLOAT, TYPE), _value(word, number, 7, FLOAT, TYPE)
    # [COLUMNS, thread, word of the thread, half, pair // 2, pair % 2], and the thread goes before the half.
    even, odd = tl.join(tl.join(a, e), tl.join(c, g)), tl.join(tl.join(b, f), tl.join(d, h))
    eight = tl.join(even, odd).reshape((COLUMNS, 4, WORDS // 4, 2, 2, 2))
    return eight.permute((0, 2, 4, 5, 1, 3)).reshape((COLUMNS, 2 * DEPTH))
