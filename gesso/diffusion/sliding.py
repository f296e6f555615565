"""Sliding canvas: continue with the open positions of a canvas after its settled prefix has been committed.

A canvas that is committed as a whole waits for its last few positions while most of its tokens are final. A sliding
canvas gives up its settled prefix and takes as many new positions at its end, so every pass works on a full canvas.

C positions of the canvas, D of the one that follows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from gesso.diffusion.canvas import Canvas, Process


def slide(process: Process, canvas: Canvas, count: int, length: int, pins: Mapping[int, int]) -> Canvas:
    """Return the canvas of `length` positions that follows the first `count` tokens of this one.

    It takes over the open positions. Its clock is set back by the share of the canvas that is new, so that the
    temperature follows the mean age of its positions. `pins` are the caller's for all its positions.
    """
    blank = process.blank(canvas.index + 1, length, pins)

    def moved(old_C: Tensor, new_D: Tensor) -> Tensor:
        return torch.cat([old_C[count:], new_D[len(old_C) - count :]])[:length]

    assert canvas.steady_C is not None and canvas.settled_C is not None, "only settled tokens are committed early"
    zeros_D, soft_CH = torch.zeros_like(blank.tokens_C), canvas.soft_CH
    back = -(-process.settings.steps * count // len(canvas.tokens_C))
    return Canvas(
        index=blank.index,
        attempt=0,
        tokens_C=moved(canvas.tokens_C, blank.tokens_C),
        pin_C=moved(canvas.pin_C, blank.pin_C),
        step=max(0, canvas.step - back),
        soft_CH=None if soft_CH is None else moved(soft_CH, soft_CH.new_zeros(length, soft_CH.shape[-1])),
        steady_C=moved(canvas.steady_C, zeros_D),
        settled_C=moved(canvas.settled_C, zeros_D.bool()),
    )
