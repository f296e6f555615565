"""The informed corrector: renoise tokens of the canvas that only they themselves support.

C positions, K size of the vocabulary; any other dimensions come first.
"""

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import ClassVar

import torch
from torch import Tensor

from gesso.diffusion.moment import Moment, lowest_within, top_of
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.schedule import temperature
from gesso.settings import Need


@dataclass(frozen=True)
class InformedCorrector:
    """Accept positions as `EntropyBound` does, then renoise the least supported tokens that they would repeat.

    The network sees the token x of a position when it predicts that position. In a uniform process, a plausible token
    is strong evidence for itself, since noise is rarely plausible. So the prediction p repeats accepted tokens, also
    wrong ones. The leave-one-out distribution of arXiv 2605.22765 has this evidence removed: with a fraction alpha of
    clean tokens on the canvas, p(v) is proportional to
      loo(v) (1 + 1(v = x) K alpha / (1 - alpha)),
    and at a temperature T, with loo at this temperature,
      logit loo(x) = logit p(x) - log(1 + K alpha / (1 - alpha)) / T.
    If this is below zero, the other positions alone make another token more likely. Of those positions, the lowest
    `share` of the canvas return to noise, so that the next step predicts them from the others. The share falls to zero
    with the last step.

    The conversion is the paper's. How it is used was derived from the abstract of the paper, and may differ from its
    sampler: here one pass serves acceptance and correction. alpha is the fraction of positions that took a predicted
    token in the step before, since acceptance follows no schedule.
    """

    bound: float
    share: float = 0.1
    needs: ClassVar[frozenset[Need]] = frozenset({"top", "current"})

    def __call__(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> tuple[Tensor, Tensor]:
        accepted_C = lowest_within(prediction.entropy_C, self.bound)
        if moment.accepted_C is not None:
            accepted_C = accepted_C & ~self._doubted(canvas_C, accepted_C, prediction, moment)
        return torch.where(accepted_C, prediction.candidate_C, moment.noise(canvas_C)), accepted_C

    def _doubted(self, canvas_C: Tensor, accepted_C: Tensor, prediction: Prediction, moment: Moment) -> Tensor:
        """Return the positions whose tokens are not supported by the others."""
        assert moment.accepted_C is not None
        repeats_C = accepted_C & moment.accepted_C & (prediction.candidate_C == canvas_C)
        support_C = self.support(canvas_C, prediction, moment).masked_fill(~repeats_C, torch.inf)
        order_C = support_C.sort(dim=-1, stable=True).indices
        rank_C = order_C.argsort(dim=-1).double()  # the inverse of the order
        # Without a division, which a GPU would round differently for one canvas and for several.
        most = self.share * canvas_C.shape[-1] * (moment.steps_left - 1)
        return (support_C < 0) & (rank_C * moment.settings.steps < most)

    def support(self, canvas_C: Tensor, prediction: Prediction, moment: Moment) -> Tensor:
        """Return the log odds [C] of the tokens on the canvas in the leave-one-out distribution, in float64."""
        assert moment.accepted_C is not None
        clean = moment.accepted_C.sum(-1, keepdim=True)
        noise = canvas_C.shape[-1] - clean
        evidence = (1 + moment.vocab_size * clean.double() / noise.clamp(min=0.5)).log()
        return log_odds(canvas_C, prediction) - evidence / temperature(moment.settings, moment.steps_left)


def log_odds(token_C: Tensor, prediction: Prediction) -> Tensor:
    """Return log(p / (1 - p)) of the tokens on the canvas, in float64.

    If p is close to one, 1 - p has lost its digits. The sum of the most probable other tokens has not.
    """
    assert prediction.current_C is not None
    p_C = prediction.current_C
    others = [probability_C * (other_C != token_C) for other_C, probability_C in zip(*top_of(prediction), strict=True)]
    rest_C = 1 - p_C
    others_C = torch.maximum(reduce(add, others), rest_C.masked_fill(rest_C < 1e-5, 0.0))
    return p_C.double().log() - others_C.double().log()
