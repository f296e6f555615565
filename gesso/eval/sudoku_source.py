"""Sudoku examples for training, made as they are asked for: no two alike, none of them stored."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.eval.sudoku_bank import Bank, draw
from gesso.train.data import Example
from gesso.train.recipe import DataSettings


class SudokuSource:
    """What `[data] task = "sudoku"` in a recipe stands for; its one file is a bank of puzzles."""

    def __init__(self, settings: DataSettings, tokenizer: Tokenizer, eos: int) -> None:
        if len(settings.files) != 1:
            raise InputError(f"the task sudoku reads one bank of puzzles, got {len(settings.files)} files")
        self.bank, self.seed, self.eos = Bank.load(Path(settings.files[0])), settings.seed, eos
        self.name = settings.files[0]
        # The first digit of a grid, and any other: they may differ in the space before them.
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
            rows = self._tokens(*draw(self.bank, numbers, self.seed))
            span = (rows.shape[1] - 82, rows.shape[1])
            yield tuple(
                Example(tuple(row), (span,), self.name, number)
                for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)
            )
            start += stride

    def _tokens(self, puzzle: NDArray[np.uint8], solution: NDArray[np.uint8]) -> NDArray[np.int64]:
        """[N, 164]: bos and the puzzle, then the solution and eos."""
        columns = [np.full((len(puzzle), 1), self.bos)] if self.bos is not None else []
        for grid in (puzzle, solution):
            columns += [self.first[grid[:, :1]], self.rest[grid[:, 1:]]]
        return np.concatenate([*columns, np.full((len(puzzle), 1), self.eos)], axis=1)


def _one(tokenizer: Tokenizer, text: str) -> int:
    """The token of a digit, seen after another one."""
    _, *ids = tokenizer.encode("0" + text, bos=False)
    if len(ids) != 1:
        raise InputError(f"this tokenizer writes {text!r} in {len(ids)} tokens, and a cell must be one")
    return ids[0]
