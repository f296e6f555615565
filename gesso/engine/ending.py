"""Append tokens to the text of a request, and find where the text ends."""

from collections.abc import Sequence
from typing import NamedTuple

from gesso.engine.events import Finish
from gesso.engine.final_text import Decode, fewest_with
from gesso.engine.running import Running


class Text(NamedTuple):
    """The text of a request so far. It has ended if there is a reason."""

    text: str
    finish: Finish | None = None
    stop: str | None = None  # the stop string that ended it


def append(running: Running, tokens: Sequence[int], decode: Decode) -> Text:
    """Append tokens up to an end of text, a stop string or the largest number."""
    request = running.request
    first = max(request.pins, default=0) - len(running.tokens)  # the text cannot end before the last pin
    end = next((i for i, token in enumerate(tokens) if i >= first and token in request.eos), None)
    running.tokens += tokens[:end]
    if request.guide:
        running.state = request.guide.walk(running.state, tokens[:end])
    text = decode(running.tokens)
    if stops := [(at, stop) for stop in request.stop if (at := text.find(stop)) >= 0]:
        length, stop = min(stops)
        del running.tokens[fewest_with(running.tokens, text, length, request.byte_tokens, decode) :]
        return Text(text[:length], "stop", stop)
    if end is not None:
        return Text(text, "stop")
    if len(running.tokens) < request.max_new_tokens:
        return Text(text)
    complete = request.guide is not None and request.guide.may_end(running.state)
    return Text(text, "stop" if complete else "length")
