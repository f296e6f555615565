"""The Sudoku task: 81 digits in, 81 digits out, parted by spaces as in the official recipe; 0 for an empty cell."""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from gesso.errors import InputError
from gesso.eval.sudoku_grid import (
    CELLS,
    FEWEST_CLUES,
    ROWS_A_GRID,
    SEVENTEEN,
    Symmetry,
    is_valid,
    kinship,
    make_puzzle,
    parse_puzzle,
    read_puzzles,
    solved_grid,
    solves,
    with_clues,
)
from gesso.eval.task import Item, check_draw, split_of


@dataclass(frozen=True, kw_only=True)
class Sudoku:
    """Puzzles of our own with a number of clues drawn from a range, or those of files, which are for testing only."""

    clues: tuple[int, int] = (30, 36)
    data: tuple[Path, ...] = ()

    name: ClassVar[str] = "sudoku"
    scores: ClassVar[tuple[str, ...]] = ("exact", "cells", "valid")
    # A whole canvas, as in training: a shorter one would lack the end-of-text fill the model learnt to see. An answer
    # has 82 tokens where a digit and the space before it are one, 162 where they are two, as in the real vocabulary.
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({"max_new_tokens": 256})

    def __post_init__(self) -> None:
        low, high = self.clues
        if not FEWEST_CLUES <= low <= high <= 80:
            raise InputError(
                f"clues must be a range within {FEWEST_CLUES} to 80, got {low} to {high}; "
                f"puzzles with fewer clues are too rare to generate, read them from a file, such as {SEVENTEEN}"
            )

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        check_draw(split, count)
        return self._from_files(split, count, seed) if self.data else self._made(split, count, seed)

    def score(self, item: Item, output: str) -> dict[str, float]:
        """`exact`: the solution. `cells`: the share of empty cells filled right. `valid`: a grid that breaks no rule.

        The solution is the only one, so what equals it has kept the clues.
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
        shown, back = turned(item.meta["puzzle"], seed, attempt)
        return replace(item, prompt=spaced(shown)), lambda output: back("".join(output.split()))

    def training_rows(self, count: int, seed: int) -> Iterator[dict[str, str]]:
        check_draw("train", count)
        if self.data:
            raise InputError("puzzle files are for testing; training rows are generated: leave data out")
        for n in range(count):
            if n % ROWS_A_GRID == 0:
                rng = random.Random(f"sudoku rows {seed} {n}")
                base, base_solution = _draw("train", self.clues[0], rng)
            turn, clues = Symmetry.draw(rng), rng.randint(*self.clues)
            puzzle = with_clues(base, base_solution, clues, rng)
            yield {"prompt": spaced(turn(puzzle)), "completion": spaced(turn(base_solution))}

    def _made(self, split: str, count: int, seed: int) -> Iterator[Item]:
        for n in range(count):
            rng = random.Random(f"sudoku {split} {seed} {n}")
            clues = rng.randint(*self.clues)
            puzzle, solution = _draw(split, clues, rng)
            yield _item(f"{split}/{seed}/{n}", with_clues(puzzle, solution, clues, rng), solution)

    def _from_files(self, split: str, count: int, seed: int) -> Iterator[Item]:
        if split != "test":
            raise InputError(f"puzzle files are for testing, not for the {split} split")
        rows = [(path, *row) for path in self.data for row in read_puzzles(path)]
        if count > len(rows):
            raise InputError(f"{count} puzzles were asked for, the files have {len(rows)}; lower the count")
        for path, number, puzzle, given in random.Random(f"sudoku {seed}").sample(rows, count):
            try:
                _, solution = parse_puzzle(puzzle)
            except InputError as error:
                raise InputError(f"{path}:{number}: {error}") from None
            if given not in (None, solution):
                raise InputError(f"{path}:{number}: the solution in this line is not the puzzle's")
            yield _item(f"{path.name}:{number}", puzzle, solution)


def turned(puzzle: str, seed: int, attempt: int) -> tuple[str, Callable[[str], str]]:
    """A puzzle as the model is shown it at an attempt after the first, and what turns its answer back.

    Rows, columns and digits change places. To the rules that is the same puzzle, but not quite to the model: what it
    did not see one way it may see another, where other noise alone may lead it to the same mistake again.
    """
    symmetry = Symmetry.draw(random.Random(f"sudoku attempt {seed} {attempt}"))

    def back(answer: str) -> str:
        return symmetry.back(answer) if re.fullmatch(r"[1-9]{81}", answer) else answer

    return symmetry(puzzle), back


def spaced(grid: str) -> str:
    return " ".join(grid)


def _item(name: str, puzzle: str, solution: str) -> Item:
    return Item(name=name, prompt=spaced(puzzle), expected=spaced(solution), meta={"puzzle": puzzle})


def _draw(split: str, clues: int, rng: random.Random) -> tuple[str, str]:
    """A puzzle of at most `clues` clues, and its solution, a grid whose kin are all of that split."""
    while True:
        solution = solved_grid(rng)
        if split_of(kinship(solution)) == split and (puzzle := make_puzzle(solution, clues, rng)):
            return puzzle, solution
