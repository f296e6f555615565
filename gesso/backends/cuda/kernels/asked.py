"""The logits of some tokens, for a constraint: those that it may have to write, likely or not.

C positions of a canvas, U tokens, V vocabulary, H hidden.

A captured pass does not keep its logits, since probabilities overwrite them (`soft.py`). This kernel computes a few of
them again from the hidden states. It adds along H as `_logits` in `vocab.py` does, and rounds at the same places. Each
logit has an accumulator of its own, so it does not depend, to the last bit, on the other tokens or their number.

At C = 256 and U = 512 in bfloat16 it reads 4.3 MB, which takes 1 us on an H200, and multiplies for 1 us. It is
latency-bound: each program waits for 44 loads along H = 2816, of which `stages` are in flight. All logits of the canvas
would take 0.5 ms, and as float32 after the softcap 268 MB.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.kernels.capped import Product, distance_to_cap, logit_at
from gesso.backends.cuda.kernels.linear import quantize_rows
from gesso.backends.cuda.kernels.special import in_ptx, rounded
from gesso.checkpoint.quantize.packed import Packed, Weight

ASKED = Product(rows=64, columns=64, warps=4, stages=4)
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


def logits_of(hidden_CH: Tensor, head_VH: Weight, softcap: float, token_U: Tensor) -> Tensor:
    """Return the logits [C, U] of these tokens, in float32 and after the softcap."""
    (positions, hidden), count = hidden_CH.shape, len(token_U)
    logit_CU = hidden_CH.new_empty(positions, count, dtype=torch.float32)
    if not logit_CU.numel():
        return logit_CU
    x_CH, matrix_VH, x_scale_C, scale_V = hidden_CH.contiguous(), head_VH, None, None
    if isinstance(head_VH, Packed):
        matrix_VH, scale_V = head_VH.tensors["weight"], head_VH.tensors["weight_scale"]
        x_CH, x_scale_C = quantize_rows(x_CH)
    assert isinstance(matrix_VH, Tensor) and matrix_VH.stride(1) == 1
    row_tiles, column_tiles = triton.cdiv(positions, ASKED.rows), triton.cdiv(count, ASKED.columns)
    _asked[(row_tiles * column_tiles,)](
        *(x_CH, matrix_VH, x_scale_C, scale_V, token_U.contiguous(), logit_CU, softcap, positions, count),
        H=hidden,
        STRIDE=matrix_VH.stride(0),
        DTYPE=TYPES[hidden_CH.dtype],
        BLOCK_C=ASKED.rows,
        BLOCK_U=ASKED.columns,
        BLOCK_H=ASKED.inner(x_CH.dtype),
        PTX=in_ptx(hidden_CH),
        num_warps=ASKED.warps,
        num_stages=ASKED.stages,
    )
    return logit_CU


# --- kernel ---


@triton.jit(do_not_specialize=["C", "U"], do_not_specialize_on_alignment=["token_U"])
def _asked(
    x_CH, head_VH, x_scale_C, scale_V, token_U, logit_CU, softcap, C, U,
    H: tl.constexpr, STRIDE: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_U: tl.constexpr, BLOCK_H: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Compute one tile of logits.

    Grid: (row tiles * column tiles,), row tiles fastest: they share rows of the head. x is [C, H], head [V, H] with
    rows STRIDE apart, token int64 [U], logit [C, U]; x_scale [C] and scale [V] are given if operands are FP8. DTYPE is
    that of stored logits. Latency-bound.
    """
    row_tiles = tl.cdiv(C, BLOCK_C)
    row = tl.program_id(0) % row_tiles * BLOCK_C + tl.arange(0, BLOCK_C)
    column = tl.program_id(0) // row_tiles * BLOCK_U + tl.arange(0, BLOCK_U)
    inside, wanted = row < C, column < U
    token = tl.load(token_U + column, mask=wanted, other=0).to(tl.int64)

    sum_CU = tl.zeros((BLOCK_C, BLOCK_U), tl.float32)
    for h in range(0, H, BLOCK_H):
        at = h + tl.arange(0, BLOCK_H)
        x = tl.load(x_CH + row[:, None] * H + at[None, :], mask=inside[:, None] & (at < H)[None, :], other=0.0)
        w = tl.load(head_VH + token[:, None] * STRIDE + at[None, :], mask=(at < H)[None, :], other=0.0)
        sum_CU = tl.dot(x, tl.trans(w), sum_CU, input_precision="ieee")
    if scale_V is not None:
        sum_CU *= tl.load(x_scale_C + row, mask=inside, other=0.0)[:, None]
        sum_CU *= tl.load(scale_V + token)[None, :]
    logit = logit_at(distance_to_cap(rounded(sum_CU, DTYPE, PTX), softcap, PTX), softcap)
    tl.store(logit_CU + row[:, None].to(tl.int64) * U + column[None, :], logit, mask=inside[:, None] & wanted[None, :])
