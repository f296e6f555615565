"""exp2, log2 and reciprocal as single instructions of the GPU's special function unit.

Without `PTX` they are plain operations, which are the specification and run in Triton's interpreter. The compiler's own
versions handle numbers below 2^-126, at three or four more instructions each; here those count as zero. Errors, by
NVIDIA's documentation of PTX: 2^-22 for exp2 and 2^-23 for 1/x, both relative; for log2 2^-22, absolute between 0.5 and
2 and relative elsewhere.
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
        return tl.exp2(tl.minimum(x, 127.0))  # numpy would warn about the infinity that the instruction returns


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
    """Convert float32 to another type.

    bfloat16 is converted two at a time, on the arithmetic units. One by one, the compiler would use the special
    function unit.
    """
    if PTX and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], tl.bfloat16, is_pure=True, pack=2
        )
    else:
        return x.to(dtype)
