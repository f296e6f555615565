"""Drafts of a canvas as events of a stream. docs/guides/serving.md describes the fields."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from gesso.chat.tokenizer import Tokenizer
from gesso.serve.wire import Drafted

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
        entropy=canvas.history[-1].entropy_C.double().round(decimals=4).tolist(),
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
        tokens = [token for token in drafted.tokens if token < self.tokenizer.vocab_size]
        new = self._new([*drafted.tokens, *(token for position in drafted.candidates for token, _ in position)])
        omitted = ("id",) if drafted.candidates else ("id", "candidates")
        return {
            "index": index,
            **{name: value for name, value in structs.asdict(drafted).items() if name not in omitted},
            "text": self.tokenizer.decode(tokens),
            "pieces": dict(zip(new, self.tokenizer.pieces(new), strict=True)),
            "special": [token for token in new if token in self.tokenizer.special_ids],
        }

    def _new(self, tokens: Iterable[int]) -> list[int]:
        new = {token for token in tokens if token < self.tokenizer.vocab_size} - self.sent
        self.sent |= new
        return sorted(new)
