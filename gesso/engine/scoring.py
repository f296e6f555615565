"""State of a scoring request in the engine: log-probabilities of texts after a prompt, by the causal encoder.

Prompt and texts are prefilled like any other text: in pieces, within the prefill budget, in the same passes as the
canvases of other requests. One text is read at a time. The row of the KV cache is then cut back to the last whole piece
of the prompt, where its state is saved, and the rest of the prompt is read again with the next text. Saving the state
at the end of the prompt would avoid this short re-read. But a row has one saved state, and later requests could then
not reuse the prompt.

S positions, H hidden, R rows of a chunk, V vocabulary.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gesso.engine.events import Likely, Scored, Usage
from gesso.engine.pieces import Cuts
from gesso.engine.request import Score

ROWS = 64  # positions whose logits are in memory at once


@dataclass(eq=False)
class Scoring:
    """A scoring request in the engine."""

    id: int
    request: Score
    cuts: Cuts  # of its prompt
    adapter_epoch: int = 0  # of the adapter, see `gesso.engine.adapters`
    row: int = -1
    pending: deque[tuple[int, ...]] = field(default_factory=deque)  # pieces of text to encode
    left_out: int = 0  # successive passes that read only text of other requests
    usage: Usage = field(default_factory=Usage)
    log_likelihoods: list[float] = field(default_factory=list)  # of the texts read so far
    likely: list[list[Likely]] = field(default_factory=list)  # of the texts begun so far, with `top_logprobs`
    _unscored: list[Tensor] = field(default_factory=list)  # hidden states [S, H], fewer than ROWS positions in total
    _sums: list[Tensor] = field(default_factory=list)  # one per chunk of the current text

    @property
    def text(self) -> tuple[int, ...]:
        """The text being read."""
        return self.request.texts[len(self.log_likelihoods)]

    def pieces(self, start: int) -> deque[tuple[int, ...]]:
        """Return the pieces of the prompt from token `start` on and of the current text, each cut from its beginning.

        The last token of a text is a target only: nothing has to be predicted after it.
        """
        self._unscored, self._sums = [], []
        self.likely = [*self.likely[: len(self.log_likelihoods)], []]
        read, piece = self.text[:-1], self.cuts.piece
        texts = [read[i : i + piece] for i in range(0, len(read), piece)]
        return deque(self.cuts.pieces(self.request.prompt, start) + texts)

    @property
    def saved_length(self) -> int:
        """The tokens of the prompt that the row keeps between texts: whole pieces, without the last token.

        The hidden state of the prompt's last token predicts the first token of a text, so it is read for each text.
        """
        return self.cuts.last(len(self.request.prompt) - 1)

    def scored(self, start: int, length: int) -> slice:
        """Return the positions that predict a token of the text, in a piece that starts at token `start`."""
        return slice(min(max(0, len(self.request.prompt) - 1 - start), length), length)

    def read(self, hidden_SH: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Score the next positions of the current text.

        Chunks start at multiples of ROWS positions of the text, however passes divide the text. The number of rows of
        a product can change its last bits, so it must not depend on the load.
        """
        self._unscored.append(hidden_SH)
        ready_SH = torch.cat(self._unscored)
        done = ROWS * len(self._sums)
        complete = done + len(ready_SH) == len(self.text)
        rows = len(ready_SH) if complete else len(ready_SH) // ROWS * ROWS
        target_S = torch.tensor(self.text[done : done + rows], device=hidden_SH.device)
        for hidden_RH, target_R in zip(ready_SH[:rows].split(ROWS), target_S.split(ROWS), strict=True):
            if len(target_R):
                log_probability_RV = logits(hidden_RH).log_softmax(-1)
                self._sums.append(log_probability_RV.gather(-1, target_R[:, None]).sum())
                if (count := self.request.top_logprobs) is not None:
                    self.likely[-1] += likely_tokens(log_probability_RV, target_R, count)
        self._unscored = [] if complete else [ready_SH[rows:].clone()]
        if complete:
            self.log_likelihoods.append(_total(torch.stack(self._sums).tolist()))

    def event(self) -> Scored:
        """Return the scores of the texts read so far."""
        scores, wanted = tuple(self.log_likelihoods), self.request.top_logprobs is not None
        likely = tuple(map(tuple, self.likely[: len(scores)])) if wanted else ()
        return Scored(self.id, scores, self.usage, likely)


def likely_tokens(log_probability_RV: Tensor, token_R: Tensor, count: int) -> list[Likely]:
    """Return the log-probability of each token and of the `count` most probable ones at its position."""
    own_R = log_probability_RV.gather(-1, token_R[:, None])[:, 0].tolist()
    top = log_probability_RV.topk(count, -1)
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    rows = [tuple(zip(ids, values, strict=True)) for ids, values in pairs]
    return [Likely(own, row) for own, row in zip(own_R, rows, strict=True)]


def _total(sums: Sequence[float]) -> float:
    total = 0.0
    for value in sums:  # `sum` compensates for rounding since Python 3.12, so its result depends on the version
        total += value
    check_scores([total])
    return total


def check_scores(log_likelihoods: Sequence[float]) -> None:
    if wrong := [value for value in log_likelihoods if not math.isfinite(value)]:
        raise RuntimeError(f"non-finite prediction: the log-probability of a text is {wrong[0]}")
