"""Formats in which kernels pass activations to each other.

T tokens, I inputs, O outputs, H hidden, K experts per token, P split-K parts, R = T K pairs of a token and its expert.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gesso.backends.cuda.kernels.low_rank import Factors
from gesso.backends.cuda.pass_adapters import NO_ADAPTERS, PassAdapters
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.model.modules import Linear


class Fp8Rows(NamedTuple):
    """Rows quantized to FP8, with one scale per row."""

    low_TI: Tensor
    scale_T: Tensor
    dtype: torch.dtype  # of the rows before, and of products with them


class Interleaved(NamedTuple):
    """Rows with their columns in the order in which four-bit weights are read (`kernels/four_bit.py`)."""

    interleaved_TI: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.interleaved_TI.dtype


Rows = Tensor | Fp8Rows | Interleaved


class SplitK(NamedTuple):
    """Unreduced split-K partials of a product; the next kernel adds them in order."""

    sums_PTO: Tensor  # float32


class ExpertOutputs(NamedTuple):
    """The outputs of each token's experts, not yet weighted and summed; the next kernel does that."""

    outputs_RH: Tensor  # K per token
    weight_TK: Tensor


class NextNorm(NamedTuple):
    """A norm that a kernel applies to its output, and the activation format of the products that follow it."""

    weight_H: Tensor
    format: str | None


class AdaptedMatrix(NamedTuple):
    """A weight, and the factors of the adapters for the launch whose first weight it is."""

    weight: Weight
    factors: Factors | None = None

    @property
    def format(self) -> str | None:
        """The format to which a kernel converts the activations; None: the product takes them unchanged."""
        return self.weight.format if isinstance(self.weight, Packed) else None


def matrix(linear: nn.Module, adapters: PassAdapters = NO_ADAPTERS) -> AdaptedMatrix:
    """Return the weight of a linear module and its adapters."""
    assert isinstance(linear, Linear)
    return AdaptedMatrix(linear.weight, adapters.of(linear))


def alike(matrices: Sequence[AdaptedMatrix]) -> bool:
    """Return whether one kernel can multiply by all of these. Files of other tools may mix bfloat16 and FP8."""
    return len({each.format for each in matrices}) == 1


def activation_format(matrices: Sequence[AdaptedMatrix]) -> str | None:
    """Return the shared activation format of matrices with the same input, or None."""
    formats = {each.format for each in matrices}
    return formats.pop() if len(formats) == 1 else None
