"""Views of a long text as one example: a section of it to continue, or a section with a hole to fill.

A text row is a document, which may be longer than an example. A new view is drawn each time the text comes up, as a
function of the seed and the number of the example alone.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gesso.chat.tokenizer import FILL, Tokenizer
from gesso.errors import InputError

Tokens = npt.NDArray[np.int32]
View = tuple[list[int], tuple[int, int]]  # tokens, and the span to train on

FULL_CONTEXT = 0.5  # share of continuations with as much context as possible; the others start anywhere
# A uniform number below the first makes the hole one line, below the second several lines, otherwise any run of tokens.
ONE_LINE = 0.6
SOME_LINES = 0.85


@dataclass(frozen=True, kw_only=True)
class Viewer:
    max_length: int
    infill: float  # share of the texts shown with a hole
    bos: int
    eos: int
    fill: tuple[int, ...]  # the tokens before prefix, suffix and middle, where the tokenizer has them
    ends_line: npt.NDArray[np.bool_]  # by token

    @classmethod
    def create(cls, tokenizer: Tokenizer, eos: int, max_length: int, infill: float) -> "Viewer":
        if tokenizer.bos_id is None:
            raise InputError("data.cut and data.infill need a tokenizer with a bos token")
        mark_ids = map(tokenizer.id_of, FILL)
        fill = tuple(token for token in mark_ids if token is not None)
        if infill and len(fill) < len(FILL):
            raise InputError(f"data.infill needs a tokenizer that has {', '.join(FILL)}")
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        ends_line = np.array([piece.endswith("\n") for piece in pieces])
        return cls(max_length=max_length, infill=infill, bos=tokenizer.bos_id, eos=eos, fill=fill, ends_line=ends_line)

    def starts(self, length: int) -> Sequence[int]:
        """Return where the sections of a text of `length` tokens start."""
        return range(0, max(1, length - 1), self.max_length)

    def view(self, text: Tokens, start: int, prompt: int, canvas: int, rng: random.Random) -> View:
        """Return a view near `start`: at most `prompt` tokens, then a span to train on of at most `canvas` tokens.

        `text` has no bos, but an eos.
        """
        if rng.random() < self.infill and (hole := self._hole(text, start, prompt, canvas, rng)):
            return hole
        begin, end = self._section(len(text), start, prompt - 1 + canvas, rng)
        tokens = [self.bos, *text[begin:end].tolist()]
        # A section that stops before the end of the text must fill its canvas: eos may only follow the real end.
        last = min(prompt, len(tokens) - 1 if end == len(text) else len(tokens) - canvas)
        first = last if rng.random() < FULL_CONTEXT else 1 + int(rng.random() * last)
        tokens = tokens[: first + canvas]
        return tokens, (first, len(tokens))

    def _section(self, length: int, start: int, size: int, rng: random.Random) -> tuple[int, int]:
        begin = max(0, min(start + int((rng.random() - 0.5) * size), length - size))
        return begin, min(length, begin + size)

    def _hole(self, text: Tokens, start: int, prompt: int, canvas: int, rng: random.Random) -> View | None:
        body = text[:-1]
        begin, end = self._section(len(body), start, prompt - 4, rng)
        breaks = np.flatnonzero(self.ends_line[body[begin:end]]) + begin
        if begin and len(breaks):
            begin = int(breaks[0]) + 1  # do not start in the middle of a line
        line_starts = np.concatenate([[begin], breaks[breaks >= begin] + 1])
        line_ends = np.append(breaks[breaks >= begin], end)
        full = np.flatnonzero(line_ends - line_starts > 1)
        if not len(full):
            return None
        line = int(full[int(rng.random() * len(full))])
        first = int(line_starts[line])
        stop = int(line_ends[line])
        kind = rng.random()
        if ONE_LINE <= kind < SOME_LINES:
            fitting = np.flatnonzero(line_ends[line:] - first < canvas)  # lines from the first on
            if len(fitting):
                stop = int(line_ends[line + int(rng.random() * len(fitting))])
        elif kind >= SOME_LINES:
            first += int(rng.random() * (stop - first))
            stop = min(end, first + 1 + int(rng.random() * (canvas - 1)))
        stop = min(stop, first + canvas - 1)  # leave one position for the eos
        prefix, suffix, middle = self.fill
        before = body[begin:first].tolist()
        hole = body[first:stop].tolist()
        after = body[stop:end].tolist()
        tokens = [self.bos, prefix, *before, suffix, *after, middle, *hole, self.eos]
        return tokens, (len(tokens) - len(hole) - 1, len(tokens))
