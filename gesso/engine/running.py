"""The state of a generation request in the engine."""

from collections import deque
from dataclasses import dataclass, field

from gesso.constraints.automaton import START
from gesso.diffusion.canvas import Canvas, Process
from gesso.engine.events import Usage
from gesso.engine.pieces import Cuts
from gesso.engine.request import Request


@dataclass(eq=False)
class Running:
    """A generation request in the engine: text still to be encoded, then a canvas after it."""

    id: int
    request: Request
    cuts: Cuts  # of its prompt
    process: Process
    canvas: Canvas
    canvas_length: int  # of full canvases; the last one may be shorter
    tokens: list[int] = field(default_factory=list)  # committed canvases
    state: int = START  # of the constraint after `tokens`
    adapter_epoch: int = 0  # of the adapter, see `gesso.engine.adapters`
    row: int = -1
    pending: deque[tuple[int, ...]] = field(default_factory=deque)  # text to encode, piece by piece
    left_out: int = 0  # successive passes that read only text of other requests
    shown: str = ""  # the part of their text that was emitted
    usage: Usage = field(default_factory=Usage)

    @property
    def needs_all_logits(self) -> bool:
        """Whether the sampler or the stopping rule reads the logits of the whole vocabulary."""
        return "logits" in self.process.needs

    @property
    def expects_logits(self) -> bool:
        """Whether this step will likely need all logits: after a correction by a constraint, another is likely."""
        history = self.canvas.history
        needed = self.needs_all_logits or self.request.diffusion.restricts_draws
        return needed or (bool(history) and history[-1].corrected)

    @property
    def is_constrained(self) -> bool:
        """Whether a constraint checks each step, and may need the most likely tokens of the prediction."""
        return self.request.guide is not None

    @property
    def has_pins(self) -> bool:
        return bool(self.request.pins)

    def pieces(self, start: int) -> deque[tuple[int, ...]]:
        """Return the text from token `start` on: the pieces of the prompt, then one piece per canvas."""
        prompt, answer, canvas_length = self.request.prompt, tuple(self.tokens), self.canvas_length
        if self.request.diffusion.verified:  # the last token is read together with the draft after it
            prompt, answer = prompt[:-1], (prompt[-1], *answer)[:-1]
        canvases = [answer[i : i + canvas_length] for i in range(0, len(answer), canvas_length)]
        return deque(self.cuts.pieces(prompt, start) + canvases)

    @property
    def saved_length(self) -> int:
        """The length of the prompt that is saved for later requests to reuse: its whole pieces."""
        return self.cuts.last(len(self.request.prompt))
