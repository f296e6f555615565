"""The interface of samplers, and the helpers that they share.

C positions. Every function works on the last dimension, and accepts any others.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gesso.diffusion.noise import Draws
from gesso.diffusion.prediction import Prediction
from gesso.rules import Rule
from gesso.settings import Diffusion


@dataclass(frozen=True)
class StepContext:
    """The point in the process at which a sampler is called, and its random numbers."""

    settings: Diffusion
    remaining: int  # steps left, including this one
    vocab_size: int
    draws: Draws
    history: Sequence[Prediction] = ()  # of the `memory` steps before this one at most, the newest last
    accepted_C: Tensor | None = None  # positions that took a predicted token in the step before; None: there was none

    def noise(self, like_C: Tensor) -> Tensor:
        """Return one noise token per position."""
        return self.draws.tokens(like_C.shape[-1], self.vocab_size)


class Sampler(Rule, ABC):
    """The rule that selects the positions of a canvas that take a predicted token."""

    kind: ClassVar[str] = "sampler"

    @abstractmethod
    def __call__(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> tuple[Tensor, Tensor]:
        """Return the next canvas, and the mask of the positions that took a predicted token."""


def order_independent(values: Tensor) -> Tensor:
    """Return values whose sum is the same in any order, because on a GPU the order depends on the number of rows.

    In float64 the few hundred float32 values of a canvas add up without rounding, unless they differ by a factor of
    millions. A CPU adds row by row, in the order of the reference, and keeps float32.
    """
    return values.double() if values.is_cuda else values


def accept(accepted_C: Tensor, token_C: Tensor, context: StepContext) -> tuple[Tensor, Tensor]:
    """Set accepted positions to their tokens and all others to noise, including those accepted in earlier steps."""
    return torch.where(accepted_C, token_C, context.noise(token_C)), accepted_C


def lowest_within(values_C: Tensor, bound: float | Tensor) -> Tensor:
    """Return the lowest values, as long as the sum of those before each is within the bound. The first always is.

    Of several canvases, the bound may be a tensor [B, 1].
    """
    # Stable, because values are often equal: their order must not depend on how many canvases are sorted at once.
    ascending_C, order_C = order_independent(values_C).sort(dim=-1, stable=True)
    if isinstance(bound, Tensor):
        bound = bound.to(ascending_C.dtype)  # as a number is converted, too
    within_C = ascending_C.cumsum(-1) - ascending_C <= bound
    return torch.empty_like(within_C).scatter_(-1, order_C, within_C)  # `order_C` names every position


def at_least(confidence_C: Tensor, threshold: float) -> Tensor:
    """Return the positions that reach the threshold, and always the one with the largest value."""
    return confidence_C >= confidence_C.amax(-1, keepdim=True).clamp(max=threshold)
