"""Compile the conversion of four-bit weights for an H200, which needs no GPU. Run by test_four_bit.py."""

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gesso.backends.cuda.kernels.four_bit import tile

COLUMNS, DEPTH = 64, 32
GROUPS = {"int4": (16, 2), "uint4": (16, 1), "nvfp4": (8, 4)}  # bytes per scale, scales per word


@triton.jit
def convert(
    words_ptr, scales_ptr, out_ptr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    IN_WORD: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    row, word = tl.arange(0, COLUMNS), tl.arange(0, DEPTH // 4)
    words = tl.load(words_ptr + row[:, None] * (DEPTH // 4) + word[None, :])
    values = tile(words, scales_ptr + row, 0, COLUMNS, DEPTH, GROUP, IN_WORD, FORMAT, True, tl.bfloat16)
    tl.store(out_ptr + row[:, None] * (2 * DEPTH) + tl.arange(0, 2 * DEPTH)[None, :], values)


for format, (group, in_word) in GROUPS.items():
    constants = {"COLUMNS": COLUMNS, "DEPTH": DEPTH, "GROUP": group, "IN_WORD": in_word, "FORMAT": format}
    signature = {"words_ptr": "*i32", "scales_ptr": "*i32", "out_ptr": "*bf16", **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(convert, signature=signature, constexprs=constants)
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
sys.stdout.write("compiled")
