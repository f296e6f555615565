"""Boundaries between given and generated text: cut between characters, and heal tokens that a cut has split.

A prompt that ends inside a word ends in a token that the model has rarely seen there: training texts never have `nt`
after `pri`, because `print` is one token. Healing removes such an end from the prompt. A constraint then makes the new
text begin with the removed end.
"""

import bisect
import re
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


class Healer:
    """Finds the tokens at the end of a text that could be the beginning of a longer token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        pieces = enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))
        self.texts = sorted({piece for i, piece in pieces if i not in tokenizer.special_ids and not _is_byte(piece)})
        self.longest = max(map(len, self.texts), default=0)

    def split(self, text: str) -> tuple[str, str]:
        """Split off the tokens at the end of a text that could be the beginning of one longer token.

        Splits off as many as possible: both `p` and `ri` if the vocabulary has `print`.
        """
        near = text[-2 * self.longest :]  # the rest need not be tokenized
        cuts = sorted({start for start in self.tokenizer.starts(near) if start})
        cut = next((cut for cut in cuts if self.begins_a_longer(near[cut:])), len(near))
        at = len(text) - len(near) + cut
        return text[:at], text[at:]

    def begins_a_longer(self, text: str) -> bool:
        """Return whether a token begins with this text and is longer."""
        at = bisect.bisect_right(self.texts, text)
        return at < len(self.texts) and self.texts[at].startswith(text)


def _is_byte(piece: str) -> bool:
    return re.fullmatch("<0x[0-9A-F]{2}>", piece) is not None
