"""Sudoku examples for training, generated on demand from a bank of puzzles."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from examples.sudoku.bank import Bank, draw
from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.train.data import Example
from gesso.train.recipe import DataSettings


class SudokuSource:
    """The `data.source` of the Sudoku recipes. Its only file is a bank of puzzles."""

    clues: ClassVar[tuple[int, int]] = (17, 36)
    plain: ClassVar[float] = 0.75  # share of the puzzles that get no more clues than they need

    def __init__(self, settings: DataSettings, tokenizer: Tokenizer, eos: int) -> None:
        if len(settings.files) != 1:
            raise InputError(f"data.files must name one bank of puzzles, got {len(settings.files)} files")
        self.bank, self.seed, self.eos = Bank.load(Path(settings.files[0])), settings.seed, eos
        self.name = settings.files[0]
        # Tokens of the first digit of a grid and of the others, which follow a space.
        self.bos, self.first, self.rest = (
            tokenizer.bos_id,
            *(np.array([_one(tokenizer, text + digit) for digit in "0123456789"]) for text in ("", " ")),
        )

    def batches(
        self, batch_size: int, start: int, rank: int, world: int, *, stride: int, canvas_lengths: Sequence[int]
    ) -> Iterator[tuple[Example, ...]]:
        share = batch_size // world
        while True:
            first = start * batch_size + rank * share
            numbers = np.arange(first, first + share)
            rows = self._tokens(*draw(self.bank, numbers, self.seed, clues=self.clues, plain=self.plain))
            span = (rows.shape[1] - 82, rows.shape[1])
            yield tuple(
                Example(tuple(row), (span,), self.name, number)
                for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)
            )
            start += stride

    def _tokens(self, puzzle: NDArray[np.uint8], solution: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return [N, 164]: bos, puzzle, solution, eos."""
        columns = [np.full((len(puzzle), 1), self.bos)] if self.bos is not None else []
        for grid in (puzzle, solution):
            columns += [self.first[grid[:, :1]], self.rest[grid[:, 1:]]]
        return np.concatenate([*columns, np.full((len(puzzle), 1), self.eos)], axis=1)


class EasySudokuSource(SudokuSource):
    """The same with as many clues as the puzzles that `gesso eval sudoku` generates."""

    clues = (30, 36)
    plain = 0.0


def _one(tokenizer: Tokenizer, text: str) -> int:
    """Return the only token of a digit that follows another digit."""
    _, *ids = tokenizer.encode("0" + text, bos=False)
    if len(ids) != 1:
        raise InputError(
            f"this tokenizer encodes {text!r} as {len(ids)} tokens; the Sudoku source needs one token per cell"
        )
    return ids[0]
