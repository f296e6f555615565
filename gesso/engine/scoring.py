"""A scoring request while the engine works on it: log-probabilities of texts after a prompt, by the causal encoder.

The prompt and the texts are read as any other text is: in pieces, within the prefill budget, in the same passes as
everybody's canvases. One text is read at a time; the row is then cut back to the last whole piece of the prompt, where
the scheduler saves it, and the rest of the prompt is read again together with the next text. Saving the row at the end
of the prompt instead would make a short re-read unnecessary, but a row has one saved state, and a later request could
then no longer reuse the prompt.

S positions, H hidden, R rows of a chunk, V vocabulary.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gesso.engine.request import Score

ROWS = 64  # positions whose logits are in memory at once


@dataclass(eq=False)
class Scoring:
    """The state of a scoring request in the engine."""

    id: int
    request: Score
    row: int = -1
    pending: deque[tuple[int, ...]] = field(default_factory=deque)  # text to encode, piece by piece
    left_out: int = 0  # passes that read only others' text, one after another
    log_likelihoods: list[float] = field(default_factory=list)  # of the texts that have been read
    _unscored: list[Tensor] = field(default_factory=list)  # hidden states [S, H], fewer than ROWS positions in all
    _sums: list[Tensor] = field(default_factory=list)  # one per chunk of the current text

    @property
    def text(self) -> tuple[int, ...]:
        """The text being read."""
        return self.request.texts[len(self.log_likelihoods)]

    def pieces(self, start: int, piece: int) -> deque[tuple[int, ...]]:
        """Return the prompt from token `start` on and the current text, cut every `piece` tokens from their starts.

        The last token of a text is a target only: nothing has to be predicted after it.
        """
        self._unscored, self._sums = [], []
        prompt, read = self.request.prompt, self.text[:-1]
        cuts = [prompt[i : i + piece] for i in range(start, len(prompt), piece)]
        return deque(cuts + [read[i : i + piece] for i in range(0, len(read), piece)])

    def saved_length(self, piece: int) -> int:
        """How much of the prompt the row keeps between texts: whole pieces, without the prompt's last token.

        The first token of a text is predicted from the hidden state of that last token, so it is read for each text.
        """
        return (len(self.request.prompt) - 1) // piece * piece

    def scored(self, start: int, length: int) -> slice:
        """Return which positions of a piece that starts at token `start` predict a token of the text."""
        return slice(min(max(0, len(self.request.prompt) - 1 - start), length), length)

    def read(self, hidden_SH: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Score the next positions of the current text.

        Chunks start at multiples of ROWS positions of the text, however the text was spread over passes: the number of
        rows of a product can change its last bits.
        """
        self._unscored.append(hidden_SH)
        ready_SH = torch.cat(self._unscored)
        done = ROWS * len(self._sums)
        complete = done + len(ready_SH) == len(self.text)
        count = len(ready_SH) if complete else len(ready_SH) // ROWS * ROWS
        target_S = torch.tensor(self.text[done : done + count], device=hidden_SH.device)
        for hidden_RH, target_R in zip(ready_SH[:count].split(ROWS), target_S.split(ROWS), strict=True):
            if len(target_R):
                log_probability_RV = logits(hidden_RH).log_softmax(-1)
                self._sums.append(log_probability_RV.gather(-1, target_R[:, None]).sum())
        self._unscored = [] if complete else [ready_SH[count:].clone()]
        if complete:
            self.log_likelihoods.append(_total(torch.stack(self._sums).tolist()))


def _total(sums: Sequence[float]) -> float:
    total = 0.0
    for value in sums:  # `sum` compensates for rounding from Python 3.12 on: the result would depend on the version
        total += value
    if not math.isfinite(total):
        raise RuntimeError(f"non-finite prediction: the log-probability of a text is {total}")
    return total
