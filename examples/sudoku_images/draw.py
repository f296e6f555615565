"""`python -m examples.sudoku_images.draw FILE --number 71`: save a picture of the task, and print its puzzle.

`gesso/demo/puzzle.jpg` is number 71: written digits, a slanted grid, noise and uneven light.
"""

import argparse
from itertools import islice
from pathlib import Path

from examples.sudoku_images.task import Drawing, SudokuImages


def held_out(number: int) -> Drawing:
    """Return a picture of the task's test split, which has other puzzles and styles than training."""
    (item,) = islice(SudokuImages().items("test", number + 1, seed=0), number, None)
    assert isinstance(item.ask, Drawing)
    return item.ask


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description="Draw a held-out picture.")
    parser.add_argument("file", type=Path, help="file to write, such as puzzle.jpg")
    parser.add_argument("--number", type=int, default=0, help="number of the picture in the test split")
    options = parser.parse_args()
    drawing = held_out(options.number)
    drawing.picture().save(options.file)
    print(drawing.puzzle)
