"""Drafts of a canvas as events of a stream. docs/serving.md describes the fields."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gesso.chat.tokenizer import Tokenizer
from gesso.serve.protocol import Drafted

if TYPE_CHECKING:
    from gesso.engine.events import Draft


def drafted(draft: "Draft", id: int, run: int = 0) -> Drafted:
    """Return the message that reports a draft of the engine."""
    canvas = draft.canvas
    return Drafted(
        id=id,
        run=run,
        canvas=canvas.index,
        attempt=canvas.attempt,
        start=len(draft.before),
        step=canvas.step,
        steps=draft.steps,
        tokens=draft.tokens,
        entropy=[round(value, 4) for value in draft.entropy],
        states=draft.states,
        reason=canvas.reason,
        candidates=[[(token, round(math.exp(log), 4)) for token, log in entry.top] for entry in draft.likely],
    )


class DraftEvents:
    """Draft events of one stream. The text of a token is sent once, in the first event that has the token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.sent: set[int] = set()

    def fields(self, drafted: Drafted, index: int = 0) -> dict[str, Any]:
        """Return the event's `draft` object. `index` is the choice that it belongs to."""
        known = [token for token in drafted.tokens if token < self.tokenizer.vocab_size]
        candidates = {"candidates": drafted.candidates} if drafted.candidates else {}
        new = self._new([*drafted.tokens, *(token for position in drafted.candidates for token, _ in position)])
        return {
            "index": index,
            "run": drafted.run,
            "canvas": drafted.canvas,
            "attempt": drafted.attempt,
            "start": drafted.start,
            "step": drafted.step,
            "steps": drafted.steps,
            "text": self.tokenizer.decode(known),
            "tokens": drafted.tokens,
            "entropy": drafted.entropy,
            "states": drafted.states,
            "reason": drafted.reason,
            "pieces": dict(zip(new, self.tokenizer.pieces(new), strict=True)),
            "special": [token for token in new if token in self.tokenizer.special_ids],
            **candidates,
        }

    def _new(self, tokens: Iterable[int]) -> list[int]:
        new = {token for token in tokens if token < self.tokenizer.vocab_size} - self.sent
        self.sent |= new
        return sorted(new)
