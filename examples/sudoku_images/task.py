"""The tasks of Sudokus in pictures: the model reads a picture of a puzzle and writes its solution.

gesso eval examples.sudoku_images.task:SudokuImages -m gesso-sudoku --count 1000
gesso eval examples.sudoku_images.task:SudokuFonts -m gesso-sudoku --count 1000 --data data/fonts/held-out
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import PIL.Image

import gesso
from examples.sudoku_images.appearance import Style, draw_style
from examples.sudoku_images.fonts import fonts_in
from examples.sudoku_images.pictures import draw_picture
from gesso.errors import InputError
from gesso.eval import Item, Sudoku
from gesso.eval.sudoku.reading import CELLS, puzzle_prompt, read_grid


@dataclass(frozen=True, kw_only=True)
class SudokuImages:
    """Puzzles of the task `sudoku`, typed in the font that comes with Pillow, or written."""

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


@dataclass(frozen=True, kw_only=True)
class SudokuFonts(SudokuImages):
    """The puzzles of `SudokuImages`, typed in the fonts of a directory in turn."""

    data: tuple[Path, ...] = ()

    name: ClassVar[str] = "sudoku_fonts"

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        if len(self.data) != 1:
            raise InputError(f"expected one directory of fonts, got {len(self.data)}; give --data data/fonts/held-out")
        fonts = fonts_in(self.data[0])
        for number, item in enumerate(super().items(split, count, seed)):
            assert isinstance(item.ask, Drawing)
            yield replace(item, ask=replace(item.ask, font=fonts[number % len(fonts)]))


@dataclass(frozen=True)
class Drawing:
    """A picture of a puzzle in a random style, and the prompt that shows it to a model."""

    puzzle: str
    seed: str
    held_out: bool = True  # whether its digit size and ink are from the held-out bands
    font: str | None = None  # a file, to type all digits in this font

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
        style = draw_style(rng, held_out=self.held_out)
        return (replace(style, font=self.font, written=False) if self.font else style), rng

    def image(self, g: gesso.Gesso) -> gesso.Image:
        return g.read_image(self.picture(), where=self.seed)

    def __call__(self, g: gesso.Gesso) -> gesso.Prompt:
        return puzzle_prompt(g, self.image(g), self.seed)
