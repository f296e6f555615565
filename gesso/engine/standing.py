"""How much of an unfinished text stands: it may be shown, and is never taken back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gesso.diffusion.canvas import Canvas

if TYPE_CHECKING:
    from gesso.engine.events import Decode, Draft
    from gesso.engine.request import Request


def showable(tokens: Sequence[int], request: "Request", decode: "Decode") -> str:
    """The text of tokens that are final, as far as no token after them can change it.

    A run of bytes is decoded as a whole, and a later byte can spoil the run. A character cut in two decodes to a
    replacement mark until it is complete. What may be the beginning of a stop string may still have to go.
    """
    sure = len(tokens)
    while sure and tokens[sure - 1] in request.unsure:
        sure -= 1
    text = decode(tokens[:sure]).rstrip("\ufffd")
    held = max((n for s in request.stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
    stops = [at for at in map(text.find, request.stop) if at >= 0]
    return text[: min([*stops, len(text) - held])]


def standing(draft: "Draft") -> tuple[int, ...]:
    """The tokens of the text so far whose text stands: finished canvases, and what has settled in this one."""
    canvas, request = draft.canvas, draft.request
    if would_be_empty(canvas, request):  # it will be drawn again
        return ()
    tokens = list(draft.before) + canvas.result_C[: canvas.final].tolist()
    first = max(len(draft.before), max(request.pins, default=0))
    end = next((i for i in range(first, len(tokens)) if tokens[i] in request.eos), len(tokens))
    while end and tokens[end - 1] in request.unsure:
        end -= 1
    text = showable(tokens[:end], request, draft.decode)
    while end and not text.startswith(draft.decode(tokens[:end])):
        end -= 1
    return tuple(tokens[:end])


def would_be_empty(canvas: Canvas, request: "Request") -> bool:
    """Whether a text beginning like this canvas would show nothing; true of its first attempt only."""
    if request.guide:  # it says itself what a text may begin with
        return False
    first_of_all = canvas.index == 0 and canvas.attempt == 0 and 0 not in request.pins
    return first_of_all and int(canvas.result_C[0]) in request.never_first
