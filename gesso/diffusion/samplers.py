"""Samplers: which positions take a predicted token after a step, and which return to noise.

Here are those that read one prediction, and the names of all of them. `remembering.py` has those that compare it with
earlier ones, `corrector.py` the one that doubts tokens of the canvas. C positions; any other dimensions come first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gesso.diffusion.corrector import InformedCorrector
from gesso.diffusion.moment import Moment, Sampler, accept, at_least, lowest_within
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.remembering import Credit, StableTokens
from gesso.diffusion.schedule import alpha
from gesso.settings import Diffusion


@dataclass(frozen=True)
class EntropyBound:
    """Accept the most certain positions as long as they can be drawn independently (arXiv 2505.24857).

    With entropies in ascending order, the sum of those before a position bounds the mutual information between it and
    them. The position is accepted while that sum is within the bound. The first one always is.
    """

    bound: float | Tensor  # of several canvases [B, 1]

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
        return accept(lowest_within(prediction.entropy_C, self.bound), prediction.candidate_C, moment)


@dataclass(frozen=True)
class ConfidenceThreshold:
    """Accept every position whose argmax is probable enough, and always the most probable of all."""

    threshold: float = 0.9

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
        return accept(at_least(prediction.confidence_C, self.threshold), prediction.candidate_C, moment)


@dataclass(frozen=True)
class Posterior:
    """Step through the reverse of the uniform process (D3PM, arXiv 2107.03006), with the candidate as clean token.

    From a fraction alpha_t of clean tokens to alpha_s, a position may STAY as it is, become CLEAN (the candidate) or
    NOISE. The exact posterior q(x_s | x_t, x_0) is proportional to
      [r 1(x_s = x_t) + (1 - r)/K] [alpha_s 1(x_s = x_0) + (1 - alpha_s)/K] with r = alpha_t / alpha_s.
    For x_t != x_0, the three have the weights below, divided by their sum 1 - alpha_t. For x_t = x_0, all but NOISE
    agree. `deterministic` is the discrete DDIM (arXiv 2010.02502, appendix A): the same marginals without fresh noise.

    `predictor` is the kappa of the Psi-samplers (arXiv 2602.21185). With this probability a position takes the step
    above. Otherwise it takes the corrector: it is drawn from q(x_s | x_0), the forward process, whatever it was. Both
    have the same marginals, and the corrector can remove any error of earlier steps.
    """

    deterministic: bool = False
    predictor: float = 1.0

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
        # In float64 throughout, so that one canvas and several give the same bits.
        alpha_t = alpha(moment.settings, moment.steps_left)
        alpha_s = alpha(moment.settings, moment.steps_left - 1)
        ratio = alpha_t / alpha_s
        u_C, noise_C = moment.draws.uniform(canvas_C.shape[-1]).double(), moment.noise(canvas_C)
        if self.deterministic:
            stay_C = torch.zeros_like(u_C) + (1 - alpha_s) / (1 - alpha_t)
            renoise_C = torch.zeros_like(u_C)
        else:
            same_C = (canvas_C == prediction.candidate_C).double()
            agree_C = moment.vocab_size * alpha_t * same_C  # the K r alpha_s term, only where x_t = x_0
            total_C = 1 - alpha_t + agree_C
            stay_C = (ratio * (1 - alpha_s) + agree_C) / total_C
            renoise_C = (1 - ratio) * (1 - alpha_s) / total_C
        if self.predictor < 1:
            stay_C = self.predictor * stay_C
            renoise_C = self.predictor * renoise_C + (1 - self.predictor) * (1 - alpha_s)
        clean_C = u_C >= stay_C + renoise_C
        moved_C = torch.where(clean_C, prediction.candidate_C, noise_C)
        return torch.where(u_C < stay_C, canvas_C, moved_C), clean_C


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
        case "stable-tokens":
            return StableTokens()
        case "credit":
            return Credit()
        case "informed-corrector":
            return InformedCorrector(settings.entropy_bound)
        case "ancestral":
            return Posterior()
        case "predictor-corrector":
            return Posterior(predictor=0.2)
        case "ddim":
            return Posterior(deterministic=True)
        case "argmax":
            return ArgmaxCommit()
        case "autoregressive" | "verified":
            return NextToken()
        case sampler:
            return sampler
