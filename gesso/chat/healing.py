"""Heal tokens that the end of a given text has split.

A prompt that ends inside a word ends in a token that the model has rarely seen there: training texts never have `nt`
after `pri`, because `print` is one token. Healing removes such an end from the prompt. A constraint then makes the new
text begin with the removed end.
"""

import bisect
import re
from collections.abc import Callable, Iterable


class Healer:
    """Finds the tokens at the end of a text that could be the beginning of a longer token."""

    def __init__(self, pieces: Iterable[str], starts: Callable[[str], list[int]]) -> None:
        """`pieces`: the texts of all tokens but special ones. `starts`: returns where the tokens of a text begin."""
        self.starts = starts
        self.texts = sorted({piece for piece in pieces if not _is_byte(piece)})
        self.longest = max(map(len, self.texts), default=0)

    def split(self, text: str) -> tuple[str, str]:
        """Split off the tokens at the end of a text that could be the beginning of one longer token.

        Splits off as many as possible: both `p` and `ri` if the vocabulary has `print`.
        """
        near = text[-2 * self.longest :]  # the rest need not be tokenized
        cuts = sorted({start for start in self.starts(near) if start})
        cut = next((cut for cut in cuts if self.begins_a_longer(near[cut:])), len(near))
        at = len(text) - len(near) + cut
        return text[:at], text[at:]

    def begins_a_longer(self, text: str) -> bool:
        """Return whether a token begins with this text and is longer."""
        at = bisect.bisect_right(self.texts, text)
        return at < len(self.texts) and self.texts[at].startswith(text)


def _is_byte(piece: str) -> bool:
    return re.fullmatch("<0x[0-9A-F]{2}>", piece) is not None
