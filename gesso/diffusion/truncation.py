"""Restrict the draws of a step to likely tokens: top_k, top_p and min_p.

Each rule refers to the full distribution at the temperature of the step, and a token must pass all of them. The most
likely token always does. Tokens with equal logits are kept or excluded together, so the order of a sort never matters.

C positions of a canvas, R rows of a chunk, V vocabulary.
"""

import math

import torch
from torch import Tensor

from gesso.diffusion import hash
from gesso.diffusion.noise import Draws
from gesso.settings import Diffusion

ROWS = 32  # sorted at once, so that no second [C, V] exists beside the logits


def draw_within(settings: Diffusion, logits_CV: Tensor, draws: Draws) -> Tensor:
    """Return one token [C] per position, drawn from the tokens that the settings allow."""
    keys_C2 = draws.keys(len(logits_CV))
    if keys_C2 is None:  # a custom source draws a whole canvas
        return draws.candidates(truncated(settings, logits_CV))
    chunks = zip(logits_CV.split(ROWS), keys_C2.split(ROWS), strict=True)
    return torch.cat([hash.draw(truncated(settings, logits_RV), keys_R2) for logits_RV, keys_R2 in chunks])


def truncated(settings: Diffusion, logits_RV: Tensor) -> Tensor:
    """Return the logits with -inf for every token that the settings exclude."""
    best_R1 = logits_RV.amax(-1, keepdim=True)
    least_R1 = torch.full_like(best_R1, -math.inf)
    if settings.top_k:
        count = min(settings.top_k, logits_RV.shape[-1])
        least_R1 = logits_RV.topk(count, dim=-1).values[:, -1:]
    if settings.top_p < 1:
        least_R1 = torch.maximum(least_R1, _nucleus(logits_RV, settings.top_p))
    if settings.min_p:
        least_R1 = torch.maximum(least_R1, best_R1 + math.log(settings.min_p))
    return logits_RV.masked_fill(logits_RV < least_R1, -math.inf)


def _nucleus(logits_RV: Tensor, share: float) -> Tensor:
    """Return the smallest logit [R, 1] of the fewest most likely tokens that together have the probability `share`."""
    descending_RV = logits_RV.sort(dim=-1, descending=True).values
    probability_RV = descending_RV.softmax(-1)
    before_RV = probability_RV.cumsum(-1) - probability_RV  # probability of all more likely tokens
    count_R1 = (before_RV < share).sum(-1, keepdim=True).clamp(min=1)
    return descending_RV.gather(-1, count_R1 - 1)
