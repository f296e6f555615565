"""Four-bit weights, int4, uint4 or NVFP4, converted to bfloat16 as a product reads them.

The layouts are those of `gesso/checkpoint/quantize`: byte j of a row holds value 2j in its low half and 2j + 1 in its
high half. A product takes the weights as its left operand, [COLUMNS, depth]: there the tensor cores read it from
registers, and converted values never pass through shared memory. In that operand four threads share a row, and each
holds every fourth pair of its values. Instead, each thread reads a contiguous quarter of the row, whole words under one
scale or two, and the columns of x are interleaved to match (`interleaved_to`). The kernel that writes x does that at no
cost.

On a GPU that multiplies pairs of bfloat16, the conversion is written in PTX: two values at a time, little more than one
instruction per value, where the compiler emits eight. The plain expression next to it is the specification, and runs on
other GPUs.

E experts, O outputs, B bytes of two values each, G groups of values that share a scale, T tokens, I inputs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.kernels.linear import Tiling, gelu
from gesso.cards.running import card_of

FOUR_BIT = ("int4", "uint4", "nvfp4")


@dataclass(frozen=True)
class FourBitMatrices:
    """One four-bit matrix per expert. int4: one scale per 32 values; uint4: one scale and one offset per 32; NVFP4: one
    scale per 16, and one global scale, or two: of the gate and of the up half of the rows.
    """

    format: str
    packed_EOB: Tensor  # uint8
    scale_EOG: Tensor  # uint4: pairs of scale and offset [E, O, G, 2]
    global_scale_EX: Tensor | None = None  # NVFP4's `weight_global_scale`, by which scales are divided; X is 1 or 2

    @property
    def count(self) -> int:
        return len(self.packed_EOB)

    @property
    def inputs(self) -> int:
        return 2 * self.packed_EOB.shape[2]

    @property
    def group(self) -> int:
        """Bytes that share a scale."""
        return self.packed_EOB.shape[2] // self.scale_EOG.shape[2]

    @property
    def words(self) -> Tensor:
        return self.packed_EOB.view(torch.int32)

    @property
    def scales(self) -> Tensor:
        """Scales as 32-bit words, since smaller loads cannot be prefetched: two, four, or a scale and its offset."""
        return self.scale_EOG.view(torch.int32)

    @property
    def scales_in_word(self) -> int:
        return 1 if self.format == "uint4" else 4 // self.scale_EOG.itemsize

    @property
    def global_scales(self) -> int:
        """Global scales per expert, for NVFP4."""
        return 1 if self.global_scale_EX is None else self.global_scale_EX.shape[1]


def interleaved(x_TI: Tensor, depth: int) -> Tensor:
    """Return rows with every column at its place by `interleaved_to`, for tiles of `depth` bytes."""
    tiles = x_TI.unflatten(1, (-1, 4, depth // 16, 2, 4))  # thread, word, half, pair
    return tiles.permute(0, 1, 3, 5, 2, 4).reshape(x_TI.shape)


def check_fits(matrix: FourBitMatrices, tiling: Tiling) -> None:
    depth = matrix.packed_EOB.shape[-1]
    if depth % tiling.depth or tiling.depth % matrix.group:
        raise ValueError(f"rows of {2 * depth} values are not a multiple of the {2 * tiling.depth} values per step")


def in_ptx(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16 and card_of(x.device).multiplies_bf16_pairs


# --- in PTX -----------------------------------------------------------------------------------------------------------

# A word becomes four pairs of bfloat16: values i and i + 4, which are 16 bits apart. In the lowest bits of a bfloat16,
# an integer of up to eight bits reads as itself times 2^-133: as a subnormal, or with the first normal exponent, which
# continues the count. So the low half of a byte stays in place, and the high half is 16 times too large. One fused
# multiply-add applies the scale times 2^-40 and adds the bias times 2^-40, rounding once. For that the scale is
# multiplied by 2^93 and 2^89. The bias of int4 is -8 scales: the scale times -2^-37. That of uint4 is the offset, times
# 2^-40. `sum_scale` restores the factor 2^40.
#
# All of this is exact for scales below 2^35 and offsets that are zero or between 2^-86 and 2^127. Values below 2^-86
# lose bits, because they are subnormal after the factor 2^-40.
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
UINT4_SCALES = tl.constexpr("""{
    .reg .b32 s, b, c;
    mov.b32 s, {$3, $3};
    mov.b32 b, {$4, $4};
    mov.b32 c, 0x2B802B80;
    mul.rn.bf16x2 $0, b, c;
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
    """Return the PTX that converts values i and i + 4.

    The sign bit moves to its place. Exponent and mantissa bits, also of subnormals, read as the number times 2^-126.
    The scale makes up for 2^112 of it, and `sum_scale` for the rest.
    """
    move = 6 - 4 * i
    return f"""
    shl.b32 q, $8, {12 - 4 * i};
    and.b32 q, q, 0x80008000;
    {"shl.b32" if move > 0 else "shr.u32"} p, $8, {abs(move)};
    lop3.b32 p, p, 0x01C001C0, q, 0xEA;
    mul.rn.bf16x2 p, p, $9;
    mov.b32 {{${i}, ${i + 4}}}, p;"""


E2M1 = tl.constexpr("{ .reg .b32 p, q;" + "".join(map(_e2m1, range(4))) + "}")
# The bits of an e4m3 scale at their places in a bfloat16 read as that number times 2^-120. Multiplied by 2^127 and
# 2^105, it is the scale times 2^112. Both steps are exact; one would not do, since no bfloat16 is as large as 2^232.
E4M3 = tl.constexpr("""{
    .reg .b32 s, c;
    mul.lo.u32 s, $1, 0x00100010;
    mov.b32 c, 0x7F007F00;
    mul.rn.bf16x2 s, s, c;
    mov.b32 c, 0x74007400;
    mul.rn.bf16x2 $0, s, c;
}""")


@triton.jit
def _eight_ptx(word, scale, offset, GROUPS: tl.constexpr, FORMAT: tl.constexpr):
    """Return the eight values of every word, scaled. `scale` holds the bits of GROUPS scales per row, and in uint4
    `offset` those of as many offsets.
    """
    WORDS: tl.constexpr = word.shape[1]
    if FORMAT == "nvfp4":
        pair = tl.inline_asm_elementwise(E4M3, "=r,r", [scale], dtype=tl.uint32, is_pure=True, pack=1)
        return tl.inline_asm_elementwise(
            E2M1, "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [word, _each_word(pair, GROUPS, WORDS)],
            dtype=(  # written out: Triton 3.9 takes no tuple that is a constexpr
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
            ),
            is_pure=True, pack=1,
        )  # fmt: skip
    else:
        if FORMAT == "uint4":
            bias, low, high = tl.inline_asm_elementwise(
                UINT4_SCALES, "=r,=r,=r,h,h", [scale.to(tl.uint16), offset.to(tl.uint16)],
                dtype=(tl.uint32, tl.uint32, tl.uint32), is_pure=True, pack=1,
            )  # fmt: skip
        else:
            bias, low, high = tl.inline_asm_elementwise(
                INT4_SCALES, "=r,=r,=r,h", [scale.to(tl.uint16)],
                dtype=(tl.uint32, tl.uint32, tl.uint32), is_pure=True, pack=1,
            )  # fmt: skip
        return tl.inline_asm_elementwise(
            INT4, "=h,=h,=h,=h,=h,=h,=h,=h,r,r,r,r",
            [word, _each_word(bias, GROUPS, WORDS), _each_word(low, GROUPS, WORDS), _each_word(high, GROUPS, WORDS)],
            dtype=(
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
            ),
            is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def _each_word(scale, GROUPS: tl.constexpr, WORDS: tl.constexpr):
    rows: tl.constexpr = scale.shape[0]
    return tl.broadcast_to(scale[:, :, None], (rows, GROUPS, WORDS // GROUPS)).reshape((rows, WORDS))


# --- plain ------------------------------------------------------------------------------------------------------------


@triton.jit
def _value(word, scale, bias, PLACE: tl.constexpr, FORMAT: tl.constexpr, TYPE: tl.constexpr):
    """Return the value at half byte PLACE of a word: e2m1 times its scale, or an integer times its scale plus bias."""
    half = (word >> (4 * PLACE)) & 15
    if FORMAT == "nvfp4":
        # Exponent and mantissa bits at their places in a float16, also of subnormals, read as the number times 2^-14;
        # `sum_scale` restores that.
        bits = ((half & 7).to(tl.uint16) << 9) | ((half & 8).to(tl.uint16) << 12)
        value = bits.to(tl.float16, bitcast=True).to(tl.float32) * scale
    else:
        value = (half.to(tl.float32) * scale + bias) * (1.0 / (1 << 40))
    return value.to(TYPE)


@triton.jit
def _numbers(scale, offset, FORMAT: tl.constexpr):
    """Return scales and biases as float32. NVFP4 has no bias."""
    if FORMAT == "nvfp4":
        number = scale.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
        return number, number
    else:
        number = _bfloat16(scale)
        return number, _bfloat16(offset) if FORMAT == "uint4" else -8.0 * number


@triton.jit
def _bfloat16(bits):
    return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True).to(tl.float32)


@triton.jit
def sum_scale(global_scale_ptr, at):
    """Return the factor that restores the powers of two missing from the converted weights, for a sum of products.

    `at` is the index of the global scale, or a block of indices. Without global scales the factor is one number.
    """
    if global_scale_ptr is None:
        return 1099511627776.0  # 2^40
    else:
        return 16384.0 / tl.load(global_scale_ptr + at)


# --- tiles ------------------------------------------------------------------------------------------------------------


@triton.jit
def interleaved_to(column, DEPTH: tl.constexpr):
    """Return the place of a column when columns are interleaved for tiles of DEPTH bytes."""
    EACH: tl.constexpr = DEPTH // 16  # words of a row per thread
    pair, half, word, thread = column % 4, column // 4 % 2, column // 8 % EACH, column // 8 // EACH % 4
    return column // (2 * DEPTH) * (2 * DEPTH) + ((word * 4 + pair) * 4 + thread) * 2 + half


@triton.jit
def gate_up_rows(COLUMNS: tl.constexpr):
    """Return, for each row of the combined gate and up matrix, its column, and whether it belongs to the up matrix.

    Of every 16 of the 2 * COLUMNS rows, 8 are of the gate and 8 of the up matrix, so that one thread gets both sums of
    a column.
    """
    line = tl.arange(0, 2 * COLUMNS)
    return line // 16 * 8 + line % 8, line // 8 % 2


@triton.jit
def gated_sum(both, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Return gelu(gate) * up [COLUMNS, ROWS]."""
    gate, up = tl.split(both.reshape((COLUMNS // 8, 2, 8, ROWS)).permute((0, 2, 3, 1)))
    return (gelu(gate) * up).reshape((COLUMNS, ROWS))


@triton.jit
def tile(
    word, scale_at, start, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    IN_WORD: tl.constexpr, FORMAT: tl.constexpr, PTX: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Return the weights [COLUMNS, 2 * DEPTH] of DEPTH bytes of rows from byte `start` on. `scale_at` points to their
    scales.

    FORMAT: "nvfp4", e2m1 values with e4m3 scales; "int4" or "uint4", integers with bfloat16 scales, and in uint4 with
    bfloat16 offsets. TYPE: dtype of the result.
    """
    WORDS: tl.constexpr = DEPTH // 4
    GROUPS: tl.constexpr = DEPTH // GROUP
    group = start // GROUP + tl.arange(0, GROUPS)
    bits = tl.load(scale_at[:, None] + (group // IN_WORD)[None, :])
    scale = (bits >> (group % IN_WORD * (32 // IN_WORD))[None, :]) & (0xFF if FORMAT == "nvfp4" else 0xFFFF)
    offset = (bits >> 16) & 0xFFFF  # only in uint4
    if PTX:
        a, b, c, d, e, f, g, h = _eight_ptx(word, scale, offset, GROUPS, FORMAT)
    else:
        number, bias = _numbers(scale, offset, FORMAT)
        number, bias = _each_word(number, GROUPS, WORDS), _each_word(bias, GROUPS, WORDS)
        a, b = _value(word, number, bias, 0, FORMAT, TYPE), _value(word, number, bias, 1, FORMAT, TYPE)
        c, d = _value(word, number, bias, 2, FORMAT, TYPE), _value(word, number, bias, 3, FORMAT, TYPE)
        e, f = _value(word, number, bias, 4, FORMAT, TYPE), _value(word, number, bias, 5, FORMAT, TYPE)
        g, h = _value(word, number, bias, 6, FORMAT, TYPE), _value(word, number, bias, 7, FORMAT, TYPE)
    # [COLUMNS, thread, word of the thread, half, pair // 2, pair % 2]; the thread moves before the half.
    even, odd = tl.join(tl.join(a, e), tl.join(c, g)), tl.join(tl.join(b, f), tl.join(d, h))
    eight = tl.join(even, odd).reshape((COLUMNS, 4, WORDS // 4, 2, 2, 2))
    return eight.permute((0, 2, 4, 5, 1, 3)).reshape((COLUMNS, 2 * DEPTH))
