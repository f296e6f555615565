"""Find the part of an unfinished text that is final: no later token changes it, so it can be shown.

Decoders differ in how tokens become text, so all functions use the decoder only as a black box. Imports no torch: the
server process uses `is_whole` and `text_between`.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from gesso.constraints.automaton import START
from gesso.engine.request import Request

if TYPE_CHECKING:
    from gesso.diffusion.canvas import Canvas  # imports torch

Decode = Callable[[Sequence[int]], str]


def final_text(tokens: Sequence[int], request: Request, decode: Decode) -> str:
    """Return the text of final tokens, without an end that later tokens can change.

    Three kinds of text can change: bytes, because an invalid byte later in their run changes how the run is decoded;
    an incomplete character, which decodes to a replacement character; and the beginning of a stop string, which is cut
    off if the stop string is completed.
    """
    sure = len(tokens)
    while sure and tokens[sure - 1] in request.byte_tokens:
        sure -= 1
    return _without_uncertain_end(decode(tokens[:sure]), request)


def _without_uncertain_end(decoded: str, request: Request) -> str:
    text = decoded.rstrip("\ufffd")
    unfinished_stop = max((n for s in request.stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
    stops = [at for at in map(text.find, request.stop) if at >= 0]
    return text[: min([*stops, len(text) - unfinished_stop])]


def final_tokens(request: Request, canvas: "Canvas", before: Sequence[int], decode: Decode) -> tuple[int, ...]:
    """Return the tokens whose text is final: the tokens `before` the canvas, and the settled ones at its start."""
    if would_be_empty(canvas, request):  # it will be drawn again
        return ()
    tokens = list(before) + canvas.result_C[: canvas.final].tolist()
    first = max(len(before), max(request.pins, default=0))
    end = next((i for i in range(first, len(tokens)) if tokens[i] in request.eos), len(tokens))
    while end and tokens[end - 1] in request.byte_tokens:
        end -= 1
    text = decode(tokens[:end])
    shown = _without_uncertain_end(text, request)
    if shown != text:
        end = most_within(tokens[:end], text, len(shown), request.byte_tokens, decode)
    return tuple(tokens[:end])


def would_be_empty(canvas: "Canvas", request: Request) -> bool:
    """Return whether the text would be empty with this canvas as its start. A second attempt is always accepted."""
    if request.guide and not request.guide.may_end(START):  # the constraint allows no empty text
        return False
    first_attempt = canvas.index == 0 and canvas.attempt == 0 and 0 not in request.pins
    return first_attempt and int(canvas.result_C[0]) in request.never_first


# --- cutting tokens where a text is cut -----------------------------------------------------------------------------


def most_within(tokens: Sequence[int], text: str, length: int, byte_tokens: AbstractSet[int], decode: Decode) -> int:
    """Return the largest number of leading tokens that decode to a prefix of `text[:length]`.

    `text` is the text of all tokens. Within a run of bytes that is not valid UTF-8, the number may be too small but
    never too large.
    """
    low, done, high = _around(tokens, text, length, byte_tokens, decode)
    rest = text[done:length]
    run = [end for end in range(low + 1, high) if decode([tokens[end - 1]])]  # special tokens add no text

    def holds(at: int) -> bool:
        return rest.startswith(text_between(tokens, low, run[at], decode))

    first, last = -1, len(run)
    while last - first > 1:  # a character has at most four bytes, so one of four positions ends a character
        middle = (first + last) // 2
        found = next((at for at in range(min(middle + 4, last) - 1, middle - 1, -1) if holds(at)), None)
        first, last = (first, middle) if found is None else (found, last)
    end = low if first < 0 else run[first]
    return next((k for k in range(end, high - 1) if decode([tokens[k]])), high - 1)


def fewest_with(tokens: Sequence[int], text: str, length: int, byte_tokens: AbstractSet[int], decode: Decode) -> int:
    """Return the number of tokens left after dropping those at the end that `text[:length]` does not need."""
    low, done, high = _around(tokens, text, length - 1, byte_tokens, decode)
    rest = text[done:length]
    while high > low and text_between(tokens, low, high - 1, decode).startswith(rest):
        high -= 1
    return high


def _around(
    tokens: Sequence[int], text: str, length: int, byte_tokens: AbstractSet[int], decode: Decode
) -> tuple[int, int, int]:
    """Return the token boundaries on both sides of character `length`, as (last before, its character, next).

    A boundary is the end of a whole token, or the start or end of the text. The bisection halves the stretch that it
    decodes, so all of its steps together decode about as many tokens as the text has.
    """
    whole = cache(lambda token: is_whole(token, byte_tokens, decode))
    low, done, high = 0, 0, len(tokens)
    while True:
        middle = (low + high) // 2
        nearby = chain(range(middle, low, -1), range(middle + 1, high))
        end = next((end for end in nearby if whole(tokens[end - 1])), None)
        if end is None:
            return low, done, high
        piece = text_between(tokens, low, end, decode)
        if not text.startswith(piece, done):  # a byte that is missing in `byte_tokens`
            return low, done, high
        if done + len(piece) <= length:
            low, done = end, done + len(piece)
        else:
            high = end


def is_whole(token: int, byte_tokens: AbstractSet[int], decode: Decode) -> bool:
    """Return whether the text up to the end of this token stays the same, whatever tokens follow.

    False for bytes, for parts of a character, and for special tokens, because a run of bytes continues across them.
    """
    if token in byte_tokens:
        return False
    piece = decode([token])
    return bool(piece) and "\ufffd" not in piece


def text_between(tokens: Sequence[int], start: int, end: int, decode: Decode) -> str:
    """Return the text that `tokens[start:end]` add. The token before `start` must be whole, if there is one."""
    # Decode them with the token before: some decoders drop a space at the beginning of a text.
    before = tokens[max(start - 1, 0) : start]
    return decode([*before, *tokens[start:end]])[len(decode(before)) :]
