"""How much of an unfinished text stands: it may be shown, and is never taken back."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gesso.diffusion.canvas import Canvas
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
    return _showable(decode(tokens[:sure]), request)


def _showable(decoded: str, request: "Request") -> str:
    text = decoded.rstrip("\ufffd")
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
    text = draft.decode(tokens[:end])
    shown = _showable(text, request)
    if shown != text:
        end = most_within(tokens[:end], text, len(shown), request.unsure, draft.decode)
    return tuple(tokens[:end])


def would_be_empty(canvas: "Canvas", request: "Request") -> bool:
    """Whether a text beginning like this canvas would show nothing; true of its first attempt only."""
    if request.guide:  # it says itself what a text may begin with
        return False
    first_of_all = canvas.index == 0 and canvas.attempt == 0 and 0 not in request.pins
    return first_of_all and int(canvas.result_C[0]) in request.never_first


# --- cutting tokens where a text is cut -----------------------------------------------------------------------------


def most_within(tokens: Sequence[int], text: str, length: int, unsure: AbstractSet[int], decode: "Decode") -> int:
    """Return how many tokens at most decode to a prefix of `text[:length]`; `text` is the text of all of them.

    In a run of bytes that is no valid UTF-8 as a whole it may be fewer, never more.
    """
    low, done, high = _around(tokens, text, length, unsure, decode)
    rest = text[done:length]
    run = [end for end in range(low + 1, high) if decode([tokens[end - 1]])]  # special tokens add no text

    def holds(at: int) -> bool:
        return rest.startswith(text_between(tokens, low, run[at], decode))

    first, last = -1, len(run)
    while last - first > 1:  # one in four positions, at least, is the end of a character
        middle = (first + last) // 2
        found = next((at for at in range(min(middle + 4, last) - 1, middle - 1, -1) if holds(at)), None)
        first, last = (first, middle) if found is None else (found, last)
    end = low if first < 0 else run[first]
    return next((k for k in range(end, high - 1) if decode([tokens[k]])), high - 1)


def fewest_with(tokens: Sequence[int], text: str, length: int, unsure: AbstractSet[int], decode: "Decode") -> int:
    """Return how many tokens are left when those at the end are dropped that `text[:length]` does without."""
    low, done, high = _around(tokens, text, length - 1, unsure, decode)
    rest = text[done:length]
    while high > low and text_between(tokens, low, high - 1, decode).startswith(rest):
        high -= 1
    return high


def _around(
    tokens: Sequence[int], text: str, length: int, unsure: AbstractSet[int], decode: "Decode"
) -> tuple[int, int, int]:
    """Return the last boundary at most `length` characters into the text, its characters, and the next boundary.

    A boundary is the end of a whole token, or an end of the text. All bisection steps together decode as many tokens as
    the text has.
    """
    whole = cache(lambda token: is_whole(token, unsure, decode))
    low, done, high = 0, 0, len(tokens)
    while True:
        middle = (low + high) // 2
        nearby = chain(range(middle, low, -1), range(middle + 1, high))
        end = next((end for end in nearby if whole(tokens[end - 1])), None)
        if end is None:
            return low, done, high
        piece = text_between(tokens, low, end, decode)
        if not text.startswith(piece, done):  # a byte that `unsure` does not have
            return low, done, high
        if done + len(piece) <= length:
            low, done = end, done + len(piece)
        else:
            high = end


def is_whole(token: int, unsure: AbstractSet[int], decode: "Decode") -> bool:
    """Whether the text up to and including this token stays as it is, whatever tokens follow.

    False for bytes, for parts of a character, and for special tokens: a run of bytes goes on behind them.
    """
    if token in unsure:
        return False
    piece = decode([token])
    return bool(piece) and "\ufffd" not in piece


def text_between(tokens: Sequence[int], start: int, end: int, decode: "Decode") -> str:
    """Return what `tokens[start:end]` add to the text; before `start` is a whole token, or none."""
    # Decoded with the token before them: some decoders drop a space at the beginning of a text.
    before = tokens[max(start - 1, 0) : start]
    return decode([*before, *tokens[start:end]])[len(decode(before)) :]
