"""Sudoku training rows: generated puzzles of the train split, with their solutions."""

import random
from collections.abc import Iterator

from gesso.eval.sudoku.grid import Symmetry, with_clues
from gesso.eval.sudoku.task import Sudoku, draw, spaced
from gesso.eval.task import check_draw

# Rows made from one generated puzzle, each under its own symmetry and with its own clues. Generating every puzzle anew
# would give 40 rows per second instead of 5,000.
ROWS_PER_GRID = 256


def training_rows(count: int, seed: int, clues: tuple[int, int] = (30, 36)) -> Iterator[dict[str, str]]:
    check_draw("train", count)
    low, high = Sudoku(clues=clues).clues  # checked
    for n in range(count):
        if n % ROWS_PER_GRID == 0:
            rng = random.Random(f"sudoku rows {seed} {n}")
            base, solution = draw("train", low, rng)
        symmetry, total = Symmetry.draw(rng), rng.randint(low, high)
        puzzle = with_clues(base, solution, total, rng)
        yield {"prompt": spaced(symmetry(puzzle)), "completion": spaced(symmetry(solution))}
