"""The task of Sudokus in pictures: the model reads a picture of a puzzle and writes its solution.

gesso eval examples.sudoku_images.task:SudokuImages -m gesso-sudoku --count 1000
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import PIL.Image

import gesso
from examples.sudoku_images.pictures import Style, draw_picture, draw_style
from gesso.eval import Item, Sudoku
from gesso.eval.sudoku.reading import CELLS, puzzle_prompt, read_grid


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
            yield replace(item, expected=f"{puzzle}\n{item.expected}", ask=drawing)

    def read(self, g: gesso.Gesso, item: Item, result: gesso.Result) -> str:
        """Return the grid that the model sees in the picture, a line break, and its answer."""
        assert isinstance(item.ask, Drawing)
        return f"{read_grid(g, item.ask.image(g))}\n{result.text}"

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return `solved` (the solution), `grid read` (all cells are right) and `cells read` (the share that is)."""
        (read, _, answer), (puzzle, _, solution) = (text.partition("\n") for text in (output, item.expected))
        right = sum(read[cell : cell + 1] == puzzle[cell] for cell in range(CELLS))
        return {
            "solved": float(answer.split() == solution.split()),
            "grid read": float(read == puzzle),
            "cells read": right / CELLS,
        }


@dataclass(frozen=True)
class Drawing:
    """A picture of a puzzle in a random style, and the prompt that shows it to a model."""

    puzzle: str
    seed: str
    held_out: bool = True  # whether its style is one of those that training does not use

    def picture(self, **changes: Any) -> PIL.Image.Image:
        """Return the picture. `changes` replace values of its style."""
        style, rng = self._style()
        return draw_picture(self.puzzle, replace(style, **changes), rng)

    @property
    def style(self) -> Style:
        return self._style()[0]

    def _style(self) -> tuple[Style, random.Random]:
        """Return the style, and the generator of the digits' jitter and of the noise."""
        rng = random.Random(f"sudoku image {self.seed}")
        return draw_style(rng, held_out=self.held_out), rng

    def image(self, g: gesso.Gesso) -> gesso.Image:
        return g.read_image(self.picture(), where=self.seed)

    def __call__(self, g: gesso.Gesso) -> gesso.Prompt:
        return puzzle_prompt(g, self.image(g), self.seed)
