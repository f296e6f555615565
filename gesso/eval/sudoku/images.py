"""The task of Sudokus in pictures: the model reads a picture of a puzzle and writes its solution."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from gesso.eval.sudoku.grid import CELLS
from gesso.eval.sudoku.task import Sudoku
from gesso.eval.task import Item

if TYPE_CHECKING:
    import PIL.Image


@dataclass(frozen=True, kw_only=True)
class SudokuImages:
    """Puzzles of the task `sudoku`, drawn in styles that training does not use."""

    clues: tuple[int, int] = (30, 36)

    name: ClassVar[str] = "sudoku_images"
    scores: ClassVar[tuple[str, ...]] = ("solved", "grid read", "cells read")
    options: ClassVar[Mapping[str, Any]] = Sudoku.options

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        for item in Sudoku(clues=self.clues).items(split, count, seed):
            yield replace(item, draw=_drawing(item.meta["puzzle"], item.name, held_out=split != "train"))

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return `solved` (the solution), `grid read` (every cell right) and `cells read` (the share of right cells).

        The output is the grid that the model read, a line break, and its answer.
        """
        read, _, answer = output.partition("\n")
        puzzle = item.meta["puzzle"]
        right = sum(read[cell : cell + 1] == puzzle[cell] for cell in CELLS)
        return {
            "solved": float("".join(answer.split()) == item.expected.replace(" ", "")),
            "grid read": float(read == puzzle),
            "cells read": right / len(puzzle),
        }


def _drawing(puzzle: str, name: str, held_out: bool) -> "Callable[[], PIL.Image.Image]":
    return partial(drawn, puzzle, f"sudoku image {name}", held_out)


def drawn(puzzle: str, seed: str, held_out: bool = True) -> "PIL.Image.Image":
    """Return a picture of a puzzle in a random style."""
    from gesso.eval.sudoku.pictures import draw_picture, draw_style

    rng = random.Random(seed)
    return draw_picture(puzzle, draw_style(rng, held_out=held_out), rng)
