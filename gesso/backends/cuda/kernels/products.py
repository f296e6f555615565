"""The products by what their weights are: each kernel for one kind, and this chooses.

T tokens, I in, O out, H hidden, E experts, K experts a token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gesso.backends.cuda.activations import Fp8Rows, Interleaved, Rows, SplitK
from gesso.backends.cuda.kernels import experts as wide
from gesso.backends.cuda.kernels import experts_four_bit
from gesso.backends.cuda.kernels import linear as plain
from gesso.backends.cuda.kernels.experts import Matrices
from gesso.backends.cuda.kernels.four_bit import Packed as Packed4
from gesso.backends.cuda.kernels.linear import Matrix
from gesso.checkpoint.quantize.packed import Weight


def linears(x_TI: Rows, weights: Sequence[Weight]) -> list[Tensor]:
    matrices = [_matrix(weight) for weight in weights]
    rows, scale_T = _rows(x_TI, matrices[0].scale_O)
    return plain.linears(rows, matrices, scale_T, x_TI.dtype)


def split_k(x_TI: Tensor, weight: Weight) -> Tensor | SplitK:
    """One product, perhaps as sums that are still to be added."""
    matrix = _matrix(weight)
    rows, scale_T = _rows(x_TI, matrix.scale_O)
    y = plain.in_parts(rows, matrix, scale_T, x_TI.dtype)
    return y if y.ndim == 2 else SplitK(y)


def gated(x_TI: Rows, gate: Weight, up: Weight) -> Tensor:
    first, second = _matrix(gate), _matrix(up)
    rows, scale_T = _rows(x_TI, first.scale_O)
    return plain.gated(rows, first, second, scale_T, x_TI.dtype)


def experts(x_TH: Rows, index_TK: Tensor, gate_up: Weight, down: Weight) -> Tensor:
    """What each token's experts say to it [R, H], not yet weighted."""
    first, second = _stack(gate_up), _stack(down)
    if isinstance(first, Matrices) and isinstance(second, Matrices):
        rows, scale_T = _rows(x_TH, first.scale_EO)
        return wide.answers(rows, scale_T, index_TK, first, second, x_TH.dtype)
    assert isinstance(first, Packed4) and isinstance(second, Packed4) and isinstance(x_TH, Interleaved)
    return experts_four_bit.answers(x_TH.interleaved_TI, index_TK, first, second)


def _stack(weight: Weight) -> Matrices | Packed4:
    if isinstance(weight, Tensor):
        return Matrices(weight)
    tensors = weight.tensors
    match weight.format:
        case "fp8":
            return Matrices(tensors["weight"], tensors["weight_scale"].squeeze(-1))
        case "int4":
            return Packed4(tensors["weight_packed"].view(torch.uint8), tensors["weight_scale"], None)
        case "nvfp4":
            return Packed4(tensors["weight_packed"], tensors["weight_scale"], tensors["weight_global_scale"].flatten())
    raise ValueError(f"there is no kernel for experts in {weight.format}")


def _matrix(weight: Weight) -> Matrix:
    if isinstance(weight, Tensor):
        return Matrix(weight)
    if weight.format != "fp8":
        raise ValueError(f"there is no kernel for a matrix in {weight.format}: only experts have four bits")
    return Matrix(weight.tensors["weight"], weight.tensors["weight_scale"].squeeze(-1))


def _rows(x_TI: Rows, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """As the kernel takes them: in FP8 if the matrices are, and so have scales."""
    if isinstance(x_TI, Fp8Rows):
        return x_TI.low_TI, x_TI.scale_T
    assert isinstance(x_TI, Tensor), "no matrix of four bits is among these"
    return (x_TI, None) if scale is None else plain.quantize_rows(x_TI)
