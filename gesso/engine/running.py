"""The state of a generation request in the engine."""

from collections import deque
from dataclasses import dataclass, field

from gesso.constraints.automaton import START
from gesso.diffusion.canvas import Canvas, Process
from gesso.engine.events import Usage
from gesso.engine.request import Request


@dataclass(eq=False)
class Running:
    """A generation request in the engine: text still to be encoded, then a canvas after it."""

    id: int
    request: Request
    process: Process
    canvas: Canvas
    canvas_length: int  # of full canvases; the last one may be shorter
    tokens: list[int] = field(default_factory=list)  # committed canvases
    state: int = START  # of the constraint after `tokens`
    generation: int = 0  # of the adapter, see `gesso.engine.adapters`
    row: int = -1
    pending: deque[tuple[int, ...]] = field(default_factory=deque)  # text to encode, piece by piece
    left_out: int = 0  # successive passes that read only text of other requests
    shown: str = ""  # the part of their text that was emitted
    usage: Usage = field(default_factory=Usage)

    @property
    def needs_all_logits(self) -> bool:
        """Whether the sampler, or a restriction of the draws, reads the logits of the whole vocabulary."""
        return self.request.diffusion.restricts_draws or "logits" in self.process.needs

    @property
    def expects_logits(self) -> bool:
        """Whether this step will likely need all logits: after a correction by a constraint, another is likely."""
        history = self.canvas.history
        return self.needs_all_logits or (bool(history) and history[-1].corrected)

    @property
    def is_constrained(self) -> bool:
        """Whether a constraint checks each step, and may need the most likely tokens of the prediction."""
        return self.request.guide is not None

    @property
    def has_pins(self) -> bool:
        return bool(self.request.pins)

    def pieces(self, start: int, piece: int) -> deque[tuple[int, ...]]:
        """Return the text from token `start` on: the prompt in pieces of `piece` tokens, then one piece per canvas.

        The length of a piece determines the order of its sums. If it depended on the load or on the contents of the
        cache, so would the last bits, and with them the text.
        """
        prompt, answer, canvas_length = self.request.prompt, tuple(self.tokens), self.canvas_length
        if self.request.diffusion.verified:  # the last token is read together with the draft after it
            prompt, answer = prompt[:-1], (prompt[-1], *answer)[:-1]
        cuts = [prompt[i : i + piece] for i in range(start, len(prompt), piece)]
        return deque(cuts + [answer[i : i + canvas_length] for i in range(0, len(answer), canvas_length)])

    def saved_length(self, piece: int) -> int:
        """Return the length of the prompt that is saved for later requests to reuse: its whole pieces."""
        return len(self.request.prompt) // piece * piece
