"""Editing a span of a text: which span, how far from what is there, and in whose words."""

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError


def check_span(text: str, span: tuple[int, int], level: float) -> tuple[int, int]:
    """A span of characters, (start, end) as in `text[start:end]` but never counted from the end."""
    if not isinstance(text, str):
        raise InputError(f"the text to edit must be text, got {type(text).__name__}")
    try:
        start, end = span
    except (TypeError, ValueError):
        raise InputError(f"span must be (start, end), two numbers of characters, got {span!r}") from None
    for name, place in (("start", start), ("end", end)):
        if not isinstance(place, int) or isinstance(place, bool):
            raise InputError(f"the {name} of the span must be a number of characters, got {place!r}")
    if start > end:
        raise InputError(f"the span {start}:{end} is reversed; its start must come first")
    if start < 0 or end > len(text):
        raise InputError(f"the span {start}:{end} is outside the text, which has the characters 0:{len(text)}")
    if not isinstance(level, (int, float)) or isinstance(level, bool) or not 0 < level <= 1:
        raise InputError(f"level must be above 0 (hardly a change) and at most 1 (written anew), got {level!r}")
    if start == end and level < 1:
        raise InputError(f"the span {start}:{end} is empty: below level 1 there is nothing to begin from")
    return start, end


def instruction_turn(tokenizer: Tokenizer, instruction: str, text: str) -> list[int]:
    """A user's turn: the instruction, an empty line, the text as it is. The model's turn, now open, is the new text.

    So the model has read what it is to change, at level 1 too, where nothing of the span is left in the canvas.
    """
    if not isinstance(instruction, str) or not instruction.strip():
        raise InputError("the instruction is empty; say what to change, or leave it out")
    return tokenizer.chat([{"role": "user", "content": f"{instruction}\n\n{text}"}])
