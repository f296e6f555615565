"""Conversion of int4 weights to a left operand of Hopper's tensor cores, in Gluon: `four_bit.tile` for 64 rows.

Blocks are in the registers of four warps, as the tensor cores take a left operand: a warp has 16 rows, and four
threads, `thread`, share a row. A step is 128 values, 16 words, of a row: one tile of 64 bytes that is interleaved as in
`four_bit.py`, of which a thread has four words, or two tiles of 32 bytes, of each of which it has two.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

from gesso.backends.cuda.kernels.four_bit import INT4

# As in `four_bit.INT4_SCALES`, from a word of two scales. $4 selects the bytes of one of them, twice.
INT4_SCALES = gl.constexpr("""{
    .reg .b32 s, c;
    prmt.b32 s, $3, $3, $4;
    mov.b32 c, 0xAD00AD00;
    mul.rn.bf16x2 $0, s, c;
    mov.b32 c, 0x6E006E00;
    mul.rn.bf16x2 $1, s, c;
    mov.b32 c, 0x6C006C00;
    mul.rn.bf16x2 $2, s, c;
}""")
LOW, HIGH = gl.constexpr(0x1010), gl.constexpr(0x3232)
CONVERSION = gl.constexpr(INT4.value)


@constexpr_function
def row_layout(registers, threads, columns):
    """Return the layout of [64, columns]. registers, threads: the columns that a further register, or thread, adds."""
    return gl.DistributedLinearLayout(
        reg_bases=[*([0, each] for each in registers), [8, 0]],
        lane_bases=[*([0, each] for each in threads), [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, columns],
    )


@constexpr_function
def _word_layout(tiles):
    """Return the layout of the words of a step as [64, tile, thread // 2, thread % 2, word]."""
    second = [0, 1, 0, 0, 0] if tiles == 2 else [0, 0, 0, 0, 2]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 0, 0, 1], second, [8, 0, 0, 0, 0]],
        lane_bases=[[0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [1, 0, 0, 0, 0], [2, 0, 0, 0, 0], [4, 0, 0, 0, 0]],
        warp_bases=[[16, 0, 0, 0, 0], [32, 0, 0, 0, 0]],
        block_bases=[],
        shape=[64, tiles, 2, 2, 4 // tiles],
    )


@constexpr_function
def sliced(layout, *dims):
    """Return the layout without these dimensions, the last first."""
    for dim in dims:
        layout = gl.SliceLayout(dim, layout)
    return layout


@gluon.jit
def selector(TILES: gl.constexpr):
    """Return which half of a word of scales a thread takes: that of its group of 32 values."""
    LAYOUT: gl.constexpr = _word_layout(TILES)
    if TILES == 1:
        return gl.where(gl.arange(0, 2, layout=sliced(LAYOUT, 4, 2, 1, 0)) == 0, LOW, HIGH)[None, None, None, :, None]
    else:
        return gl.where(gl.arange(0, 2, layout=sliced(LAYOUT, 4, 3, 1, 0)) == 0, LOW, HIGH)[None, None, :, None, None]


@gluon.jit
def convert(word, scale, choice, TILES: gl.constexpr, OPERAND: gl.constexpr):
    """Return the weights [64, 128] of words [64, 16] as a left operand. scale: [64, 2] words, of two scales
    each; choice: `selector`.
    """
    LAYOUT: gl.constexpr = _word_layout(TILES)
    EACH: gl.constexpr = 4 // TILES
    word = gl.convert_layout(word.reshape([64, TILES, 2, 2, EACH]), LAYOUT, assert_trivial=True)
    if TILES == 1:
        scale = gl.convert_layout(scale, sliced(LAYOUT, 4, 3, 1), assert_trivial=True)[:, None, :, None, None]
    else:
        scale = gl.convert_layout(scale, sliced(LAYOUT, 4, 3, 2), assert_trivial=True)[:, :, None, None, None]
    bias, low, high = gl.inline_asm_elementwise(
        INT4_SCALES, "=r,=r,=r,r,r", [scale, choice],
        dtype=(gl.uint32, gl.uint32, gl.uint32), is_pure=True, pack=1,
    )  # fmt: skip
    a, b, c, d, e, f, g, h = gl.inline_asm_elementwise(
        CONVERSION, "=h,=h,=h,=h,=h,=h,=h,=h,r,r,r,r", [word, bias, low, high],
        dtype=(
            gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16,
            gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16,
        ),
        is_pure=True, pack=1,
    )  # fmt: skip
    # [64, tile, thread, word of the thread, half, pair // 2, pair % 2]; the thread moves before the half.
    even, odd = gl.join(gl.join(a, e), gl.join(c, g)), gl.join(gl.join(b, f), gl.join(d, h))
    eight = gl.join(even, odd).reshape([64, TILES, 4, EACH, 2, 2, 2])
    return gl.convert_layout(eight.permute([0, 1, 3, 5, 6, 2, 4]).reshape([64, 128]), OPERAND, assert_trivial=True)
