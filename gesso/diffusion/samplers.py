"""The built-in samplers, and the one that the settings of a request name.

`examples/samplers/rules.py` has eight more that follow papers, written as a caller's own. C positions; any other
dimensions come first.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gesso.diffusion.moment import Sampler, StepContext, accept, lowest_within
from gesso.diffusion.prediction import Prediction
from gesso.rules import EVERY_STEP, Rule
from gesso.settings import Diffusion


@dataclass(frozen=True)
class EntropyBound(Sampler):
    """Accept the most certain positions as long as they can be drawn independently (arXiv 2505.24857).

    With entropies in ascending order, the sum of those before a position bounds the mutual information between it and
    them. The position is accepted while that sum is within the bound. The first one always is.
    """

    bound: float

    def __call__(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> tuple[Tensor, Tensor]:
        return accept(lowest_within(prediction.entropy_C, self.bound), prediction.candidate_C, context)


@dataclass(frozen=True)
class NextToken(Sampler):
    """Set the single position to its draw, where the causal encoder decides every token."""

    def __call__(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> tuple[Tensor, Tensor]:
        return prediction.candidate_C, torch.ones_like(prediction.candidate_C, dtype=torch.bool)


@dataclass(frozen=True)
class SamplerFunction(Sampler):
    """A caller's function as a sampler. It may read all earlier predictions, but no logits."""

    function: Callable[..., tuple[Tensor, Tensor]]

    @property
    def memory(self) -> int:
        return EVERY_STEP

    def __call__(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> tuple[Tensor, Tensor]:
        return self.function(canvas_C, prediction, context)


def sampler_of(settings: Diffusion) -> Sampler:
    """Return the sampler of these settings: a built-in one by name, or the caller's own. Tokens need none."""
    if settings.by_token:
        return NextToken()
    sampler = settings.sampler
    if sampler == "entropy-bound":
        return EntropyBound(settings.entropy_bound)
    if isinstance(sampler, Sampler):
        return sampler
    assert not isinstance(sampler, str | Rule), "the settings have been checked"
    return SamplerFunction(sampler)
