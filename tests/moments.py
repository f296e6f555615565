"""What a sampler is given in a step, for tests without a network."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gesso.diffusion.moment import StepContext
from gesso.diffusion.noise import Draws, HashSource
from gesso.diffusion.prediction import Prediction
from gesso.settings import Diffusion

CPU = torch.device("cpu")
TEN_STEPS = Diffusion(steps=10)


def draws(seed: int = 1, canvas: int = 0, step: int = 0) -> Draws:
    return HashSource().at(seed, canvas, step, CPU)


def moment(
    history: Sequence[Prediction] = (),
    accepted_C: Tensor | None = None,
    *,
    remaining: int = 5,
    vocab_size: int = 100,
    settings: Diffusion = TEN_STEPS,
) -> StepContext:
    """Return the moment of a step after these predictions."""
    return StepContext(settings, remaining, vocab_size, draws(), history, accepted_C)
