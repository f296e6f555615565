"""Samplers that compare a prediction with those of earlier steps.

Both come from masked diffusion, where an accepted token stays. Here accepted positions are chosen anew in each step,
and all others return to noise. C positions, K most probable tokens; any other dimensions come first.
"""

from dataclasses import dataclass
from functools import reduce
from operator import add, or_
from typing import ClassVar

import torch
from torch import Tensor

from gesso.diffusion.moment import Moment, accept, at_least, top_of
from gesso.diffusion.prediction import Prediction
from gesso.settings import Need


@dataclass(frozen=True)
class Credit:
    """Accept tokens whose probability is high enough after a bonus for having been predicted before (CreditDecoding,
    arXiv 2510.06133).

    The credit of a token decays, and grows in each step in which the token is the most probable one:
      C_t(v) = decay C_(t-1)(v) + p_t(v)^exponent 1(v = argmax p_t).
    It is added to the logits as weight log(1 + C_t(v)), so a probability p(v) becomes
      p(v) (1 + C(v))^weight / sum over w of p(w) (1 + C(w))^weight.
    A position is accepted if its argmax then reaches the threshold. It takes the argmax, not the candidate: a draw
    would not have the bonus.

    Only the last `memory` steps count, older ones have lost 94 % of their credit. A token that was the argmax, but is
    no longer among the K most probable ones, has a small probability, and its bonus is left out of the sum. The
    constants have not been tuned for this model.
    """

    threshold: float = 0.9
    decay: float = 0.7
    exponent: float = 0.5
    weight: float = 0.65
    memory: int = 8
    needs: ClassVar[frozenset[Need]] = frozenset({"top"})

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
        confidence_C = self.confidence(prediction, moment)
        return accept(at_least(confidence_C, self.threshold), prediction.argmax_C, moment)

    def confidence(self, prediction: Prediction, moment: Moment) -> Tensor:
        """Return the probability of the most probable token after the bonus."""
        assert prediction.top_CK is not None and prediction.top_probability_CK is not None
        credit_CK = torch.zeros_like(prediction.top_probability_CK)
        for age, past in enumerate((prediction, *reversed(moment.history[-self.memory :]))):
            gain_C = self.decay**age * past.confidence_C**self.exponent
            credit_CK = credit_CK + gain_C[..., None] * (past.argmax_C[..., None] == prediction.top_CK)
        fused = (prediction.top_probability_CK * (1 + credit_CK) ** self.weight).unbind(-1)
        rest_C = (1 - reduce(add, top_of(prediction)[1])).clamp(min=0)
        return fused[0] / (reduce(add, fused) + rest_C)


@dataclass(frozen=True)
class StableTokens:
    """Accept positions whose distribution is confident and has stopped changing (KLASS, arXiv 2511.05664).

    The probability of the argmax must reach the threshold, and the divergence KL(p_t || p_(t-1)) must have been below
    `divergence` in each of the last `memory` steps. The most confident position is always accepted.

    The divergence is estimated from the K most probable tokens, see `divergence`.
    """

    threshold: float = 0.6
    divergence: float = 0.01
    memory: int = 1
    needs: ClassVar[frozenset[Need]] = frozenset({"top"})

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
        confidence_C = prediction.confidence_C
        stable_C = torch.full_like(confidence_C, len(moment.history) >= self.memory, dtype=torch.bool)
        newer = prediction
        for older in reversed(moment.history[-self.memory :]):
            if older.top_CK is None:  # a draft of another sampler was resumed
                stable_C = torch.zeros_like(stable_C)
                break
            stable_C = stable_C & (divergence(newer, older) < self.divergence)
            newer = older
        best_C = at_least(confidence_C, 1.0)
        return accept((stable_C & (confidence_C >= self.threshold)) | best_C, prediction.candidate_C, moment)


def divergence(p: Prediction, q: Prediction) -> Tensor:
    """Return an estimate of KL(p || q) per position, over the K most probable tokens of p and the others as one.

    The probability of such a token under q is known if it is among the K most probable ones there, too. Otherwise the
    largest possible value is used: that of the last of them, or of all others together.
    """
    least = 1e-9  # for probabilities that have been rounded to zero
    q_tokens, q_probabilities = top_of(q)
    most_C = torch.minimum(q_probabilities[-1], 1 - reduce(add, q_probabilities))
    sum_C = torch.zeros_like(most_C)
    p_rest_C, q_rest_C = torch.ones_like(sum_C), torch.ones_like(sum_C)
    for token_C, p_C in zip(*top_of(p), strict=True):
        matches = [other_C == token_C for other_C in q_tokens]
        known_C = reduce(add, (same_C * q_C for same_C, q_C in zip(matches, q_probabilities, strict=True)))
        q_C = torch.where(reduce(or_, matches), known_C, most_C)
        sum_C = sum_C + p_C * (p_C.clamp(min=least).log() - q_C.clamp(min=least).log())
        p_rest_C, q_rest_C = p_rest_C - p_C, q_rest_C - q_C
    p_rest_C, q_rest_C = p_rest_C.clamp(min=least), q_rest_C.clamp(min=least)
    return sum_C + p_rest_C * (p_rest_C.log() - q_rest_C.log())
