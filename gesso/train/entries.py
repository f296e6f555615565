"""The entries of an epoch, and the lengths of the batches that are cut from them.

An entry is what an epoch shows once: a whole row, or one section of a text that is too long for one example.
"""

import math
import random
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gesso.errors import InputError
from gesso.train.rows import Span

WHOLE = -1  # stored in place of the start of an entry that is a whole row
LEAST_PROMPT = 8  # tokens
LEAST_CANVAS = 2


@dataclass(frozen=True)
class Entry:
    row: int  # number among the good rows
    start: int | None  # of the section, in tokens; None: the whole row


class Entries:
    """The entries of an epoch, three numbers each."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._starts = array("q")
        self._padded_lengths = array("q")

    def append(self, entry: Entry, padded_length: int) -> None:
        self._rows.append(entry.row)
        self._starts.append(WHOLE if entry.start is None else entry.start)
        self._padded_lengths.append(padded_length)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Entry:
        start = self._starts[index]
        return Entry(row=self._rows[index], start=None if start == WHOLE else start)

    @property
    def padded_lengths(self) -> npt.NDArray[np.int64]:
        return np.array(self._padded_lengths)

    def remove_rows(self, rows: Collection[int]) -> None:
        stays = ~np.isin(self._rows, list(rows))
        self._rows = array("q", np.array(self._rows)[stays])
        self._starts = array("q", np.array(self._starts)[stays])
        self._padded_lengths = array("q", np.array(self._padded_lengths)[stays])


@dataclass(frozen=True)
class BatchShape:
    """The lengths of a batch whose examples have one canvas: views of texts, or prompts of a fixed length."""

    prompt: int  # most tokens before the canvas
    canvas: int  # tokens


def batch_shapes(
    max_length: int, prompt_lengths: Sequence[int], canvas_lengths: Sequence[int], *, must_fit: bool
) -> list[BatchShape]:
    """Return the shapes that the batches take in turn. Both lists of lengths start again when they end."""
    shapes = []
    for turn in range(math.lcm(len(canvas_lengths), len(prompt_lengths) or 1)):
        canvas = canvas_lengths[turn % len(canvas_lengths)]
        prompt = prompt_lengths[turn % len(prompt_lengths)] if prompt_lengths else max_length - canvas
        fits = prompt >= LEAST_PROMPT and canvas >= LEAST_CANVAS and prompt + canvas <= max_length
        if must_fit and not fits:
            raise InputError(
                f"a canvas of {canvas} after a prompt of {prompt} tokens does not fit into max_length = {max_length}; "
                "raise data.max_length, or lower data.prompt_lengths or objective.canvas_lengths"
            )
        shapes.append(BatchShape(prompt=prompt, canvas=canvas))
    return shapes


def with_prompt_of_fixed_length(
    tokens: Sequence[int],
    spans: Sequence[Span],
    shape: BatchShape,
    rng: random.Random,
    other_ending: Callable[[int], list[int]],
) -> tuple[tuple[int, ...], Span]:
    """Return one canvas of a response after exactly `shape.prompt` tokens, and its span.

    A longer prompt loses its first tokens. A shorter one is filled from the left with the ends of other entries, which
    `other_ending` returns: at most so many tokens. A batch of such examples needs no padding and no mask, and the
    encoder is trained on the filling too.
    """
    canvases = [(start, end) for first, end in spans for start in range(first, end, shape.canvas)]
    start, end = canvases[int(rng.random() * len(canvases))]
    response = tokens[start : min(start + shape.canvas, end)]

    filling: list[int] = []
    while start + len(filling) < shape.prompt:
        filling = [*other_ending(shape.prompt - start - len(filling)), *filling]
    prompt = (*filling, *tokens[max(0, start - shape.prompt) : start])
    return (*prompt, *response), (shape.prompt, shape.prompt + len(response))
