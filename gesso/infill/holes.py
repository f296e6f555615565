"""Filling a hole in a text: what of the text around it the model is shown, and which lengths a hole is tried with.

There are two ways to show what comes after the hole.
- `prompt`: a tokenizer with the markers of fill in the middle has a model that was trained on them. Both sides go into
  the prompt, and the model itself ends what it writes.
- `pinned`: any other model (the official one). What comes after is pinned in the canvas behind a hole of so many
  tokens: a canvas sees left and right at once. How many is searched, see `lengths` and `closer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gesso.chat.tokenizer import FILL, Tokenizer
from gesso.errors import InputError
from gesso.infill.boundary import nearest_end, nearest_start

METHODS = ("auto", "prompt", "pinned")
AT_ONCE = 8  # lengths tried in one round, after the first


@dataclass(frozen=True, kw_only=True)
class Hole:
    """The text on both sides of a hole, as much of it as the model is shown."""

    before: str
    after: str
    opening: tuple[int, ...]  # tokens ahead of it all: the bos, or the turn of an instruction


def hole(tokenizer: Tokenizer, prefix: str, suffix: str, context: int | None) -> Hole:
    """`context`: show no more than so many tokens of each side, those next to the hole."""
    for name, text in (("prefix", prefix), ("suffix", suffix)):
        if not isinstance(text, str):
            raise InputError(f"the {name} must be text, got {type(text).__name__}")
    if context is not None:
        if not isinstance(context, int) or isinstance(context, bool) or context < 1:
            raise InputError(f"context must be a number of tokens of at least 1, got {context!r}")
        prefix, suffix = nearest_end(tokenizer, prefix, context), nearest_start(tokenizer, suffix, context)
    return Hole(before=prefix, after=suffix, opening=tuple(tokenizer.encode("")))


def method_for(method: str, tokenizer: Tokenizer, hole: Hole) -> str:
    """The way that `auto` means here."""
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}; known are {', '.join(METHODS)}")
    # A text that speaks of the markers would be read as if its own were ours.
    spoken = [mark for mark in FILL if mark in hole.before or mark in hole.after]
    able = _markers(tokenizer) is not None and not spoken
    if method == "prompt" and not able:
        why = f"the text itself has {spoken[0]} in it" if spoken else f"this tokenizer has no {', '.join(FILL)}"
        raise InputError(f"method 'prompt' cannot be used: {why}; use 'pinned', or 'auto'")
    return method if method != "auto" else "prompt" if able else "pinned"


def fill_prompt(tokenizer: Tokenizer, hole: Hole, before: str) -> tuple[int, ...]:
    """Both sides with their markers, `before` being what stands before the hole; the middle comes next."""
    markers = _markers(tokenizer)
    assert markers is not None, "method_for has looked"
    prefix, suffix, middle = markers
    before_ids, after_ids = tokenizer.encode(before, bos=False), tokenizer.encode(hole.after, bos=False)
    return (*hole.opening, prefix, *before_ids, suffix, *after_ids, middle)


def fill_sides(tokenizer: Tokenizer, prompt: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """What a `fill_prompt` has before its hole, as a prompt of its own, and after it; None: this is another prompt."""
    markers = _markers(tokenizer)
    if markers is None or any(mark not in prompt for mark in markers):
        return None
    prefix, suffix, middle = map(list(prompt).index, markers)
    return [*prompt[:prefix], *prompt[prefix + 1 : suffix]], list(prompt[suffix + 1 : middle])


def plain_prompt(tokenizer: Tokenizer, hole: Hole, before: str) -> tuple[int, ...]:
    return (*hole.opening, *tokenizer.encode(before, bos=False))


def _markers(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    prefix, suffix, middle = (tokenizer.id_of(mark) for mark in FILL)
    return None if prefix is None or suffix is None or middle is None else (prefix, suffix, middle)


# --- how long the hole is -------------------------------------------------------------------------------------------


def lengths(limit: int) -> list[int]:
    """The first round: 1, 2, 3, 4, 6, 8, 12, 16, 24 … up to the limit, which is one of them."""
    doubled = {base << power for base in (2, 3) for power in range(limit.bit_length())}
    return sorted({1, limit} | {length for length in doubled if length < limit})


def closer(tried: Sequence[int], best: int) -> list[int]:
    """The next round: lengths between the best and its neighbours, spread evenly; none left, and the search is over."""
    below = max((length for length in tried if length < best), default=0)
    above = min((length for length in tried if length > best), default=best + 1)
    open_ = [length for length in range(below + 1, above) if length not in tried]
    if len(open_) <= AT_ONCE:
        return open_
    return [open_[i * len(open_) // AT_ONCE] for i in range(AT_ONCE)]


def check_lengths(given: Sequence[int], room: int) -> list[int]:
    for length in given:
        if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= room:
            raise InputError(f"a hole's length must be from 1 to {room} tokens, so that it fits the canvas: {length!r}")
    if not given:
        raise InputError("lengths is empty; give at least one, or leave it out to have the length searched")
    return sorted(set(given))
