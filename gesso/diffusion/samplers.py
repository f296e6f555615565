"""Samplers: which positions take a predicted token after a step, and which return to noise.

C positions. Every function works on the last dimension, and accepts any others.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gesso.diffusion.noise import Draws
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.schedule import alpha
from gesso.settings import Diffusion


@dataclass(frozen=True)
class Moment:
    """The point in the process at which a sampler is called, and its random numbers."""

    settings: Diffusion
    remaining: int | Tensor  # steps left, including this one; of several canvases [B]
    vocab_size: int
    draws: Draws

    def noise(self, like_C: Tensor) -> Tensor:
        """Return one noise token per position."""
        return self.draws.tokens(like_C.shape[-1], self.vocab_size)


class Sampler(Protocol):
    """Return the next canvas, and the mask of the positions that took a predicted token."""

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]: ...


def order_independent(values: Tensor) -> Tensor:
    """Return values whose sum is the same in any order, because on a GPU the order depends on the number of rows.

    In float64 the few hundred float32 values of a canvas add up without rounding, unless they differ by a factor of
    millions. A CPU adds row by row, in the order of the reference, and keeps float32.
    """
    return values.double() if values.is_cuda else values


def _accept(accepted_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
    """Set accepted positions to their candidates and all others to noise, including those accepted in earlier steps."""
    noise_C = moment.noise(prediction.candidate_C)
    return torch.where(accepted_C, prediction.candidate_C, noise_C), accepted_C


@dataclass(frozen=True)
class EntropyBound:
    """Accept the most certain positions as long as they can be drawn independently (arXiv 2505.24857).

    With entropies in ascending order, the sum of those before a position bounds the mutual information between it and
    them. The position is accepted while that sum is within the bound. The first one always is.
    """

    bound: float

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
        # Stable, because entropies are often equal: their order must not depend on how many canvases are sorted at
        # once.
        ascending_C, order_C = order_independent(prediction.entropy_C).sort(dim=-1, stable=True)
        within_C = ascending_C.cumsum(-1) - ascending_C <= self.bound
        accepted_C = torch.empty_like(within_C).scatter_(-1, order_C, within_C)  # `order_C` names every position
        return _accept(accepted_C, prediction, moment)


@dataclass(frozen=True)
class ConfidenceThreshold:
    """Accept every position whose argmax is probable enough, and always the most probable of all."""

    threshold: float = 0.9

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
        confidence_C = prediction.confidence_C
        threshold = confidence_C.amax(-1, keepdim=True).clamp(max=self.threshold)
        return _accept(confidence_C >= threshold, prediction, moment)


@dataclass(frozen=True)
class Posterior:
    """Step through the reverse of the uniform process (D3PM, arXiv 2107.03006), with the candidate as clean token.

    From a fraction alpha_t of clean tokens to alpha_s, a position may STAY as it is, become CLEAN (the candidate) or
    NOISE. The exact posterior q(x_s | x_t, x_0) is proportional to
      [r 1(x_s = x_t) + (1 - r)/K] [alpha_s 1(x_s = x_0) + (1 - alpha_s)/K] with r = alpha_t / alpha_s.
    For x_t != x_0, the three have the weights below, divided by their sum 1 - alpha_t. For x_t = x_0, all but NOISE
    agree. `deterministic` is the discrete DDIM (arXiv 2010.02502, appendix A): the same marginals without fresh noise.
    """

    deterministic: bool

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
        assert isinstance(moment.remaining, int), "this sampler steps one canvas at a time"
        alpha_t = alpha(moment.settings, moment.remaining)
        alpha_s = alpha(moment.settings, moment.remaining - 1)
        ratio = alpha_t / alpha_s
        u_C, noise_C = moment.draws.uniform(canvas_C.shape[-1]), moment.noise(canvas_C)
        if self.deterministic:
            stay = torch.full_like(u_C, (1 - alpha_s) / (1 - alpha_t))
            noise = torch.zeros_like(u_C)
        else:
            same_C = canvas_C == prediction.candidate_C
            agree = moment.vocab_size * alpha_t * same_C  # the K r alpha_s term, only where x_t = x_0
            total = 1 - alpha_t + agree
            stay = (ratio * (1 - alpha_s) + agree) / total
            noise = (1 - ratio) * (1 - alpha_s) / total
        clean_C = u_C >= stay + noise
        moved_C = torch.where(clean_C, prediction.candidate_C, noise_C)
        return torch.where(u_C < stay, canvas_C, moved_C), clean_C


@dataclass(frozen=True)
class ArgmaxCommit:
    """Set every position to its argmax at once, without noise or sampling."""

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
        return prediction.argmax_C, torch.ones_like(prediction.argmax_C, dtype=torch.bool)


@dataclass(frozen=True)
class NextToken:
    """Set the single position to its draw, for autoregressive decoding."""

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
        return prediction.candidate_C, torch.ones_like(prediction.candidate_C, dtype=torch.bool)


def sampler_of(settings: Diffusion) -> Sampler:
    """Return the sampler of these settings: a built-in one by name, or the caller's own."""
    match settings.sampler:
        case "entropy-bound":
            return EntropyBound(settings.entropy_bound)
        case "confidence-threshold":
            return ConfidenceThreshold()
        case "ancestral":
            return Posterior(deterministic=False)
        case "ddim":
            return Posterior(deterministic=True)
        case "argmax":
            return ArgmaxCommit()
        case "autoregressive" | "verified":
            return NextToken()
        case sampler:
            return sampler
