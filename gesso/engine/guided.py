"""Apply a constraint to a prediction before the diffusion process uses it.

A model that was asked for a format often reaches it by itself through invalid drafts: it closes a bracket twice, and
removes one in a later step. Correcting every step would turn such a draft into a text that is valid but not the one the
model was about to write. So the first half of a canvas' steps is not corrected, as long as everything that becomes
final satisfies the constraint. A text that converges by then and satisfies it is the same as without the constraint.

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


def is_uncorrected(running: Running) -> bool:
    """Return whether a step may go uncorrected: in the first half of a canvas' steps, if none was corrected so far."""
    canvas, request = running.canvas, running.request
    early = 2 * canvas.step < request.diffusion.steps
    return request.free_first and early and not any(prediction.corrected for prediction in canvas.history)


def satisfies_constraint(running: Running, after: Canvas) -> bool:
    """Return whether the final tokens after a step satisfy the constraint: settled ones, or all if it is done."""
    final = None if after.reason else after.final
    tokens = after.result_C[:final].tolist()
    return running.request.reach.fits(len(running.tokens), running.state, tokens)


def guided(running: Running, prediction: Prediction, logits: Callable[[], Tensor]) -> Prediction:
    """Return the prediction if its tokens satisfy the constraint, otherwise one with the most probable tokens that do.

    Settled positions are kept, and the search begins after them.
    """
    canvas, reach = running.canvas, running.request.reach
    settled_C, pin_C = canvas.pin_C[: canvas.final], canvas.pin_C[canvas.final :]
    state = reach.guide.walk(running.state, settled_C.tolist())
    position = len(running.tokens) + len(settled_C)
    own_tokens = {
        name: torch.where(pin_C == FREE, getattr(prediction, name)[canvas.final :], pin_C)
        for name in ("candidate_C", "argmax_C")
    }
    wrong = [name for name, tokens_C in own_tokens.items() if not reach.fits(position, state, tokens_C.tolist())]
    if not wrong:
        return prediction
    if not reach.fits(position, state, ()):
        # The settled tokens were part of the last result. A search might find no continuation that is as short.
        return replace(prediction, corrected=True, **dict.fromkeys(wrong, canvas.result_C))
    entropy_C = prediction.entropy_C[canvas.final :]
    scores = scores_of(logits()[canvas.final :], entropy_C, reach.guide)
    tokens, free = likeliest(reach, state, position, scores)
    found_C = torch.from_numpy(tokens).to(settled_C)
    found = {name: torch.cat([settled_C, found_C[:free], own_tokens[name][free:]]) for name in wrong}
    return replace(prediction, corrected=True, **found)


def scores_of(logits_CV: Tensor, entropy_C: Tensor, guide: Guide) -> Scores:
    """Return the scores for the search: each token's logit minus the largest logit of its position.

    A position counts by its certainty. Early in the process most positions are noise, and would outvote the few that
    are not.
    """
    weight_C1 = torch.exp(-entropy_C)[:, None]
    top = logits_CV.topk(min(TOP, logits_CV.shape[-1]), dim=-1)
    filling = sorted(guide.eos | guide.padding)

    def ask(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        asked_CU = logits_CV[:, torch.from_numpy(tokens).to(logits_CV.device)]
        found: NDArray[np.float32] = ((asked_CU - top.values[:, :1]) * weight_C1).cpu().numpy()
        return found

    fill_CU = ask(np.array(filling))
    best_C = fill_CU.argmax(axis=1)
    return Scores(
        top.indices.cpu().numpy(),
        ((top.values - top.values[:, :1]) * weight_C1).cpu().numpy(),
        np.array(filling)[best_C],
        np.take_along_axis(fill_CU, best_C[:, None], axis=1)[:, 0],
        ask,
    )
