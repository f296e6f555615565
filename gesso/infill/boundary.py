"""Where a given text meets a text to be written: cuts between characters, and tokens that the cut may have split.

A prompt that ends in the midst of a word ends, for the model, in a token that hardly ever stands there: after `pri`
comes `nt` in no training text, since `print` is one token. Healing takes such an end off the prompt; what is written
then has to begin with it, as an automaton sees to.
"""

import bisect
import re
from collections.abc import Callable, Sequence

from gesso.chat.tokenizer import Tokenizer
from gesso.constraints.words import Words

CUT_CHARACTER = "\ufffd"  # what the bytes of an unfinished character decode to
LONG = 32  # characters that a token has at most, on average: what is further away need not be cut into tokens


def nearest_end(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """The last `tokens` tokens of a text, or fewer: the cut falls between characters."""
    text = text[max(0, len(text) - tokens * LONG) :]
    starts = tokenizer.starts(text)
    if len(starts) <= tokens:
        return text
    before = starts[len(starts) - tokens - 1]
    return text[next((start for start in starts[len(starts) - tokens :] if start > before), len(text)) :]


def nearest_start(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """The first `tokens` tokens of a text, or fewer: the cut falls between characters."""
    text = text[: tokens * LONG]
    starts = tokenizer.starts(text)
    return text if len(starts) <= tokens else text[: starts[tokens]]


def whole_characters(decode: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> str:
    """The text of some tokens, less those at the end that are no character yet: three bytes at most.

    Not by the marks they decode to: a byte that is amiss turns the bytes before it into such marks, too.
    """
    texts = (decode(tokens[: len(tokens) - cut]) for cut in range(min(3, len(tokens)) + 1))
    return next((text for text in texts if not text.endswith(CUT_CHARACTER)), decode(tokens))


def after_beginning(decode: Callable[[Sequence[int]], str], words: Words, tokens: Sequence[int], text: str) -> str:
    """The text of some tokens, less one that it begins with.

    Not a part of the whole text: bytes behind the beginning that are no character would spoil those in it.
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
    return text[: min((at for at in map(text.find, stop) if at >= 0), default=len(text))]


class Healer:
    """Knows the texts of a vocabulary, in order."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        pieces = enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))
        self.texts = sorted({piece for i, piece in pieces if i not in tokenizer.special_ids and not _is_byte(piece)})
        self.longest = max(map(len, self.texts), default=0)

    def split(self, text: str) -> tuple[str, str]:
        """A text less the tokens at its end that may be the beginning of one token, and these tokens.

        As many of them as any token of the vocabulary can begin with: `p`, `ri` where there is a `print`.
        """
        near = text[-2 * self.longest :]  # no more needs to be cut into tokens
        cuts = sorted({start for start in self.tokenizer.starts(near) if start})
        cut = next((cut for cut in cuts if self.begins_a_longer(near[cut:])), len(near))
        at = len(text) - len(near) + cut
        return text[:at], text[at:]

    def begins_a_longer(self, text: str) -> bool:
        """Whether some token begins with this text and goes on."""
        at = bisect.bisect_right(self.texts, text)
        return at < len(self.texts) and self.texts[at].startswith(text)


def _is_byte(piece: str) -> bool:
    return re.fullmatch("<0x[0-9A-F]{2}>", piece) is not None
