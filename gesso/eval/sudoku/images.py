"""The task of Sudokus in pictures: the model reads a picture of a puzzle and writes its solution."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
            puzzle = item.meta["puzzle"]
            drawing = Drawing(puzzle, item.name, held_out=split != "train")
            yield replace(item, expected=f"{puzzle}\n{item.expected}", draw=drawing)

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return `solved` (the solution), `grid read` (every cell right) and `cells read` (the share of right cells).

        The output is the grid that the model read, a line break, and its answer.
        """
        (read, _, answer), (puzzle, _, solution) = (text.partition("\n") for text in (output, item.expected))
        right = sum(read[cell : cell + 1] == puzzle[cell] for cell in CELLS)
        return {
            "solved": float(answer.split() == solution.split()),
            "grid read": float(read == puzzle),
            "cells read": right / len(puzzle),
        }


@dataclass(frozen=True)
class Drawing:
    """A picture of a puzzle in a random style, drawn when it is called."""

    puzzle: str
    seed: str
    held_out: bool = True  # whether its style is one of those that training does not use

    def __call__(self) -> "PIL.Image.Image":
        from gesso.eval.sudoku.pictures import draw_picture, draw_style

        rng = random.Random(f"sudoku image {self.seed}")
        return draw_picture(self.puzzle, draw_style(rng, held_out=self.held_out), rng)
