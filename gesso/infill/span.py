"""Check the span of an edit, and write its instruction. Imports no torch: the server process checks spans too."""

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError


def check_span(text: str, span: tuple[int, int], level: float) -> tuple[int, int]:
    """Check a span of characters and return it: (start, end) as in `text[start:end]`, not counted from the end."""
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
        raise InputError(f"level must be above 0 (hardly any change) and at most 1 (a new text), got {level!r}")
    if start == end and level < 1:
        raise InputError(f"the span {start}:{end} is empty: below level 1 there is no text to start from")
    return start, end


def instruction_turn(tokenizer: Tokenizer, instruction: str, text: str) -> list[int]:
    """Return a user's turn with the instruction, an empty line and the present text; the model's turn is the new text.

    The model needs the present text in its prompt: at level 1 nothing of the span is left in the canvas.
    """
    if not isinstance(instruction, str) or not instruction.strip():
        raise InputError("the instruction is empty; describe the change, or leave the instruction out")
    return tokenizer.chat([{"role": "user", "content": f"{instruction}\n\n{text}"}]).tokens
