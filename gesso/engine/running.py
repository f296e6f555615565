"""A request while it is worked on."""

from collections import deque
from dataclasses import dataclass, field

from gesso.diffusion.canvas import Canvas, Process
from gesso.diffusion.samplers import sampler_of
from gesso.engine.events import Usage
from gesso.engine.request import Request
from gesso.guide.automaton import START


@dataclass(eq=False)
class Running:
    """The state of a request in the engine: text still to be encoded, then a canvas on top of it."""

    id: int
    request: Request
    process: Process
    canvas: Canvas
    tokens: list[int] = field(default_factory=list)  # finished canvases
    state: int = START  # of the constraint, after them
    row: int = -1
    pending: deque[tuple[int, ...]] = field(default_factory=deque)  # text to encode, piece by piece
    shown: str = ""  # their text, as far as it was handed out
    usage: Usage = field(default_factory=Usage)

    @property
    def asks_for_logits(self) -> bool:
        # A sampler may be a plain function, which has no attributes of its own.
        return getattr(sampler_of(self.request.diffusion), "needs_logits", False)

    @property
    def needs_logits(self) -> bool:
        """Whether a step will: a constraint that had to put the last one right will most likely have to do so again."""
        history = self.canvas.history
        return self.asks_for_logits or (bool(history) and history[-1].corrected)

    def pieces(self, start: int, piece: int, canvas_length: int) -> deque[tuple[int, ...]]:
        """The text from token `start` on, cut where it is always cut: the prompt every `piece` tokens, then canvases.

        The length of a run of tokens decides the order in which its sums are added up. Cuts that depended on the load
        or on what the cache happens to hold would let the last bits, and with them the text, depend on them too.
        """
        prompt, answer = self.request.prompt, tuple(self.tokens)
        cuts = [prompt[i : i + piece] for i in range(start, len(prompt), piece)]
        return deque(cuts + [answer[i : i + canvas_length] for i in range(0, len(answer), canvas_length)])
