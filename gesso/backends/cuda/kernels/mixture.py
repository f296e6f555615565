"""Both products of the experts, with weights in any combination of formats.

The formats are those of `experts.py` (bfloat16, float32, FP8) and of `experts_four_bit.py` (int4, uint4, NVFP4). A GGUF
file has, for example, uint4 in the first product and FP8 in the second. x comes in the activation format of the first
weights; the first product writes h in that of the second. Each product has tiles of its own number of rows: one launch
groups the pairs for both.

T tokens, H hidden, K experts per token, R = T * K pairs.
"""

import torch
from torch import Tensor

from gesso.backends.cuda.kernels import experts, experts_four_bit
from gesso.backends.cuda.kernels.experts import Matrices, group_for_both
from gesso.backends.cuda.kernels.four_bit import FourBitMatrices
from gesso.backends.cuda.kernels.hidden import Hidden, new_fp8, new_interleaved, new_plain
from gesso.backends.cuda.kernels.linear import BLOCK
from gesso.backends.cuda.kernels.low_rank import Factors
from gesso.backends.cuda.kernels.shrink import shrink_hidden, shrink_tokens

Stack = Matrices | FourBitMatrices


def outputs(
    x_TH: Tensor, scale_T: Tensor | None, index_TK: Tensor, gate_up: Stack, down: Stack, dtype: torch.dtype,
    up_factors: Factors | None = None, down_factors: Factors | None = None,
) -> Tensor:  # fmt: skip
    """Return the unweighted outputs of each token's experts [R, H], in `dtype`.

    FP8 matrices take FP8 rows x with their scales, and four-bit matrices rows that are interleaved for them. Adapters
    are added if there are factors.
    """
    tokens, k = index_TK.shape
    rows = _up_rows(gate_up, tokens), _down_rows(down, tokens)
    factors = up_factors or down_factors
    slot_T = None if factors is None else factors.slot_T
    first, second = group_for_both(index_TK, gate_up.count, *rows, slot_T)
    h = new_hidden(down, tokens * k, dtype)
    inner = None if up_factors is None else shrink_tokens(x_TH, scale_T, first, rows[0], k, up_factors)
    if isinstance(gate_up, FourBitMatrices):
        experts_four_bit.up_product(x_TH, first, k, gate_up, h, inner)
    else:
        experts.up_product(x_TH, scale_T, first, k, gate_up, h, inner)
    inner = None if down_factors is None else shrink_hidden(h, second, rows[1], k, down_factors)
    if isinstance(down, FourBitMatrices):
        return experts_four_bit.down_product(h, second, k, down, inner)
    return experts.down_product(h, second, k, down, dtype, inner)


def new_hidden(down: Stack, pairs: int, dtype: torch.dtype) -> Hidden:
    """Allocate the rows between the products, in the form that these matrices of the second product take."""
    if isinstance(down, FourBitMatrices):
        interleave = experts_four_bit.depth("down", down.format)
        return new_interleaved(pairs, down.inputs, interleave, dtype, down.packed_EOB.device)
    if down.scale_EO is not None:
        return new_fp8(pairs, down.inputs, BLOCK, down.weight_EOI.device)
    return new_plain(pairs, down.inputs, dtype, down.weight_EOI.device)


def _up_rows(gate_up: Stack, tokens: int) -> int:
    if isinstance(gate_up, FourBitMatrices):
        return experts_four_bit.choose_tiling("up", gate_up.format, tokens).rows
    return experts.choose_tiling(experts.UP, gate_up, tokens).rows


def _down_rows(down: Stack, tokens: int) -> int:
    if isinstance(down, FourBitMatrices):
        return experts_four_bit.choose_tiling("down", down.format, tokens).rows
    return experts.choose_tiling(experts.DOWN, down, tokens).rows
