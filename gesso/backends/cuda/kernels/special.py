"""Powers, logarithms and reciprocals as a GPU's unit for special functions gives them: one instruction each.

Without `PTX` they are what the interpreter knows, and the specification. The compiler's own versions differ from the
instructions by what they do for numbers below 2^-126, three or four instructions more each; here those count as zero.
Errors, by NVIDIA's documentation of PTX: 2^-22 of exp2 and 2^-23 of 1/x, both relative; of log2 2^-22, absolute between
0.5 and 2 and relative elsewhere.
"""

import triton
import triton.language as tl
from torch import Tensor


def in_ptx(x: Tensor) -> bool:
    return x.is_cuda


@triton.jit
def exp2(x, PTX: tl.constexpr):
    if PTX:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.exp2(tl.minimum(x, 127.0))  # numpy would warn of the infinity that the instruction gives


@triton.jit
def log2(x, PTX: tl.constexpr):
    if PTX:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.log2(x)


@triton.jit
def reciprocal(x, PTX: tl.constexpr):
    if PTX:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return 1.0 / x


@triton.jit
def rounded(x, dtype: tl.constexpr, PTX: tl.constexpr):
    """float32 as numbers of another type. Two bfloat16 at a time, on the arithmetic units: one by one, the compiler
    would have the unit for special functions make them."""
    if PTX and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], tl.bfloat16, is_pure=True, pack=2
        )
    else:
        return x.to(dtype)
