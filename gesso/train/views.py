"""Ways to look at a text: a stretch of a long one, to be continued; or with a hole in it, to be filled.

A text in a file is a document, which may be longer than an example. A view is drawn anew whenever the text comes up,
as a function of the seed and of the number of the example alone.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gesso.chat.tokenizer import FILL, Tokenizer
from gesso.errors import InputError

Tokens = npt.NDArray[np.int32]

FULL_CONTEXT = 0.5  # how often a text is continued from as much of it as there may be, not from anywhere
# What a hole is: a whole line as often as this, several lines, or any stretch of tokens.
ONE_LINE, SOME_LINES = 0.6, 0.85


@dataclass(frozen=True, kw_only=True)
class Viewer:
    max_length: int
    infill: float  # share of the texts shown with a hole
    bos: int
    eos: int
    fill: tuple[int, int, int] | None  # the tokens before the prefix, the suffix and the middle
    ends_line: npt.NDArray[np.bool_]  # by token

    @classmethod
    def of(cls, tokenizer: Tokenizer, eos: int, max_length: int, infill: float) -> "Viewer":
        if tokenizer.bos_id is None:
            raise InputError("texts are cut only for a tokenizer that has a bos token")
        marks = [tokenizer.id_of(mark) for mark in FILL]
        if infill and None in marks:
            raise InputError(f"data.infill needs a tokenizer that has {', '.join(FILL)}")
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        ends_line = np.array([piece.endswith("\n") for piece in pieces])
        fill = None if None in marks else (marks[0] or 0, marks[1] or 0, marks[2] or 0)
        shape = {"max_length": max_length, "infill": infill, "bos": tokenizer.bos_id, "eos": eos}
        return cls(**shape, fill=fill, ends_line=ends_line)  # type: ignore[arg-type]

    def pieces(self, length: int) -> Sequence[int]:
        """Where the stretches begin that a text of so many tokens is looked at by turns."""
        return range(0, max(1, length - 1), self.max_length)

    def look(
        self, text: Tokens, at: int, prompt: int, canvas: int, rng: random.Random
    ) -> tuple[list[int], tuple[int, int]]:
        """Tokens of an example, at most `prompt` before the span that is learnt, which is a canvas at most.

        `text` is without bos, and with eos.
        """
        if rng.random() < self.infill and (found := self._hole(text, at, prompt, canvas, rng)):
            return found
        start, end = self._stretch(len(text), at, prompt - 1 + canvas, rng)
        tokens = [self.bos, *text[start:end].tolist()]
        # What follows an unfinished text is not its end, so the canvas must be full of it.
        last = min(prompt, len(tokens) - 1 if end == len(text) else len(tokens) - canvas)
        first = last if rng.random() < FULL_CONTEXT else 1 + int(rng.random() * last)
        tokens = tokens[: first + canvas]
        return tokens, (first, len(tokens))

    def _stretch(self, length: int, at: int, room: int, rng: random.Random) -> tuple[int, int]:
        start = max(0, min(at + int((rng.random() - 0.5) * room), length - room))
        return start, min(length, start + room)

    def _hole(
        self, text: Tokens, at: int, prompt: int, canvas: int, rng: random.Random
    ) -> tuple[list[int], tuple[int, int]] | None:
        assert self.fill is not None
        body = text[:-1]
        begin, end = self._stretch(len(body), at, prompt - 4, rng)
        breaks = np.flatnonzero(self.ends_line[body[begin:end]]) + begin
        if begin and len(breaks):
            begin = int(breaks[0]) + 1  # not in the middle of a line
        starts = np.concatenate([[begin], breaks[breaks >= begin] + 1])
        ends = np.append(breaks[breaks >= begin], end)
        full = np.flatnonzero(ends - starts > 1)
        if not len(full):
            return None
        line = int(full[int(rng.random() * len(full))])
        start, stop, kind = int(starts[line]), int(ends[line]), rng.random()
        if ONE_LINE <= kind < SOME_LINES:
            more = np.flatnonzero(ends[line:] - start < canvas)
            stop = int(ends[line + int(rng.random() * len(more))]) if len(more) else stop
        elif kind >= SOME_LINES:
            start += int(rng.random() * (stop - start))
            stop = min(end, start + 1 + int(rng.random() * (canvas - 1)))
        stop = min(stop, start + canvas - 1)  # a place is left for the end
        prefix, suffix, middle = self.fill
        before, hole, after = (body[a:b].tolist() for a, b in ((begin, start), (start, stop), (stop, end)))
        tokens = [self.bos, prefix, *before, suffix, *after, middle, *hole, self.eos]
        return tokens, (len(tokens) - len(hole) - 1, len(tokens))
