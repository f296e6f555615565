"""Weights of four bits, int4 or NVFP4, widened to bfloat16 as a product reads them.

The layouts are those of `gesso/quantize`: byte j of a row holds value 2j in its low half and 2j + 1 in its high half.
A product takes its weights as the left operand, [COLUMNS, depth]: there the tensor cores read it from registers, and
what was widened never goes through shared memory. In that operand a thread holds every fourth pair of values of a row.
It reads a word of four bytes, eight values, where it should have had four bytes apart; so the columns of x have to be
turned (`turned_place`). That costs a pass over x, and fewer instructions a weight than reading byte by byte.

On a GPU, in bfloat16, the widening is written in PTX: two values at a time, less than two instructions a value, where
the compiler makes eight. The plain expression beside it says what it computes.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.ops.kernels.linear import Tiling, gelu


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

    @property
    def words(self) -> Tensor:
        return self.packed_EOB.view(torch.int32)

    @property
    def scales_together(self) -> int:
        """How many are read at once: in int4, two. Of NVFP4, neighbouring threads want neighbouring scales, and a word
        of them would have to be handed around."""
        return 2 if self.over_E is None else 1

    @property
    def scales(self) -> Tensor:
        return self.scale_EOG.view(torch.int32 if self.over_E is None else torch.uint8)


def check_fits(matrix: Packed, tiling: Tiling) -> None:
    depth = matrix.packed_EOB.shape[-1]
    if depth % tiling.depth or tiling.depth % matrix.group:
        raise ValueError(f"rows of {2 * depth} values do not go into steps of {2 * tiling.depth}")


def in_ptx(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.bfloat16


# --- in PTX -----------------------------------------------------------------------------------------------------------

# A byte becomes a pair of bfloat16. As the lowest bits of one, up to eight of them, a whole number is itself less 133
# powers of two: subnormal, or of the first exponent that is not, which goes on counting. So the low half stays where it
# is, the high half is 16 times too large, and both get their scale, less 40 powers of two, and lose the 8 in one step
# that rounds once. For it the scale is multiplied with 2^93 and 2^89, and for the 8 with -2^-37, which is exact up to
# scales of 2^35. `over` puts the 40 back.
_INT4_SCALE = """
    mov.b32 s, {$S, $S};
    mov.b32 c, 0xAD00AD00;
    mul.rn.bf16x2 c, s, c;
    mov.b32 p, 0x6C006E00;
    mul.rn.bf16x2 s, s, p;
"""
# The halves of four bytes are taken apart first, two instructions for all. Place 8 is the sign of the first byte of `a`
# all over a byte: zero.
_INT4 = """
    prmt.b32 p, a, q, 0x8{high}8{low};
    fma.rn.bf16x2 p, p, s, c;
"""
# The halves of e2m1 are put at the left end of each 16 bits, where signs belong; exponent and mantissa go six bits
# down, which makes the number less 126 powers of two, the subnormal ones included. The scale makes up for 112 of them,
# and `over` for the rest.
_E2M1 = """
    and.b32 q, p, 0x80008000;
    shr.u32 p, p, 6;
    lop3.b32 p, p, 0x01C001C0, q, 0xEA;
    mul.rn.bf16x2 p, p, s;
"""


def _ptx(start: str, then: str) -> str:
    pair = then + "mov.b32 {{${first}, ${second}}}, p;"
    pairs = (pair.format(high=4 + i, low=i, first=2 * i, second=2 * i + 1) for i in range(4))
    text = "{ .reg .b32 a, c, p, q, s;" + start + "".join(pairs) + "}"
    return text.replace("$W", "$8").replace("$S", "$9")


INT4 = tl.constexpr(_ptx(_INT4_SCALE + "and.b32 a, $W, 0x0F0F0F0F; and.b32 q, $W, 0xF0F0F0F0;", _INT4))
E2M1 = tl.constexpr(_ptx("mov.b32 s, $S; shl.b32 a, $W, 4;", "prmt.b32 p, a, $W, 0x{high}0{low}0;" + _E2M1))
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
def _eight_ptx(word, scale, FLOAT: tl.constexpr):
    return tl.inline_asm_elementwise(
        E2M1 if FLOAT else INT4,
        "=h,=h,=h,=h,=h,=h,=h,=h,r,r" if FLOAT else "=h,=h,=h,=h,=h,=h,=h,=h,r,h", [word, scale],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True, pack=1,
    )  # fmt: skip


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
def _scales(
    scale_at, start, COLUMNS: tl.constexpr, GROUPS: tl.constexpr, TOGETHER: tl.constexpr, FLOAT: tl.constexpr,
    PTX: tl.constexpr,
):  # fmt: skip
    """The scales [COLUMNS, GROUPS] from group `start` on; for the PTX, bits: of one bfloat16, or for NVFP4 of two."""
    bits = tl.load(scale_at[:, None] + start // TOGETHER + tl.arange(0, GROUPS // TOGETHER)[None, :])
    if TOGETHER == 2:
        bits = tl.join(bits, bits >> 16).reshape((COLUMNS, GROUPS)).to(tl.uint16)
    if FLOAT:
        if PTX:
            byte = bits.to(tl.uint32) & 255
            return tl.inline_asm_elementwise(E4M3, "=r,r", [byte], dtype=tl.uint32, is_pure=True, pack=1)
        else:
            return bits.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        return bits if PTX else bits.to(tl.bfloat16, bitcast=True).to(tl.float32)


@triton.jit
def over(over_ptr, expert):
    """What to multiply a sum of products with, for what their weights are too small by."""
    if over_ptr is None:
        return 1099511627776.0  # 2^40
    else:
        return 16384.0 / tl.load(over_ptr + expert)


# --- tiles ------------------------------------------------------------------------------------------------------------


@triton.jit
def turned_place(k):
    """Where column k stands when columns are turned: of 32, pair i of word t where pair t of word i would. And back."""
    return k // 32 * 32 + k % 8 // 2 * 8 + k % 32 // 8 * 2 + k % 2


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
    TOGETHER: tl.constexpr, FLOAT: tl.constexpr, PTX: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """The weights [COLUMNS, 2 * DEPTH] of `DEPTH` bytes of rows, from byte `start` on; their scales begin there."""
    WORDS: tl.constexpr = DEPTH // 4
    GROUPS: tl.constexpr = DEPTH // GROUP
    scale = _scales(scale_at, start // GROUP, COLUMNS, GROUPS, TOGETHER, FLOAT, PTX)
    scale = tl.broadcast_to(scale[:, :, None], (COLUMNS, GROUPS, WORDS // GROUPS)).reshape((COLUMNS, WORDS))
    if PTX:
        a, b, c, d, e, f, g, h = _eight_ptx(word, scale, FLOAT)
    else:
        a, b = _value(word, scale, 0, FLOAT, TYPE), _value(word, scale, 1, FLOAT, TYPE)
        c, d = _value(word, scale, 2, FLOAT, TYPE), _value(word, scale, 3, FLOAT, TYPE)
        e, f = _value(word, scale, 4, FLOAT, TYPE), _value(word, scale, 5, FLOAT, TYPE)
        g, h = _value(word, scale, 6, FLOAT, TYPE), _value(word, scale, 7, FLOAT, TYPE)
    # [COLUMNS, words, half of a pair, pair // 2, pair % 2], and the pair goes before the last bits of the word.
    even, odd = tl.join(tl.join(a, b), tl.join(e, f)), tl.join(tl.join(c, d), tl.join(g, h))
    eight = tl.join(even, odd).reshape((COLUMNS, WORDS // 4, 4, 2, 2, 2))
    return eight.permute((0, 1, 4, 5, 2, 3)).reshape((COLUMNS, 2 * DEPTH))
