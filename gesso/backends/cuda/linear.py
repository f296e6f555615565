"""Products of the tokens of a pass with dense matrices.

Our kernels compute each row in the same way, whatever the number of rows. cuBLAS does not, and may give other last bits
in a captured graph or in another stream. If a kernel does not apply, each piece is therefore multiplied separately.

T tokens of all pieces, S tokens of one piece, I inputs, O outputs, L rank of an adapter.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gesso.backends.cuda.activations import Matrix, Rows, SplitK
from gesso.backends.cuda.kernels import products
from gesso.checkpoint.quantize.packed import Weight


def rows_fit(x_TI: Tensor) -> bool:
    """Return whether the copy engine can fetch rows of this width: multiples of 16 bytes, in any precision."""
    return x_TI.shape[1] % 16 == 0


def linear(x_TI: Tensor, matrix: Matrix, lengths: Sequence[int]) -> Tensor:
    """Multiply, and add the output of the adapter if one is active."""
    y_TO = product(x_TI, matrix.weight, lengths)
    if (lora := matrix.lora) is None:
        return y_TO
    low_TL = product(x_TI, lora.A.to(x_TI.dtype), lengths) * lora.scale
    return y_TO + product(low_TL, lora.B.to(x_TI.dtype), lengths)


def linears(x_TI: Rows, matrices: Sequence[Matrix], lengths: Sequence[int]) -> list[Tensor]:
    """Multiply the same tokens by several matrices, in one launch if they have the same format and no adapter."""
    if isinstance(x_TI, Tensor) and not _alike(matrices):
        return [linear(x_TI, each, lengths) for each in matrices]
    return products.linears(x_TI, [each.weight for each in matrices])


def linear_split_k(x_TI: Tensor, matrix: Matrix, lengths: Sequence[int]) -> Tensor | SplitK:
    """Multiply. The result may be unreduced split-K partials."""
    if rows_fit(x_TI) and not matrix.lora:
        return products.split_k(x_TI, matrix.weight)
    return linear(x_TI, matrix, lengths)


def gated(x_TI: Rows, gate: Matrix, up: Matrix, lengths: Sequence[int]) -> Tensor:
    """Return gelu(x gate) * (x up)."""
    if isinstance(x_TI, Tensor) and not _alike([gate, up]):
        return F.gelu(linear(x_TI, gate, lengths), approximate="tanh") * linear(x_TI, up, lengths)
    return products.gated(x_TI, gate.weight, up.weight)


def _alike(matrices: Sequence[Matrix]) -> bool:
    """Return whether one kernel can multiply by all of these. Files of other tools may mix bfloat16 and FP8."""
    return not any(each.lora for each in matrices) and len({each.format for each in matrices}) == 1


def product(x_TI: Tensor, weight: Weight, lengths: Sequence[int]) -> Tensor:
    """Multiply by a weight, without adapters."""
    if rows_fit(x_TI):
        return products.linears(x_TI, [weight])[0]
    return torch.cat([F.linear(x_SI, weight) for x_SI in x_TI.split(list(lengths))])  # type: ignore[arg-type]
