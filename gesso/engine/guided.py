"""A constraint, between what the model says of a canvas and what the process is told.

A model that was told what to write often keeps to it by itself, on a way that does not: it closes a bracket twice, sees
it, and takes one back. Putting every step right would end that way at a text that is valid and not what it was about to
write. So the first half of the steps of a canvas is the model's own, as long as nothing becomes final that does not
keep to the constraint: a text that comes to stand by then and keeps to it is the one there would be without it.

C canvas, V vocabulary, U tokens of moves.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gesso.constraints.guide import Guide
from gesso.constraints.search import TOP, Scores, likeliest
from gesso.diffusion.canvas import FREE, Canvas
from gesso.diffusion.prediction import Prediction
from gesso.engine.running import Running


def is_left_alone(running: Running) -> bool:
    """Whether a canvas may still go its own way: in the first half of its steps, if none had to be put right."""
    canvas, request = running.canvas, running.request
    early = 2 * canvas.step < request.diffusion.steps
    return request.free_first and early and not any(prediction.corrected for prediction in canvas.history)


def keeps(running: Running, after: Canvas) -> bool:
    """Whether what is final after a step keeps to the constraint: what has settled, or all of a canvas that is done."""
    final = None if after.reason else after.final
    tokens = after.result_C[:final].tolist()
    return running.request.reach.fits(len(running.tokens), running.state, tokens)


def guided(running: Running, prediction: Prediction, logits: Callable[[], Tensor]) -> Prediction:
    """Return the prediction itself if its tokens satisfy the constraint, otherwise one with the likeliest that do.

    Settled positions stay as they are, and the search begins after them.
    """
    canvas, reach = running.canvas, running.request.reach
    settled_C, pin_C = canvas.pin_C[: canvas.final], canvas.pin_C[canvas.final :]
    state = reach.guide.walk(running.state, settled_C.tolist())
    position = len(running.tokens) + len(settled_C)
    own = {
        name: torch.where(pin_C == FREE, getattr(prediction, name)[canvas.final :], pin_C)
        for name in ("candidate_C", "argmax_C")
    }
    wrong = [name for name, tokens_C in own.items() if not reach.fits(position, state, tokens_C.tolist())]
    if not wrong:
        return prediction
    if not reach.fits(position, state, ()):
        # The settled positions were part of the last result; a search might find no continuation that is as short.
        return replace(prediction, corrected=True, **dict.fromkeys(wrong, canvas.result_C))
    entropy_C = prediction.entropy_C[canvas.final :]
    scores = scores_of(logits()[canvas.final :], entropy_C, reach.moves.tokens_U, reach.guide)
    tokens, free = likeliest(reach, state, position, scores)
    found_C = torch.from_numpy(tokens).to(settled_C)
    found = {name: torch.cat([settled_C, found_C[:free], own[name][free:]]) for name in wrong}
    return replace(prediction, corrected=True, **found)


def scores_of(logits_CV: Tensor, entropy_C: Tensor, tokens_U: NDArray[np.int64], guide: Guide) -> Scores:
    """What the search for the likeliest text needs to know: how much worse than the likeliest tokens others are.

    What a position says counts by how sure it is. Early in the process most are noise, and many that know nothing would
    outvote the few that know.
    """
    weight_C1 = torch.exp(-entropy_C)[:, None]
    top = logits_CV.topk(min(TOP, logits_CV.shape[-1]), dim=-1)
    best_C1 = top.values[:, :1]
    filling = torch.tensor(sorted(guide.eos | guide.padding), device=logits_CV.device)
    fill = logits_CV[:, filling].max(-1, keepdim=True)
    moves_CU = torch.cat([logits_CV[:, torch.from_numpy(tokens_U).to(logits_CV.device)], best_C1, fill.values], dim=-1)
    return Scores(
        top.indices.cpu().numpy(),
        ((top.values - best_C1) * weight_C1).cpu().numpy(),
        filling[fill.indices[:, 0]].cpu().numpy(),
        ((moves_CU - best_C1) * weight_C1).cpu().numpy(),
    )
