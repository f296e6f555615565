"""A hole in a text, and the prompts that show the model the text around it.

There are two methods to show the text after the hole:
- `prompt`: if the tokenizer has fill-in-the-middle markers, the model was trained on them. Both sides go into the
  prompt, and the model chooses the length of the middle.
- `pinned`: for any other model, the official one included. The text after the hole is pinned in the canvas, because a
  canvas attends to both sides. The length of the hole is searched for, see `infill`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gesso.chat.tokenizer import FILL, Tokenizer
from gesso.errors import InputError
from gesso.infill.boundary import nearest_end, nearest_start

METHODS = ("auto", "prompt", "pinned")


@dataclass(frozen=True, kw_only=True)
class Hole:
    """The text on both sides of a hole, as far as the model is shown it."""

    before: str
    after: str
    opening: tuple[int, ...]  # tokens before the text: the bos token, or the turn with an instruction


def visible_hole(tokenizer: Tokenizer, prefix: str, suffix: str, context: int | None) -> Hole:
    """Return a hole with the nearest `context` tokens of each side; None: with all of them."""
    for name, text in (("prefix", prefix), ("suffix", suffix)):
        if not isinstance(text, str):
            raise InputError(f"the {name} must be text, got {type(text).__name__}")
    if context is not None:
        if not isinstance(context, int) or isinstance(context, bool) or context < 1:
            raise InputError(f"context must be a number of tokens of at least 1, got {context!r}")
        prefix, suffix = nearest_end(tokenizer, prefix, context), nearest_start(tokenizer, suffix, context)
    return Hole(before=prefix, after=suffix, opening=tuple(tokenizer.encode("")))


def method_for(method: str, tokenizer: Tokenizer, hole: Hole) -> str:
    """Return the method to use; `auto` is `prompt` if possible."""
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}; known are {', '.join(METHODS)}")
    # Markers in the text itself would be encoded as the special tokens.
    in_text = [mark for mark in FILL if mark in hole.before or mark in hole.after]
    possible = _markers(tokenizer) is not None and not in_text
    if method == "prompt" and not possible:
        why = f"the text itself has {in_text[0]} in it" if in_text else f"this tokenizer has no {', '.join(FILL)}"
        raise InputError(f"method 'prompt' cannot be used: {why}; use 'pinned' or 'auto'")
    if method == "auto":
        return "prompt" if possible else "pinned"
    return method


def fill_prompt(tokenizer: Tokenizer, hole: Hole, before: str) -> tuple[int, ...]:
    """Return a prompt with both sides and their markers, and with `before` as the text before the hole."""
    markers = _markers(tokenizer)
    assert markers is not None, "method_for checks this"
    prefix, suffix, middle = markers
    before_ids, after_ids = tokenizer.encode(before, bos=False), tokenizer.encode(hole.after, bos=False)
    return (*hole.opening, prefix, *before_ids, suffix, *after_ids, middle)


def fill_sides(tokenizer: Tokenizer, prompt: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """Return the prompt before the hole of a `fill_prompt` and the tokens after it; None for any other prompt."""
    markers = _markers(tokenizer)
    if markers is None or any(mark not in prompt for mark in markers):
        return None
    prefix, suffix, middle = map(list(prompt).index, markers)
    return [*prompt[:prefix], *prompt[prefix + 1 : suffix]], list(prompt[suffix + 1 : middle])


def plain_prompt(tokenizer: Tokenizer, hole: Hole, before: str) -> tuple[int, ...]:
    """Return a prompt that ends with `before`, the text before the hole."""
    return (*hole.opening, *tokenizer.encode(before, bos=False))


def _markers(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    prefix, suffix, middle = (tokenizer.id_of(mark) for mark in FILL)
    return None if prefix is None or suffix is None or middle is None else (prefix, suffix, middle)
