"""The pieces in which a prompt is encoded.

They depend on the prompt alone, because the length of a piece determines the order of its sums. If it depended on the
load or on the contents of the cache, so would the last bits, and with them the text.

  text      pieces of equal length, counted from the end of the image before it, or from the beginning; the last one is
            shorter if an image or the end of the prompt comes first
  image     one piece: its tokens see each other
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Cuts:
    """Where a prompt is cut into pieces.

    `whole` has the ends of its whole pieces, in order: images, texts before an image, and texts of `piece` tokens. Two
    prompts that are equal up to such an end, and are both cut there, have the same pieces up to it. The tokens after
    the last one, if there are any, are a piece that a longer prompt would continue.
    """

    piece: int
    whole: Sequence[int] = ()

    def has(self, end: int) -> bool:
        """Return whether a whole piece ends there."""
        at = bisect_left(self.whole, end)
        return at < len(self.whole) and self.whole[at] == end

    def ends(self, most: int) -> Sequence[int]:
        """Return the ends of the whole pieces of the first `most` tokens."""
        return self.whole[: bisect_right(self.whole, most)]

    def last(self, most: int) -> int:
        """Return the end of the last whole piece of the first `most` tokens, or 0."""
        ends = self.ends(most)
        return ends[-1] if ends else 0

    def pieces(self, tokens: tuple[int, ...], start: int) -> list[tuple[int, ...]]:
        """Return the pieces of a prompt, or of its beginning, from token `start` on: 0, or the end of a whole piece."""
        ends = [start, *(end for end in self.ends(len(tokens)) if end > start)]
        if ends[-1] < len(tokens):
            ends.append(len(tokens))
        return [tokens[a:b] for a, b in pairwise(ends)]


def cut(length: int, images: Sequence[range], piece: int) -> Cuts:
    """Return where to cut a prompt of `length` tokens with images at these places."""
    if not images:
        return Cuts(piece, range(piece, length + 1, piece))  # takes no time, however long the prompt is
    whole: list[int] = []
    start = 0
    for image in images:
        whole += range(start + piece, image.start, piece)
        whole += [image.start] if image.start > start else []
        start = image.stop
        whole.append(start)
    return Cuts(piece, (*whole, *range(start + piece, length + 1, piece)))
