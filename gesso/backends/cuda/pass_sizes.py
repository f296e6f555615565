"""The sizes of captured passes: few, so that passes with similar amounts of work share one."""

from collections.abc import Iterable
from dataclasses import dataclass

BESIDE = 256  # tokens of text in passes with both: a piece of a prompt, or a canvas


@dataclass(frozen=True, order=True)
class PassSize:
    """The tokens that a captured pass has room for."""

    canvases: int  # 0: none
    texts: int  # 0: none; padding follows them
    # Whether canvases may be shorter or constrained: then there may be padding after them, and the pass finds the most
    # likely tokens. Otherwise they are as many whole canvases as fit, without the cost of either.
    any_canvases: bool = False

    def fits(self, needed: "PassSize") -> bool:
        """Return whether a pass with the needed sizes fits, and no part is empty."""
        if bool(self.canvases) != bool(needed.canvases) or bool(self.texts) != bool(needed.texts):
            return False
        if self.canvases and not self.any_canvases:
            return self.canvases == needed.canvases and not needed.any_canvases and self.texts >= needed.texts
        return self.canvases >= needed.canvases and self.texts >= needed.texts


def smallest(sizes: Iterable[PassSize], needed: PassSize) -> PassSize | None:
    """Return the smallest size that fits, or None."""
    return min((size for size in sizes if size.fits(needed)), default=None)


@dataclass(frozen=True)
class Expected:
    """The requests of an engine."""

    batch: int
    canvas: int  # tokens of a full canvas
    prefill: int  # tokens of text in a pass

    @property
    def longest_text(self) -> int:
        return max(BESIDE, self.canvas)

    @property
    def texts(self) -> int:
        """The number of texts in a pass: whole pieces of prompts, and two more for each request."""
        return self.prefill // BESIDE + 2 * self.batch

    @property
    def most_text(self) -> int:
        """The tokens of text in a pass: committed canvases come on top of prompts."""
        return self.prefill + self.batch * self.canvas

    def sizes(self) -> list[PassSize]:
        """Return the sizes of all passes, those that a server needs most first. The very first take the most
        memory.

        With one more canvas of 256 tokens, a step of the 26B in FP8 takes 3.7 ms more on an H200, whether the canvas is
        padding or not. A capture takes 0.2 s, once. So up to 8 whole canvases are never padded, and more of them by
        less than a fifth.
        """
        canvas, prefill = self.canvas, self.prefill
        counts = [n for n in range(1, self.batch + 1) if n <= 8 or n % (2 if n <= 16 else 4) == 0 or n == self.batch]
        whole = [n * canvas for n in counts]
        parts = [canvas // 4, canvas // 2, canvas * 3 // 4, canvas * 3 // 2, canvas * 5 // 2]
        beside = min(BESIDE, prefill)
        powers = [2**bits for bits in range(5, prefill.bit_length()) if 2**bits < prefill]
        rooms = sorted({*powers, *(room * 3 // 4 for room in powers if room > BESIDE), prefill * 3 // 4, prefill})
        all_capacities = [
            PassSize(whole[-1], beside, any_canvases=True),
            PassSize(0, self.most_text),
            *(PassSize(tokens, 0) for tokens in whole),
            *(PassSize(tokens, beside, any_canvases=True) for tokens in whole),
            *(PassSize(0, room) for room in rooms if room),
            *(PassSize(tokens, 0, any_canvases=True) for tokens in whole),
            *(PassSize(tokens, 0, any_canvases=True) for tokens in parts if 0 < tokens < whole[-1]),
        ]
        return list(dict.fromkeys(all_capacities))
