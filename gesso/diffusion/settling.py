"""Settling: pin the first tokens of a canvas once they no longer change.

From then on the network reads these tokens as certain, and a stream may show them. Whether anyone reads the stream does
not matter, so the text is the same either way.

C positions; any other dimensions come first.
"""

import torch
from torch import Tensor


def steady_steps(
    tokens_before_C: Tensor, steady_before_C: Tensor | None, tokens_C: Tensor, argmax_C: Tensor, sure_C: Tensor
) -> Tensor:
    """Return for how many successive steps each position has taken the same token, its most probable one.

    A step counts where the prediction was accepted and `sure_C`.
    """
    took_C = sure_C & (tokens_C == argmax_C)
    if steady_before_C is None:
        return took_C.long()
    same_C = (steady_before_C > 0) & (tokens_before_C == argmax_C)
    return torch.where(took_C, torch.where(same_C, steady_before_C, 0) + 1, 0)


def newly_settled(free_C: Tensor, steady_C: Tensor, settle: int) -> Tensor:
    """Return the positions to pin: the free ones of the longest prefix that has been steady for `settle` steps."""
    prefix_C = (~free_C | (steady_C >= settle)).cumprod(-1).bool()
    return prefix_C & free_C
