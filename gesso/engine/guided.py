"""Apply a constraint to a prediction before the diffusion process uses it.

A model whose prompt names the format often reaches it by itself through invalid drafts: it closes a bracket twice, and
removes one in a later step. Correcting every step would turn such a draft into a text that is valid but not the one the
model was about to write. So the first half of a canvas' steps is not corrected, as long as everything that becomes
final satisfies the constraint. A text that converges by then and satisfies it is the same as without the constraint.
A model that does not know of the constraint would be sure of another text by then, so its steps are corrected from the
first on.

A correction has three stages. `guided` reads the prediction from the device. `Correction.search` runs on the host, and
may run, with pauses, while the device is busy with other
passes. `Correction.prediction` makes the corrected prediction.

C canvas, V vocabulary, K most likely tokens, U tokens of moves.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gesso.constraints.budget import Pauses
from gesso.constraints.guide import Guide, Ints
from gesso.constraints.reach import Reach
from gesso.constraints.search import Floats, Found, Scores, search
from gesso.diffusion.canvas import FREE, Canvas
from gesso.diffusion.prediction import LIKELY, Prediction, top_tokens
from gesso.engine.running import Running

FAINT = 6.0  # how far below the largest logit of a position the differences between logits begin to be noise
FAINT_SHARE = 0.1  # of these differences that counts


@dataclass(frozen=True)
class Candidates:
    """The tokens that a search chooses from, with their logits before the temperature."""

    tokens_CK: Ints  # the most likely tokens, in descending order; among equals, the lowest first
    logits_CK: Floats
    logits_at_tokens: Callable[[Ints], Floats]  # the logits [C, U] of any tokens [U]

    @staticmethod
    def of(logits_CV: Tensor) -> "Candidates":
        """Return the candidates of positions whose logits are all known."""
        tokens_CK = top_tokens(logits_CV, LIKELY)

        def logits_at_tokens(tokens_U: Ints) -> Floats:
            return _numbers(logits_CV[:, torch.from_numpy(tokens_U).to(logits_CV.device)])

        return Candidates(tokens_CK.cpu().numpy(), _numbers(logits_CV.take_along_dim(tokens_CK, -1)), logits_at_tokens)


def _numbers(values: Tensor) -> Floats:
    found: Floats = values.float().cpu().numpy()
    return found


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


@dataclass(frozen=True)
class Correction:
    """A prediction with tokens that violate the constraint, and the search for those that do not."""

    violating: Prediction
    own_tokens: dict[str, Tensor]  # the tokens after the settled ones, by field of the prediction
    wrong: list[str]  # the fields to correct
    settled_C: Tensor
    candidates: Candidates  # after the settled tokens
    entropy_C: Floats
    reach: Reach
    state: int
    position: int

    def search(self) -> Pauses[Found]:
        """Find the most probable tokens that satisfy the constraint. This waits for no pass on the device."""
        scores = scores_of(self.candidates, self.entropy_C, self.reach.guide)
        return (yield from search(self.reach, self.state, self.position, scores))

    def prediction(self, found: Found) -> Prediction:
        """Return the prediction with the tokens that the search has found."""
        tokens, free = found
        found_C = torch.from_numpy(tokens).to(self.settled_C)
        parts: dict[str, Any] = {
            name: torch.cat([self.settled_C, found_C[:free], self.own_tokens[name][free:]]) for name in self.wrong
        }
        return replace(self.violating, corrected=True, **parts)


def guided(
    running: Running, prediction: Prediction, candidates: Callable[[int], Candidates]
) -> Prediction | Correction:
    """Return the prediction if its tokens satisfy the constraint, otherwise the correction to make.

    Settled positions are kept, and the search begins after them: `candidates` returns those from a position on.
    """
    canvas, reach = running.canvas, running.request.reach
    final = canvas.final
    settled_C, pin_C = canvas.pin_C[:final], canvas.pin_C[final:]
    state = reach.guide.walk(running.state, settled_C.tolist())
    position = len(running.tokens) + len(settled_C)
    own_tokens = {
        name: torch.where(pin_C == FREE, getattr(prediction, name)[final:], pin_C)
        for name in ("candidate_C", "argmax_C")
    }
    wrong = [name for name, tokens_C in own_tokens.items() if not reach.fits(position, state, tokens_C.tolist())]
    if not wrong:
        return prediction
    if not reach.fits(position, state, ()):
        # The settled tokens were part of the last result. A search might find no continuation that is as short.
        last_result: dict[str, Any] = dict.fromkeys(wrong, canvas.result_C)
        return replace(prediction, corrected=True, **last_result)
    entropy_C = _numbers(prediction.entropy_C[final:])
    found = candidates(final)
    return Correction(prediction, own_tokens, wrong, settled_C, found, entropy_C, reach, state, position)


def scores_of(candidates: Candidates, entropy_C: Floats, guide: Guide) -> Scores:
    """Return the scores for the search: each token's logit minus the largest logit of its position.

    A position counts by its certainty. Early in the process most positions are noise, and would outvote the few that
    are not.
    """
    weight_C1 = np.exp(-entropy_C)[:, None]
    best_C1 = candidates.logits_CK[:, :1]

    def ask(tokens_U: Ints) -> Floats:
        return _above_noise(candidates.logits_at_tokens(tokens_U) - best_C1) * weight_C1

    filling = np.array(sorted(guide.eos | guide.padding))
    filling_CU = ask(filling)
    return Scores(
        candidates.tokens_CK,
        _above_noise(candidates.logits_CK - best_C1) * weight_C1,
        filling[filling_CU.argmax(axis=1)],
        filling_CU.max(axis=1),
        ask,
    )


def _above_noise(differences: Floats) -> Floats:
    """Return differences from the largest logit, those beyond `FAINT` in short.

    Where the constraint allows only tokens that the model does not expect, as at a text's forced end, their order is
    noise, but would decide about the rest of the text.
    """
    shortened = -FAINT + FAINT_SHARE * (differences + FAINT)
    return np.where(differences < -FAINT, shortened, differences).astype(np.float32)
