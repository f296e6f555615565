"""The sequence of a training pass: the texts of all examples one after another, then all their canvases.

A token attends to at most two ranges of this sequence: a part of its example's text and, in a canvas, that canvas.
Text attends causally, except that the tokens of an image may attend to all of the image.
Everything here is computed on the host, so that shapes are known without waiting for a GPU.

B examples, S text of all examples, K canvases of all examples, C canvas, T = S + K·C, N images whose tokens attend to
each other.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    width_B: Ints  # text of each example, with the padding after it
    owner_K: Ints  # example of each canvas
    at_K: Ints  # position of each canvas in the text of its example: it attends to the text before
    canvas_length: int
    image_N2: Ints = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))  # start and end in the text

    @property
    def text(self) -> int:
        return int(self.width_B.sum())

    @property
    def tokens(self) -> int:
        return self.text + len(self.at_K) * self.canvas_length

    @property
    def begin_B(self) -> Ints:
        return np.cumsum(self.width_B) - self.width_B

    @property
    def owner_S(self) -> Ints:
        return np.repeat(np.arange(len(self.width_B)), self.width_B)

    @property
    def position_T(self) -> Ints:
        """Return the position of every token in its own example."""
        text_S = np.arange(self.text) - self.begin_B[self.owner_S]
        canvas_KC = self.at_K[:, None] + np.arange(self.canvas_length)
        return np.concatenate([text_S, canvas_KC.ravel()])

    def ranges(self, window: int | None) -> tuple[Ints, Ints]:
        """Return start and end of the text that every token attends to, [T] each.

        Text attends causally, a canvas to the text before it. In a sliding layer, text attends to the last `window`
        tokens including its own. Every position of a canvas attends to the last `window - 1` tokens before the canvas.
        Padding attends like the text before it; no other token attends to padding. A token of an image in `image_N2`
        attends to all of that image, whatever the window, and to the text before it as far as the window reaches.
        """
        text_S, before_K = self.begin_B[self.owner_S], self.begin_B[self.owner_K]
        low_T = np.concatenate([text_S, np.repeat(before_K, self.canvas_length)])
        high_T = np.concatenate([np.arange(1, self.text + 1), np.repeat(before_K + self.at_K, self.canvas_length)])
        if window is not None:
            reach_T = np.where(np.arange(self.tokens) < self.text, window, window - 1)
            low_T = np.maximum(low_T, high_T - reach_T)
        for start, end in self.image_N2:
            low_T[start:end], high_T[start:end] = np.minimum(low_T[start:end], start), end
        return low_T, high_T

    def canvas_ranges(self) -> tuple[Ints, Ints]:
        """Return start and end of the canvas of every token, [T] each: for text an empty range after the end."""
        first_K = self.text + np.arange(len(self.at_K)) * self.canvas_length
        start_T = np.concatenate([np.full(self.text, self.tokens), np.repeat(first_K, self.canvas_length)])
        return start_T, np.where(start_T < self.tokens, start_T + self.canvas_length, 0)

    def part(self, examples: Ints) -> tuple["Layout", Ints, Ints]:
        """Return the layout of some examples, given in order, and the indices of their text tokens and canvases."""
        number_B = np.full(len(self.width_B), -1)
        number_B[examples] = np.arange(len(examples))
        index_S = np.flatnonzero(number_B[self.owner_S] >= 0)
        index_K = np.flatnonzero(number_B[self.owner_K] >= 0)
        owner_K = number_B[self.owner_K[index_K]]
        images = self.image_N2[number_B[self.owner_S[self.image_N2[:, 0]]] >= 0]
        moved = images + (np.searchsorted(index_S, images[:, :1]) - images[:, :1])
        part = Layout(self.width_B[examples], owner_K, self.at_K[index_K], self.canvas_length, moved)
        return part, index_S, index_K
