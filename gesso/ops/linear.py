"""Linear map and GELU of the tokens of several segments, one segment at a time.

A GEMM library picks its blocking by the number of rows, and with it the order of the additions; one product over all
segments would let a request's last bits depend on who shares the batch. The same goes for functions that a CPU computes
in vectors with another formula for what is left over. T tokens of all segments, I in, O out.
"""

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gesso.ops import fast
from gesso.ops.weight import Adapted, Parts, Rows, Weight, dense

ARM = platform.machine() in ("aarch64", "arm64")


@contextmanager
def fast_products() -> Iterator[None]:
    """On ARM, oneDNN's products take longer than those of the BLAS that torch has beside it."""
    onednn: Any = torch.backends.mkldnn
    before = onednn.enabled
    onednn.enabled = before and not ARM
    try:
        yield
    finally:
        onednn.enabled = before


def linear(x_TI: Tensor, matrix: Adapted, lengths: Sequence[int]) -> Tensor:
    y_TO = _product(x_TI, matrix.weight, lengths)
    if (change := matrix.change) is None:
        return y_TO
    low_TL = _product(x_TI, change.A.to(x_TI.dtype), lengths) * change.scale
    return y_TO + _product(low_TL, change.B.to(x_TI.dtype), lengths)


def linears(x_TI: Rows, matrices: Sequence[Adapted], lengths: Sequence[int]) -> list[Tensor]:
    """The same tokens times several matrices."""
    if not isinstance(x_TI, Tensor) or (_kernels(x_TI) and not any(matrix.change for matrix in matrices)):
        found: list[Tensor] = fast.load("products").linears(x_TI, [matrix.weight for matrix in matrices])
        return found
    return [linear(x_TI, matrix, lengths) for matrix in matrices]


def linear_in_parts(x_TI: Tensor, matrix: Adapted, lengths: Sequence[int]) -> Tensor | Parts:
    """For `add_norms`: a kernel may leave it to that to add the last few sums."""
    if _kernels(x_TI) and not matrix.change:
        found: Tensor | Parts = fast.load("products").in_parts(x_TI, matrix.weight)
        return found
    return linear(x_TI, matrix, lengths)


def gated(x_TI: Rows, gate: Adapted, up: Adapted, lengths: Sequence[int]) -> Tensor:
    """gelu(x gate) * (x up)."""
    if not isinstance(x_TI, Tensor) or (_kernels(x_TI) and not (gate.change or up.change)):
        return fast.load("products").gated(x_TI, gate.weight, up.weight)
    return _gelu(linear(x_TI, gate, lengths), lengths) * linear(x_TI, up, lengths)


def _kernels(x_TI: Tensor) -> bool:
    return fast.kernels(x_TI) and fast.rows_fit(x_TI)


def _product(x_TI: Tensor, weight: Weight, lengths: Sequence[int]) -> Tensor:
    if _kernels(x_TI):
        return fast.load("products").linears(x_TI, [weight])[0]
    weight_OI = dense(weight, x_TI.dtype)
    if len(lengths) == 1:
        return F.linear(x_TI, weight_OI)
    return torch.cat([F.linear(x_SI, weight_OI) for x_SI in x_TI.split(list(lengths))])


def _gelu(x_TI: Tensor, lengths: Sequence[int]) -> Tensor:
    if len(lengths) == 1:
        return F.gelu(x_TI, approximate="tanh")
    return torch.cat([F.gelu(x_SI, approximate="tanh") for x_SI in x_TI.split(list(lengths))])
