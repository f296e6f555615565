"""Logits as they are stored, what they are under the cap at a step's temperature, and how products with them are cut.

No tanh: differences of what is left of it to the cap, in powers of two.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from gesso.backends.cuda.kernels.special import exp2, reciprocal

LOG2E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1e30)  # below any logit, but finite: minus infinity times the zero it leaves would be NaN


class Product(NamedTuple):
    """How a product is cut: a program makes `rows` x `columns` of it, walking the inner dimension by `inner_bytes`."""

    rows: int
    columns: int
    warps: int
    stages: int
    inner_bytes: int = 128  # a row of the shared-memory swizzle: 64 bfloat16, 32 float32

    def inner(self, dtype: torch.dtype) -> int:
        return self.inner_bytes // dtype.itemsize


@triton.jit
def depth(stored, softcap, PTX: tl.constexpr):
    """How far below the cap a logit is, as a share of the way down to minus the cap: (1 - tanh(x / softcap)) / 2.

    It has all its digits near the cap, where the likely tokens are. Times `span_of`, a difference of two is one of
    logits at the step's temperature, in powers of two.
    """
    return reciprocal(1.0 + exp2(stored.to(tl.float32) * (2.0 * LOG2E / softcap), PTX), PTX)


@triton.jit
def span_of(softcap, temperature):
    return 2.0 * LOG2E * softcap / temperature
