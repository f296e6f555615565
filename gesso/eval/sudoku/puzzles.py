"""Sudoku puzzles in files and in typed text."""

import re
from collections.abc import Iterator
from pathlib import Path

from gesso.errors import InputError
from gesso.eval.sudoku.grid import parse_puzzle
from gesso.files import read_bytes

SEVENTEEN = Path(__file__).with_name("sudoku17.txt")  # 17 clues, the fewest possible; for testing only


def read_text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read puzzles from {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read puzzles from {path}: {error}") from None


def find_puzzles(text: str, name: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield (line number, puzzle, solution if the line has one). Errors call the text `name`.

    Columns are separated by commas, semicolons or white space. Columns that are not grids, empty lines, lines that
    begin with #, and a heading are ignored.
    """
    for number, line in enumerate(text.splitlines(), 1):
        columns = re.split(r"[,;\s]+", line.strip())
        if len(columns) == 81 and all(len(column) == 1 for column in columns):
            columns = ["".join(columns)]
        grids = [column.replace(".", "0") for column in columns if re.fullmatch(r"[0-9.]{81}", column)]
        if grids:
            yield number, grids[0], grids[1] if len(grids) > 1 else None
        elif line.strip() and not line.startswith("#") and not (number == 1 and not re.search(r"\d", line)):
            raise InputError(f"{name}:{number}: no puzzle found; expected 81 digits or dots")


def read_puzzles(path: Path) -> Iterator[tuple[int, str, str | None]]:
    """Yield the puzzles of a file like `find_puzzles`."""
    return find_puzzles(read_text(path), str(path))


def check_puzzle(puzzle: str, given: str | None = None, where: str = "") -> tuple[str, str]:
    """Return the grid and its only solution. Reject a `given` solution that differs. Errors begin with `where`."""
    try:
        grid, solution = parse_puzzle(puzzle)
        if given not in (None, solution):
            raise InputError("the solution in this line does not solve its puzzle; correct or remove it")
    except InputError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from None
    return grid, solution
