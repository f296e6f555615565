"""Choose the kernel of a product by the format of its weights. If factors are given, the product includes the adapters
of the tokens: their inner values are computed first.

T tokens, I inputs, O outputs, H hidden, E experts, K experts per token, R = T * K pairs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gesso.backends.cuda.activations import Fp8Rows, Interleaved, Rows, SplitK
from gesso.backends.cuda.kernels import feed_forward, linear, mixture
from gesso.backends.cuda.kernels.experts import Matrices, down_product
from gesso.backends.cuda.kernels.feed_forward_parts import FeedForward
from gesso.backends.cuda.kernels.four_bit import FOUR_BIT, FourBitMatrices
from gesso.backends.cuda.kernels.hidden import Hidden
from gesso.backends.cuda.kernels.linear import Matrix
from gesso.backends.cuda.kernels.low_rank import Factors, Inner
from gesso.backends.cuda.kernels.shrink import quantize_and_shrink, shrink, shrink_blocks
from gesso.checkpoint.quantize.packed import Packed, Weight


def linears(x_TI: Rows, weights: Sequence[Weight], factors: Factors | None = None) -> list[Tensor]:
    """Return the products of the same tokens with up to three matrices."""
    matrices = [_matrix(weight) for weight in weights]
    rows, scale_T, inner = _adapted_rows(x_TI, matrices[0].scale_O, factors)
    return linear.linears(rows, matrices, scale_T, x_TI.dtype, inner)


def split_k(x_TI: Rows, weight: Weight, factors: Factors | None = None) -> Tensor | SplitK:
    """Return one product, perhaps as unreduced split-K partials."""
    matrix = _matrix(weight)
    rows, scale_T, inner = _adapted_rows(x_TI, matrix.scale_O, factors)
    y = linear.split_k(rows, matrix, scale_T, x_TI.dtype, inner)
    return y if y.ndim == 2 else SplitK(y)


def gated(x_TI: Rows, gate: Weight, up: Weight, factors: Factors | None = None) -> Tensor:
    """Return gelu(x gate) * (x up)."""
    first, second = _matrix(gate), _matrix(up)
    rows, scale_T, inner = _adapted_rows(x_TI, first.scale_O, factors)
    return linear.gated(rows, first, second, scale_T, x_TI.dtype, inner)


def mlp_low(
    x_TI: Fp8Rows, gate: Weight, up: Weight, down: Weight,
    up_factors: Factors | None = None, down_factors: Factors | None = None,
) -> Tensor:  # fmt: skip
    """Return (gelu(x gate) * (x up)) down. All matrices are FP8, and so are the rows between the products."""
    first, second, third = _matrix(gate), _matrix(up), _matrix(down)
    assert first.scale_O is not None and third.scale_O is not None, "not FP8"
    inner = None if up_factors is None else shrink(x_TI.low_TI, x_TI.scale_T, up_factors)
    h = Hidden(*linear.gated_low(x_TI.low_TI, first, second, x_TI.scale_T, inner), linear.BLOCK)
    inner = None if down_factors is None else shrink_blocks(h, down_factors)
    return down_product(h, None, 1, Matrices(third.weight_OI[None], third.scale_O[None]), x_TI.dtype, inner)


def experts(
    x_TH: Rows, index_TK: Tensor, gate_up: Weight, down: Weight,
    up_factors: Factors | None = None, down_factors: Factors | None = None,
) -> Tensor:  # fmt: skip
    """Return the unweighted outputs of each token's experts [R, H]."""
    first, second = _stack(gate_up), _stack(down)
    if isinstance(first, Matrices):
        rows, scale_T = _rows(x_TH, first.scale_EO)
    else:
        assert isinstance(x_TH, Interleaved), "four-bit experts need interleaved rows"
        rows, scale_T = x_TH.interleaved_TI, None
    return mixture.outputs(rows, scale_T, index_TK, first, second, x_TH.dtype, up_factors, down_factors)


def dense_and_experts(
    x_TH: Rows, dense_x_TH: Rows, index_TK: Tensor, gate_up: Weight, down: Weight, dense: Sequence[Weight]
) -> tuple[Tensor, Tensor] | None:
    """Return the outputs of a dense MLP (gate, up and down) and of `experts`, or None if no launch computes both."""
    if any(isinstance(weight, Packed) and weight.format != "fp8" for weight in (gate_up, down, *dense)):
        return None
    first, second = _stack(gate_up), _stack(down)
    assert isinstance(first, Matrices) and isinstance(second, Matrices)
    weights = FeedForward(first, second, *(_matrix(weight) for weight in dense))
    if not feed_forward.applies(x_TH, weights):
        return None
    return feed_forward.feed_forward(x_TH, dense_x_TH, index_TK, weights)


def _stack(weight: Weight) -> Matrices | FourBitMatrices:
    if isinstance(weight, Tensor):
        return Matrices(weight)
    tensors = weight.tensors
    match weight.format:
        case "fp8":
            return Matrices(tensors["weight"], tensors["weight_scale"].squeeze(-1))
        case "int4":
            return FourBitMatrices("int4", tensors["weight_packed"].view(torch.uint8), tensors["weight_scale"])
        case "uint4":
            return FourBitMatrices("uint4", tensors["weight_packed"].view(torch.uint8), tensors["weight_scale_offset"])
        case "nvfp4":
            return FourBitMatrices(
                "nvfp4", tensors["weight_packed"], tensors["weight_scale"], tensors["weight_global_scale"]
            )
    raise ValueError(f"no kernel for experts in {weight.format}: expected bfloat16, float32, fp8 or {FOUR_BIT}")


def _matrix(weight: Weight) -> Matrix:
    if isinstance(weight, Tensor):
        return Matrix(weight)
    if weight.format != "fp8":
        raise ValueError(f"no kernel for a dense matrix in {weight.format}: only experts may have four-bit weights")
    return Matrix(weight.tensors["weight"], weight.tensors["weight_scale"].squeeze(-1))


def _adapted_rows(
    x_TI: Rows, scale: Tensor | None, factors: Factors | None
) -> tuple[Tensor, Tensor | None, Inner | None]:
    """Return rows and their scales as `_rows` does, and the inner values of adapters if there are factors."""
    if factors is not None and scale is not None and isinstance(x_TI, Tensor):
        return quantize_and_shrink(x_TI, factors)
    rows_TI, scale_T = _rows(x_TI, scale)
    return rows_TI, scale_T, None if factors is None else shrink(rows_TI, scale_T, factors)


def _rows(x_TI: Rows, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return rows as the kernel takes them, and their scales: in FP8 if the matrices have scales."""
    if isinstance(x_TI, Fp8Rows):
        return x_TI.low_TI, x_TI.scale_T
    assert isinstance(x_TI, Tensor), "interleaved rows need four-bit experts"
    return (x_TI, None) if scale is None else linear.quantize_rows(x_TI)
