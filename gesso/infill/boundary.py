"""Boundaries between given and generated text, between characters."""

from collections.abc import Callable, Sequence

from gesso.chat.tokenizer import Tokenizer
from gesso.constraints.words import Words

CUT_CHARACTER = "\ufffd"  # the bytes of an incomplete character decode to this
LONG = 32  # upper bound of the mean characters per token; text farther away is not tokenized


def nearest_end(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """Return the last `tokens` tokens of a text, or fewer so that the cut is between characters."""
    text = text[max(0, len(text) - tokens * LONG) :]
    starts = tokenizer.starts(text)
    if len(starts) <= tokens:
        return text
    before = starts[len(starts) - tokens - 1]
    return text[next((start for start in starts[len(starts) - tokens :] if start > before), len(text)) :]


def nearest_start(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """Return the first `tokens` tokens of a text, or fewer so that the cut is between characters."""
    text = text[: tokens * LONG]
    starts = tokenizer.starts(text)
    return text if len(starts) <= tokens else text[: starts[tokens]]


def whole_characters(decode: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> str:
    """Return the text of tokens without an incomplete character at the end, which has three bytes at most.

    Removing replacement characters from the decoded text would not do: an invalid byte turns the bytes before it into
    replacement characters too.
    """
    texts = (decode(tokens[: len(tokens) - cut]) for cut in range(min(3, len(tokens)) + 1))
    return next((text for text in texts if not text.endswith(CUT_CHARACTER)), decode(tokens))


def after_beginning(decode: Callable[[Sequence[int]], str], words: Words, tokens: Sequence[int], text: str) -> str:
    """Return the text of tokens without `text`, which they begin with.

    Slicing the decoded text would not do: invalid bytes after the beginning change how the beginning is decoded.
    """
    left = len(text.encode())
    for i, token in enumerate(tokens):
        if left <= 0:
            break
        left -= len(word := words.bytes_of.get(token, b""))
        if left < 0:
            return word[left:].decode() + decode(tokens[i + 1 :])
    else:
        i = len(tokens)
    return decode(tokens[i:])


def before_stop(text: str, stop: Sequence[str]) -> str:
    """Return the text before the first stop string in it."""
    return text[: min((at for at in map(text.find, stop) if at >= 0), default=len(text))]
