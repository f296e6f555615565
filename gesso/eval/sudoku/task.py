"""The Sudoku task: 81 digits in, 81 digits out, separated by spaces as in the official recipe; 0 is an empty cell."""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from gesso.errors import InputError
from gesso.eval.sudoku.grid import (
    CELLS,
    FEWEST_CLUES,
    Symmetry,
    is_valid,
    kinship,
    make_puzzle,
    solved_grid,
    solves,
    with_clues,
)
from gesso.eval.sudoku.puzzles import SEVENTEEN, check_puzzle, read_puzzles
from gesso.eval.task import Item, check_draw, split_of


@dataclass(frozen=True, kw_only=True)
class Sudoku:
    """Generated puzzles with a random number of clues from a range, or the puzzles of files (test split only)."""

    clues: tuple[int, int] = (30, 36)
    data: tuple[Path, ...] = ()

    name: ClassVar[str] = "sudoku"
    scores: ClassVar[tuple[str, ...]] = ("exact", "cells", "valid")
    # A full canvas, as in training: a shorter one would lack the end-of-text fill that the model was trained on. An
    # answer has 82 tokens if a digit and its space are one token, and 162 if they are two, as in the real vocabulary.
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({"max_new_tokens": 256})

    def __post_init__(self) -> None:
        low, high = self.clues
        if not FEWEST_CLUES <= low <= high <= 80:
            raise InputError(
                f"clues must be a range within {FEWEST_CLUES} to 80, got {low} to {high}; "
                f"puzzles with fewer clues are too rare to generate, read them from a file such as {SEVENTEEN}"
            )

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        check_draw(split, count)
        return self._from_files(split, count, seed) if self.data else self._generated(split, count, seed)

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return `exact` (the solution), `cells` (share of empty cells filled correctly) and `valid` (no rule broken).

        The solution is unique, so an exact answer also keeps the clues.
        """
        puzzle, solution = item.meta["puzzle"], item.expected.replace(" ", "")
        grid = "".join(output.split())
        empty = [cell for cell in CELLS if puzzle[cell] == "0"]
        right = sum(grid[cell : cell + 1] == solution[cell] for cell in empty)
        return {
            "exact": float(grid == solution),
            "cells": right / len(empty) if empty else float(grid == solution),
            "valid": float(is_valid(grid)),
        }

    def stands(self, item: Item, output: str) -> bool:
        return solves("".join(output.split()), item.meta["puzzle"])

    def again(self, item: Item, seed: int, attempt: int) -> tuple[Item, Callable[[str], str]]:
        shown, back = transformed(item.meta["puzzle"], seed, attempt)
        return replace(item, prompt=spaced(shown)), lambda output: back("".join(output.split()))

    def _generated(self, split: str, count: int, seed: int) -> Iterator[Item]:
        for n in range(count):
            rng = random.Random(f"sudoku {split} {seed} {n}")
            clues = rng.randint(*self.clues)
            puzzle, solution = draw(split, clues, rng)
            yield _item(f"{split}/{seed}/{n}", with_clues(puzzle, solution, clues, rng), solution)

    def _from_files(self, split: str, count: int, seed: int) -> Iterator[Item]:
        if split != "test":
            raise InputError(f"puzzle files are for the test split, not for {split}")
        rows = [(path, *row) for path in self.data for row in read_puzzles(path)]
        if count > len(rows):
            raise InputError(f"the files have {len(rows)} puzzles, but {count} were requested; lower the count")
        for path, number, puzzle, given in random.Random(f"sudoku {seed}").sample(rows, count):
            grid, solution = check_puzzle(puzzle, given, f"{path}:{number}")
            yield _item(f"{path.name}:{number}", grid, solution)


def draw(split: str, clues: int, rng: random.Random) -> tuple[str, str]:
    """Return a puzzle of at most `clues` clues, and its solution, whose symmetries all belong to that split."""
    while True:
        solution = solved_grid(rng)
        if split_of(kinship(solution)) == split and (puzzle := make_puzzle(solution, clues, rng)):
            return puzzle, solution


def transformed(puzzle: str, seed: int, attempt: int) -> tuple[str, Callable[[str], str]]:
    """Return the puzzle under a random symmetry for a retry, and the function that transforms an answer back.

    By the rules it is the same puzzle, but the model may solve one form and not the other. A retry with other noise
    alone may repeat the mistake.
    """
    symmetry = Symmetry.draw(random.Random(f"sudoku attempt {seed} {attempt}"))

    def back(answer: str) -> str:
        return symmetry.back(answer) if re.fullmatch(r"[1-9]{81}", answer) else answer

    return symmetry(puzzle), back


def spaced(grid: str) -> str:
    return " ".join(grid)


def _item(name: str, puzzle: str, solution: str) -> Item:
    return Item(name=name, prompt=spaced(puzzle), expected=spaced(solution), meta={"puzzle": puzzle})
