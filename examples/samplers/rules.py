"""Samplers and stopping rules from papers, written as you would write your own.

    gesso generate "def fib(n):" --sampler examples.samplers.rules:Credit --seed 1
    gesso eval structured --stopping examples.samplers.rules:TopTwoGap

Most of the papers are about models with a mask token, where an accepted token stays. Here accepted positions are chosen
anew in each step, and all others return to noise. docs/benchmarks/quality.md compares them: none is better than
`entropy-bound` on every task. C positions, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gesso.diffusion.moment import Sampler, StepContext, accept, at_least, lowest_within
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.schedule import alpha, temperature
from gesso.diffusion.stopping import Stopping, mean, mean_entropy, unchanged
from gesso.rules import Need
from gesso.settings import Diffusion

Step = tuple[Tensor, Tensor]  # the next canvas, and the positions that took a predicted token


# --- samplers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Argmax(Sampler):
    """Set every position to its argmax at once, without noise or sampling."""

    def __call__(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> Step:
        return prediction.argmax_C, torch.ones_like(prediction.argmax_C, dtype=torch.bool)


@dataclass(frozen=True)
class ConfidenceThreshold(Sampler):
    """Accept every position whose argmax is probable enough, and always the most probable of all."""

    threshold: float = 0.9

    def __call__(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> Step:
        return accept(at_least(prediction.confidence_C, self.threshold), prediction.candidate_C, context)


@dataclass(frozen=True)
class Credit(Sampler):
    """Accept tokens that are probable enough after a bonus for earlier predictions (CreditDecoding, arXiv 2510.06133).

    The credit of a token decays, and grows in each step in which the token is the most probable one:
      C_t(v) = decay C_(t-1)(v) + p_t(v)^exponent 1(v = argmax p_t).
    It is added to the logits as weight log(1 + C_t(v)). A position takes the argmax, not its draw, which would not have
    the bonus. Steps older than `memory` have lost 94 % of their credit. The constants are not tuned for this model.
    """

    threshold: float = 0.9
    decay: float = 0.7
    exponent: float = 0.5
    weight: float = 0.65
    memory: ClassVar[int] = 8
    needs: ClassVar[frozenset[Need]] = frozenset({"logits"})

    def __call__(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> Step:
        return accept(at_least(self.confidence(prediction, context), self.threshold), prediction.argmax_C, context)

    def confidence(self, prediction: Prediction, context: StepContext) -> Tensor:
        """Return the probability [C] of the argmax after the bonus."""
        assert prediction.logits_CV is not None
        credit_CV = torch.zeros_like(prediction.logits_CV)
        for age, past in enumerate((prediction, *reversed(context.history))):
            gain_C = self.decay**age * past.confidence_C**self.exponent
            credit_CV.scatter_add_(-1, past.argmax_C[:, None], gain_C[:, None])
        probability_CV = (prediction.logits_CV + self.weight * credit_CV.log1p()).softmax(-1)
        return probability_CV.gather(-1, prediction.argmax_C[:, None])[:, 0]


@dataclass(frozen=True)
class StableTokens(Sampler):
    """Accept positions whose distribution is confident and has stopped changing (KLASS, arXiv 2511.05664).

    The divergence from the prediction before is computed for two outcomes: the argmax, and all other tokens together.
    The most confident position is always accepted.
    """

    threshold: float = 0.6
    divergence: float = 0.01
    memory: ClassVar[int] = 1

    def __call__(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> Step:
        accepted_C = at_least(prediction.confidence_C, 1.0)
        if context.history:
            is_stable_C = divergence(prediction, context.history[-1]) < self.divergence
            accepted_C = accepted_C | (is_stable_C & (prediction.confidence_C >= self.threshold))
        return accept(accepted_C, prediction.candidate_C, context)


def divergence(now: Prediction, before: Prediction) -> Tensor:
    """Return KL(now || before) per position, over the argmax of now and all other tokens as one.

    If the argmax has changed, its probability before is not known; the largest possible one is taken.
    """
    least = 1e-9  # for probabilities that have been rounded to zero or one
    p_C = now.confidence_C.clamp(least, 1 - least)
    other_C = torch.minimum(before.confidence_C, 1 - before.confidence_C)
    q_C = torch.where(now.argmax_C == before.argmax_C, before.confidence_C, other_C).clamp(least, 1 - least)
    return p_C * (p_C / q_C).log() + (1 - p_C) * ((1 - p_C) / (1 - q_C)).log()


@dataclass(frozen=True)
class InformedCorrector(Sampler):
    """Accept as `entropy-bound` does, but renoise tokens that only they themselves support (arXiv 2605.22765).

    The network sees the token x of a position when it predicts that position. Without this evidence, with a fraction
    alpha of clean tokens on the canvas and a temperature T, the leave-one-out distribution of the paper has
      logit loo(x) = logit p(x) - log(1 + V alpha / (1 - alpha)) / T.
    Repeated tokens below zero return to noise, the lowest first: up to `share` of the canvas, fewer in later steps.
    This use was derived from the abstract of the paper and may differ from its sampler.
    """

    share: float = 0.1
    needs: ClassVar[frozenset[Need]] = frozenset({"logits"})

    def __call__(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> Step:
        accepted_C = lowest_within(prediction.entropy_C, context.settings.entropy_bound)
        if context.accepted_C is not None:
            repeats_C = accepted_C & context.accepted_C & (prediction.candidate_C == canvas_C)
            support_C = self.support(canvas_C, prediction, context).masked_fill(~repeats_C, torch.inf)
            rank_C = support_C.sort(stable=True).indices.argsort()
            most = self.share * len(canvas_C) * (context.remaining - 1) / context.settings.steps
            accepted_C = accepted_C & ~((support_C < 0) & (rank_C < most))
        return accept(accepted_C, prediction.candidate_C, context)

    def support(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> Tensor:
        """Return the log odds [C] of the tokens on the canvas in the leave-one-out distribution, in float64."""
        assert prediction.logits_CV is not None and context.accepted_C is not None
        clean = int(context.accepted_C.sum())
        noise = max(len(canvas_C) - clean, 0.5)
        logits_CV = prediction.logits_CV.double()
        token_C1 = canvas_C[:, None]
        others_C = logits_CV.scatter(-1, token_C1, -torch.inf).logsumexp(-1)
        evidence = torch.tensor(1 + context.vocab_size * clean / noise, dtype=torch.float64).log()
        odds_C = logits_CV.gather(-1, token_C1)[:, 0] - others_C
        return odds_C - evidence.item() / temperature(context.settings, context.remaining)


@dataclass(frozen=True)
class Ancestral(Sampler):
    """Step through the reverse of the uniform process (D3PM, arXiv 2107.03006), with the candidate as clean token.

    From a fraction alpha_t of clean tokens to alpha_s, a position may stay as it is, become clean (the candidate) or
    noise. The exact posterior q(x_s | x_t, x_0) is proportional to
      [r 1(x_s = x_t) + (1 - r)/V] [alpha_s 1(x_s = x_0) + (1 - alpha_s)/V] with r = alpha_t / alpha_s.

    `predictor` is the kappa of the Psi-samplers (arXiv 2602.21185). With this probability a position takes the step
    above, otherwise it is drawn from q(x_s | x_0), whatever it was: that can remove any error of earlier steps.
    """

    predictor: float = 1.0

    def __call__(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> Step:
        alpha_s = alpha(context.settings, context.remaining - 1)
        stay_C, renoise_C = self.weights(canvas_C, prediction, context)
        stay_C = self.predictor * stay_C
        renoise_C = self.predictor * renoise_C + (1 - self.predictor) * (1 - alpha_s)
        u_C, noise_C = context.draws.uniform(len(canvas_C)).double(), context.noise(canvas_C)
        clean_C = u_C >= stay_C + renoise_C
        moved_C = torch.where(clean_C, prediction.candidate_C, noise_C)
        return torch.where(u_C < stay_C, canvas_C, moved_C), clean_C

    def weights(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> tuple[Tensor, Tensor]:
        """Return the probabilities [C] of staying and of becoming noise, in float64."""
        alpha_t = alpha(context.settings, context.remaining)
        alpha_s = alpha(context.settings, context.remaining - 1)
        ratio = alpha_t / alpha_s
        agree_C = context.vocab_size * alpha_t * (canvas_C == prediction.candidate_C).double()
        total_C = 1 - alpha_t + agree_C
        return (ratio * (1 - alpha_s) + agree_C) / total_C, (1 - ratio) * (1 - alpha_s) / total_C


@dataclass(frozen=True)
class PredictorCorrector(Ancestral):
    """Take one position in five as `Ancestral` does, and draw the others anew at the same level of noise."""

    predictor: float = 0.2


@dataclass(frozen=True)
class Ddim(Ancestral):
    """Step as `Ancestral` does without fresh noise: the discrete DDIM (arXiv 2010.02502, appendix A)."""

    def weights(self, canvas_C: Tensor, prediction: Prediction, context: StepContext) -> tuple[Tensor, Tensor]:
        alpha_t = alpha(context.settings, context.remaining)
        alpha_s = alpha(context.settings, context.remaining - 1)
        never_C = torch.zeros_like(prediction.entropy_C, dtype=torch.float64)
        return never_C + (1 - alpha_s) / (1 - alpha_t), never_C


# --- stopping rules ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plateau(Stopping):
    """Stop when the mean entropy has not fallen below its best by the fraction `tolerance` for `patience` steps."""

    patience: int = 4
    tolerance: float = 0.01
    memory: ClassVar[int] = 1000  # every step counts

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor, settings: Diffusion) -> bool:
        means = [mean_entropy(prediction, judged_C).item() for prediction in history]
        if len(means) <= self.patience:
            return False
        best_before = min(means[: -self.patience])
        return min(means[-self.patience :]) > best_before * (1 - self.tolerance)


@dataclass(frozen=True)
class TopTwoGap(Stopping):
    """Stop when the mean gap of the two largest logits reaches a threshold in three stages (Prophet, arXiv 2508.19982).

    The logits are those at a temperature of one. Two conditions are not in the paper, whose decoded tokens stay: the
    most likely tokens must be those of the step before, and a gap counts as at most the first threshold, since most
    positions of a canvas are certain early.
    """

    first: float = 7.5
    second: float = 5.0  # from a third of the steps on
    third: float = 2.5  # from two thirds on
    memory: ClassVar[int] = 1
    needs: ClassVar[frozenset[Need]] = frozenset({"logits"})

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor, settings: Diffusion) -> bool:
        now = history[-1]
        assert now.logits_CV is not None and isinstance(now.remaining, int)
        first_C, second_C = now.logits_CV.topk(2).values.unbind(-1)
        gap_C = (first_C - second_C).double() * temperature(settings, now.remaining)
        done = 1 - (now.remaining - 1) / settings.steps
        is_large = mean(gap_C.clamp(max=self.first), judged_C) >= self.threshold(done)
        return bool(unchanged(history, judged_C, 1) & is_large)

    def threshold(self, done: float) -> float:
        """Return the gap to reach after this share of the steps."""
        if done < 1 / 3:
            return self.first
        return self.second if done < 2 / 3 else self.third


@dataclass(frozen=True)
class GapSchedule(TopTwoGap):
    """Stop as `TopTwoGap` does, with a threshold that falls in every step (SchED, arXiv 2512.02892)."""

    def threshold(self, done: float) -> float:
        return self.first + (self.third - self.first) * done


# By the names in docs/benchmarks/quality.md.
SAMPLERS: dict[str, Sampler] = {
    "confidence-threshold": ConfidenceThreshold(),
    "stable-tokens": StableTokens(),
    "credit": Credit(),
    "informed-corrector": InformedCorrector(),
    "ancestral": Ancestral(),
    "predictor-corrector": PredictorCorrector(),
    "ddim": Ddim(),
    "argmax": Argmax(),
}
STOPPINGS: dict[str, Stopping] = {"top-2-gap": TopTwoGap(), "schedule": GapSchedule(), "plateau": Plateau()}
