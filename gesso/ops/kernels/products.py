"""The products by what their weights are: each kernel for one kind, and this chooses.

T tokens, I in, O out, H hidden, E experts, K experts a token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gesso.ops.kernels import experts as wide
from gesso.ops.kernels import experts4, linear4
from gesso.ops.kernels import linear as plain
from gesso.ops.kernels.experts import Matrices
from gesso.ops.kernels.four import Packed as Packed4
from gesso.ops.kernels.linear import Matrix
from gesso.ops.weight import Parts, Rows, Weight


def linears(x_TI: Rows, weights: Sequence[Weight]) -> list[Tensor]:
    found = [_stack(weight) for weight in weights]
    wide_ones = [each for each in found if isinstance(each, Matrices)]
    if len(wide_ones) < len(found):
        assert isinstance(x_TI, Tensor)
        return linear4.linears(x_TI, [each for each in found if isinstance(each, Packed4)])
    rows, scale_T = _rows(x_TI, wide_ones[0])
    return plain.linears(rows, [_matrix(each) for each in wide_ones], scale_T, x_TI.dtype)


def in_parts(x_TI: Tensor, weight: Weight) -> Tensor | Parts:
    """One product, perhaps as sums that are still to be added."""
    found = _stack(weight)
    if isinstance(found, Packed4):
        return linear4.linear(x_TI, found)
    rows, scale_T = _rows(x_TI, found)
    y = plain.in_parts(rows, _matrix(found), scale_T, x_TI.dtype)
    return y if y.ndim == 2 else Parts(y)


def gated(x_TI: Rows, gate: Weight, up: Weight) -> Tensor:
    first, second = _stack(gate), _stack(up)
    if isinstance(first, Packed4) and isinstance(second, Packed4):
        assert isinstance(x_TI, Tensor)
        return linear4.gated(x_TI, first, second)
    assert isinstance(first, Matrices) and isinstance(second, Matrices)
    rows, scale_T = _rows(x_TI, first)
    return plain.gated(rows, _matrix(first), _matrix(second), scale_T, x_TI.dtype)


def experts(x_TH: Rows, index_TK: Tensor, gate_up: Weight, down: Weight) -> Tensor:
    """What each token's experts say to it [R, H], not yet weighted."""
    first, second = _stack(gate_up), _stack(down)
    if isinstance(first, Matrices) and isinstance(second, Matrices):
        rows, scale_T = _rows(x_TH, first)
        return wide.answers(rows, scale_T, index_TK, first, second, x_TH.dtype)
    assert isinstance(first, Packed4) and isinstance(second, Packed4) and isinstance(x_TH, Tensor)
    return experts4.answers(x_TH, index_TK, first, second)


def _stack(weight: Weight) -> Matrices | Packed4:
    """As the kernels take them: a matrix is a stack of one."""
    if isinstance(weight, Tensor):
        return Matrices(weight.view(-1, *weight.shape[-2:]))
    tensors = {name: tensor.view(-1, *tensor.shape[-2:]) for name, tensor in weight.tensors.items() if tensor.ndim > 1}
    match weight.format:
        case "fp8":
            return Matrices(tensors["weight"], tensors["weight_scale"].squeeze(-1))
        case "int4":
            return Packed4(tensors["weight_packed"].view(torch.uint8), tensors["weight_scale"], None)
        case "nvfp4":
            over_E = weight.tensors["weight_global_scale"].flatten()
            return Packed4(tensors["weight_packed"], tensors["weight_scale"], over_E)
    raise ValueError(f"there is no kernel for weights in {weight.format}")


def _matrix(found: Matrices) -> Matrix:
    return Matrix(found.weight_EOI[0], None if found.scale_EO is None else found.scale_EO[0])


def _rows(x_TI: Rows, found: Matrices) -> tuple[Tensor, Tensor | None]:
    """As the kernel for these matrices takes them."""
    if isinstance(x_TI, Tensor):
        return (x_TI, None) if found.scale_EO is None else plain.quantize_rows(x_TI)
    return x_TI.low_TI, x_TI.scale_T
