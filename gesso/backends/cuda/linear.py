"""Products of the tokens of a pass with dense matrices.

Our kernels compute each row in the same way, whatever the number of rows. cuBLAS does not, and may give other last bits
in a captured graph or in another stream. If a kernel does not apply, each piece is therefore multiplied separately.

T tokens of all pieces, S tokens of one piece, I inputs, O outputs, C inner values of adapters, N those of all slots.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gesso.backends.cuda.activations import AdaptedMatrix, Fp8Rows, Rows, SplitK, alike
from gesso.backends.cuda.families import ALL, Kernels, launching
from gesso.backends.cuda.kernels import products
from gesso.backends.cuda.kernels.low_rank import Factors
from gesso.checkpoint.quantize.packed import Weight


def rows_fit(x_TI: Tensor) -> bool:
    """Return whether the copy engine can fetch rows of this width: multiples of 16 bytes, in any precision."""
    return x_TI.shape[1] % 16 == 0


def linear(x_TI: Tensor, matrix: AdaptedMatrix, lengths: Sequence[int], kernels: Kernels = ALL) -> Tensor:
    """Multiply, with the adapters of the tokens."""
    if kernels.run("products") and rows_fit(x_TI):
        with launching("products"):
            return products.linears(x_TI, [matrix.weight], matrix.factors)[0]
    y_TO = product(x_TI, matrix.weight, lengths, kernels)
    return y_TO if matrix.factors is None else y_TO + low_rank(x_TI, matrix.factors, lengths, kernels)


def linears(
    x_TI: Rows, matrices: Sequence[AdaptedMatrix], lengths: Sequence[int], kernels: Kernels = ALL
) -> list[Tensor]:
    """Multiply the same tokens by several matrices, in one launch if they have the same format."""
    if isinstance(x_TI, Tensor) and not (kernels.run("products") and alike(matrices)):
        return [linear(x_TI, matrix, lengths, kernels) for matrix in matrices]
    with launching("products"):
        return products.linears(x_TI, [matrix.weight for matrix in matrices], matrices[0].factors)


def linear_split_k(
    x_TI: Rows, matrix: AdaptedMatrix, lengths: Sequence[int], kernels: Kernels = ALL
) -> Tensor | SplitK:
    """Multiply. The result may be unreduced split-K partials."""
    if isinstance(x_TI, Tensor) and not (kernels.run("products") and rows_fit(x_TI)):
        return linear(x_TI, matrix, lengths, kernels)
    with launching("products"):
        return products.split_k(x_TI, matrix.weight, matrix.factors)


def mlp(
    x_TI: Rows,
    gate: AdaptedMatrix,
    up: AdaptedMatrix,
    down: AdaptedMatrix,
    lengths: Sequence[int],
    kernels: Kernels = ALL,
) -> Tensor:
    """Return (gelu(x gate) * (x up)) down."""
    if isinstance(x_TI, Fp8Rows) and down.format == "fp8":
        with launching("products"):
            return products.mlp_low(x_TI, gate.weight, up.weight, down.weight, gate.factors, down.factors)
    return linear(gated(x_TI, gate, up, lengths, kernels), down, lengths, kernels)


def gated(x_TI: Rows, gate: AdaptedMatrix, up: AdaptedMatrix, lengths: Sequence[int], kernels: Kernels = ALL) -> Tensor:
    """Return gelu(x gate) * (x up)."""
    if isinstance(x_TI, Tensor) and not (kernels.run("products") and alike([gate, up])):
        gate_TO = F.gelu(linear(x_TI, gate, lengths, kernels), approximate="tanh")
        return gate_TO * linear(x_TI, up, lengths, kernels)
    with launching("products"):
        return products.gated(x_TI, gate.weight, up.weight, gate.factors)


def low_rank(x_TI: Tensor, factors: Factors, lengths: Sequence[int], kernels: Kernels = ALL) -> Tensor:
    """Return what adapters add to the product with one matrix [T, O], as two products over all slots.

    For products that kernels do not add them to. Inner values of other slots than the token's own are zero.
    """
    a_SECI, b_SEOL = factors.a_SECI, factors.b_SEOL
    inner_TN, columns = product(x_TI, a_SECI.flatten(0, 2), lengths, kernels), b_SEOL.shape[-1]
    slot_N = torch.arange(inner_TN.shape[1], device=x_TI.device) // columns
    own_TN = torch.where(factors.slot_T[:, None] == slot_N, inner_TN, 0)
    return product(own_TN, b_SEOL[:, 0].transpose(0, 1).flatten(1), lengths, kernels)


def product(x_TI: Tensor, weight: Weight, lengths: Sequence[int], kernels: Kernels = ALL) -> Tensor:
    """Multiply by a weight, without adapters."""
    if kernels.run("products") and rows_fit(x_TI):
        with launching("products"):
            return products.linears(x_TI, [weight])[0]
    return torch.cat([F.linear(x_SI, weight) for x_SI in x_TI.split(list(lengths))])  # type: ignore[arg-type]
