"""Commit tokens to the text of a request, find where the text ends, and return its result."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gesso.engine.events import Commit, Finish, Likely, Result
from gesso.engine.final_text import Decode, fewest_with, final_text
from gesso.engine.running import Running


class Committed(NamedTuple):
    """The event of a commit. The text has ended if there is a reason."""

    event: Commit
    finish: Finish | None = None
    stop: str | None = None  # the stop string that ended it


def commit(running: Running, tokens: Sequence[int], likely: Sequence[Likely], decode: Decode) -> Committed:
    """Append the tokens of a canvas to the text, and return the event that shows them."""
    before = len(running.tokens)
    running.usage = replace(running.usage, canvases=running.usage.canvases + 1)
    text, finish, stop = append(running, tokens, decode)
    shown = text if finish else final_text(running.tokens, running.request, decode)
    added = shown[len(running.shown) :]
    running.shown += added
    kept = tuple(running.tokens[before:])
    return Committed(Commit(running.id, running.canvas.index, kept, added, tuple(likely[: len(kept)])), finish, stop)


def result(running: Running, reason: Finish, stop: str | None) -> Result:
    """Return the result of a text that ends here."""
    usage = replace(running.usage, completion_tokens=len(running.tokens))
    seed, warnings = running.request.seed, running.request.warnings
    return Result(running.shown, tuple(running.tokens), reason, usage, seed, stop=stop, warnings=warnings)


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
