"""Compile the conversion of four-bit weights, and the products in Gluon, for an H200, which needs no GPU. Run by
test_four_bit.py.
"""

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from gesso.backends.cuda.kernels import experts_int4_hopper as hopper
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


def descriptor(dtype: str, block: list[int], layout: gl.NVMMASharedLayout) -> str:
    return f"tensordesc<{dtype}{block},{layout!r}>"


words = descriptor("i32", [1, 2, 64, 16], gl.NVMMASharedLayout(64, 32, 4))
pointers = dict.fromkeys(("order_ptr", "end_ptr", "expert_ptr", "first_ptr", "scale_ptr"), "*i32")
pointers |= dict.fromkeys(("x_ptr", "h_ptr", "y_ptr"), "*bf16")
sizes = {"HIDDEN": 512, "WIDTH": 192, "ROWS": 32, "STAGES": hopper.STAGES, "TOKEN_STAGES": hopper.TOKEN_STAGES}
up = {"packed": words, "scales": descriptor("i32", [1, 2, 64, 4], gl.NVMMASharedLayout(0, 32, 4)), "choices": "i32"}
tokens = gl.NVMMASharedLayout(128, 16, 2)
down = {"packed": words}
down |= {"rows": descriptor("bf16", [32, 128], tokens), "half_rows": descriptor("bf16", [16, 128], tokens)}
for kernel, given in ((hopper._up, up), (hopper._down, down)):
    signature = {name: (pointers | given).get(name, "constexpr") for name in kernel.arg_names}
    constants = {name: value for name, value in (sizes | {"INTERLEAVE": 32}).items() if name in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(signature) if name in pointers}
    triton.compile(GluonASTSource(kernel, signature, constants, aligned), target=GPUTarget("cuda", 90, 32))
sys.stdout.write("compiled")
