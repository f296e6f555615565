"""Sudoku grids: solver, generator, symmetries, files.

A grid is a string of 81 characters, row by row, 0 for an empty cell.

The solver keeps nine integers of 81 bits, one a digit: bit i says that the digit may still stand in cell i. One `&`
strikes a digit out of twenty cells, and nine `|` find every cell with a single candidate at once.
"""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from gesso.errors import InputError
from gesso.files import read_bytes

DIGITS = "123456789"
FULL = (1 << 81) - 1
CELLS = range(81)
ROWS = [[9 * r + c for c in range(9)] for r in range(9)]
COLUMNS = [[9 * r + c for r in range(9)] for c in range(9)]
BOXES = [[27 * (b // 3) + 3 * (b % 3) + 9 * (i // 3) + i % 3 for i in range(9)] for b in range(9)]
UNITS = {f"{kind} {n + 1}": unit for kind, units in
         (("row", ROWS), ("column", COLUMNS), ("box", BOXES)) for n, unit in enumerate(units)}  # fmt: skip
MASKS = [sum(1 << cell for cell in unit) for unit in UNITS.values()]
# All cells but those that a digit in this cell forbids.
KEEP = [FULL ^ sum(1 << i for i in CELLS if i != cell and any({i, cell} <= {*u} for u in UNITS.values()))
        for cell in CELLS]  # fmt: skip

# Time a puzzle takes on one core: 25 ms from 24 clues up, 0.3 s at 22, 4 s at 20. Fewer come from files.
FEWEST_CLUES = 20
SEVENTEEN = Path(__file__).with_name("sudoku17.txt")  # those with the fewest clues there can be, for testing
# A dug grid serves so many training rows, each a symmetry with clues of its own: 5,000 rows a second instead of 40.
ROWS_A_GRID = 256


# --- solving --------------------------------------------------------------------------------------------------------


def solutions(grid: str, limit: int = 2, rng: random.Random | None = None) -> list[str]:
    """Up to `limit` solutions, the second of which tells that there are several; `rng` shuffles their order."""
    found: list[str] = []
    for planes in _search(*_board(grid), rng):
        found.append(_text(planes))
        if len(found) == limit:
            break
    return found


def _board(grid: str) -> tuple[list[int], int]:
    """The candidates that the clues leave by themselves, and the mask of the cells they fill."""
    at = [0] * 10
    allowed = [FULL] * 10
    for cell, digit in enumerate(map(int, grid)):
        if digit:
            at[digit] |= 1 << cell
            allowed[digit] &= KEEP[cell]
    filled = sum(at)
    return [(FULL ^ filled | at[d]) & allowed[d] for d in range(1, 10)], filled


def _text(planes: list[int]) -> str:
    return "".join(next(DIGITS[d] for d in range(9) if planes[d] >> cell & 1) for cell in CELLS)


def _search(planes: list[int], done: int, rng: random.Random | None = None) -> Iterator[list[int]]:
    """Every way to fill the board; `rng` shuffles the order of guesses."""
    guesses = _settle(planes, done)
    if guesses is None:
        return
    if not guesses:
        yield planes
        return
    if rng:
        rng.shuffle(guesses)
    done = _done(planes)
    for digit, bit in guesses:
        yield from _search([p & ~bit | (bit if d == digit else 0) for d, p in enumerate(planes)], done, rng)


def _done(planes: list[int]) -> int:
    """Cells with one candidate. After `_settle`, all of them have told their peers."""
    one = two = 0
    for plane in planes:
        two |= one & plane
        one |= plane
    return one & ~two


def _settle(planes: list[int], done: int) -> list[tuple[int, int]] | None:
    """Follow what is forced; then the guesses at the most constrained place, none if solved, None if impossible."""
    while True:
        one = two = three = 0
        for plane in planes:
            three |= two & plane
            two |= one & plane
            one |= plane
        if one != FULL:
            return None
        if singles := one & ~two & ~done:
            for d in range(9):
                left = planes[d] & singles
                while left:
                    bit = left & -left
                    left ^= bit
                    planes[d] &= KEEP[bit.bit_length() - 1]
            done |= singles
            continue
        if done == FULL:
            return []
        pair: list[tuple[int, int]] = []
        placed = 0
        for d, plane in enumerate(planes):
            for unit in MASKS:
                spots = plane & unit
                rest = spots & (spots - 1)
                if not spots:
                    return None
                if not rest:
                    if not spots & (done | placed):  # the one place left for this digit
                        placed |= spots
                        planes[:] = [p & ~spots for p in planes]
                        planes[d] = plane
                elif not pair and not rest & (rest - 1):  # two places: as good as a cell with two candidates
                    pair = [(d, spots ^ rest), (d, rest)]
        if placed:
            continue
        if cells := two & ~three:
            bit = cells & -cells
        elif pair:
            return pair
        else:
            bit = min((1 << i for i in CELLS if not done >> i & 1), key=lambda b: sum(1 for p in planes if p & b))
        return [(d, bit) for d in range(9) if planes[d] & bit]


def parse_puzzle(text: str) -> tuple[str, str]:
    """A puzzle somebody typed, as a grid, and its one solution. Blanks are 0 or a dot; white space does not count."""
    grid = re.sub(r"\s", "", text).replace(".", "0")
    if wrong := sorted(set(grid) - set("0" + DIGITS)):
        raise InputError(f"a Sudoku has digits, and 0 or . for empty cells; found {' '.join(map(repr, wrong))}")
    if len(grid) != 81:
        raise InputError(f"a Sudoku has 81 cells, got {len(grid)}")
    for name, unit in UNITS.items():
        for digit in DIGITS:
            if len(cells := [cell for cell in unit if grid[cell] == digit]) > 1:
                where = " and ".join(f"row {cell // 9 + 1} column {cell % 9 + 1}" for cell in cells)
                raise InputError(f"contradictory clues: {digit} stands more than once in {name} ({where})")
    found = solutions(grid)
    if len(found) != 1:
        raise InputError("this Sudoku has several solutions; add clues" if found else "this Sudoku has no solution")
    return grid, found[0]


def is_valid(grid: str) -> bool:
    """A full grid that breaks no rule."""
    return len(grid) == 81 and all({grid[cell] for cell in unit} == set(DIGITS) for unit in UNITS.values())


def solves(grid: str, puzzle: str) -> bool:
    """Whether a full grid breaks no rule and keeps the clues: where there is one solution, this tells it."""
    return is_valid(grid) and all(clue in ("0", digit) for clue, digit in zip(puzzle, grid, strict=True))


# --- making ---------------------------------------------------------------------------------------------------------


def solved_grid(rng: random.Random) -> str:
    """A random full grid: the boxes of the diagonal do not see each other, so any filling of them can be completed."""
    grid = ["0"] * 81
    for box in (BOXES[0], BOXES[4], BOXES[8]):
        for cell, digit in zip(box, rng.sample(DIGITS, 9), strict=True):
            grid[cell] = digit
    return _text(next(_search(*_board("".join(grid)), rng)))


def make_puzzle(solution: str, clues: int, rng: random.Random) -> str | None:
    """At most `clues` cells of a solved grid that leave it the only solution; None if none were found in many tries.

    Digging alone ends at 24 clues or so. A few cells put back and dug anew, the better of the two kept, goes further.
    """
    best = _dig(solution, solution, rng)
    for _ in range(1000):
        if _count(best) <= clues:
            return best
        again = _dig(with_clues(best, solution, _count(best) + 6, rng), solution, rng)
        best = min(again, best, key=_count)
    return None


def _dig(puzzle: str, solution: str, rng: random.Random) -> str:
    """Take away, in random order, every clue that the others make superfluous."""
    grid = list(puzzle)
    for cell in rng.sample([cell for cell in CELLS if puzzle[cell] != "0"], _count(puzzle)):
        grid[cell] = "0"
        planes, done = _board("".join(grid))
        planes[int(solution[cell]) - 1] &= ~(1 << cell)  # is there a solution with another digit here?
        if next(_search(planes, done), None) is not None:
            grid[cell] = solution[cell]
    return "".join(grid)


def _count(puzzle: str) -> int:
    return 81 - puzzle.count("0")


def with_clues(puzzle: str, solution: str, clues: int, rng: random.Random) -> str:
    """The puzzle with random clues added up to a number: more clues leave it its one solution."""
    empty = [cell for cell in CELLS if puzzle[cell] == "0"]
    added = set(rng.sample(empty, clues - _count(puzzle)))
    return "".join(solution[cell] if cell in added else puzzle[cell] for cell in CELLS)


@dataclass(frozen=True)
class Symmetry:
    """A change that makes a puzzle of a puzzle: cell i of the new grid is cell `cells[i]` of the old, relabelled."""

    cells: tuple[int, ...]
    digits: Mapping[int, int]

    @classmethod
    def draw(cls, rng: random.Random) -> "Symmetry":
        rows, columns = (
            [3 * band + line for band in rng.sample(range(3), 3) for line in rng.sample(range(3), 3)] for _ in range(2)
        )
        down, right = (9, 1) if rng.random() < 0.5 else (1, 9)
        labels = "".join(rng.sample(DIGITS, 9))
        return cls(tuple(down * r + right * c for r in rows for c in columns), str.maketrans(DIGITS, labels))

    def __call__(self, grid: str) -> str:
        return "".join(itemgetter(*self.cells)(grid)).translate(self.digits)

    def back(self, grid: str) -> str:
        """The old grid of a new one."""
        labels = {new: old for old, new in self.digits.items()}
        old = dict(zip(self.cells, grid.translate(labels), strict=True))
        return "".join(old[cell] for cell in CELLS)


def kinship(solution: str) -> str:
    """A name that a solved grid shares with all its symmetries, so that no split tears them apart.

    Two rows of a band make a permutation of the digits. Relabelling conjugates it, columns do not enter, and exchanging
    the rows inverts it: its cycle lengths stay. Bands and rows are sorted; a transposition swaps the two halves.
    """

    def cycles(a: list[int], b: list[int]) -> str:
        to = {solution[i]: solution[j] for i, j in zip(a, b, strict=True)}
        lengths = []
        while to:
            start = digit = min(to)
            length = 0
            while True:
                digit, length = to.pop(digit), length + 1
                if digit == start:
                    break
            lengths.append(length)
        return "".join(map(str, sorted(lengths)))

    def half(lines: list[list[int]]) -> str:
        bands = [lines[i : i + 3] for i in (0, 3, 6)]
        return "/".join(sorted(",".join(sorted((cycles(a, b), cycles(b, c), cycles(a, c)))) for a, b, c in bands))

    return " ".join(sorted((half(ROWS), half(COLUMNS))))


# --- files ----------------------------------------------------------------------------------------------------------


def read_puzzles(path: Path) -> Iterator[tuple[int, str, str | None]]:
    """The puzzles of a file, as `puzzles_in` finds them."""
    return puzzles_in(read_text(path), str(path))


def read_text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read puzzles from {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read puzzles from {path}: {error}") from None


def puzzles_in(text: str, name: str) -> Iterator[tuple[int, str, str | None]]:
    """(line number, puzzle, solution if the line has one). Other columns, such as a name or a rating, are passed over.

    Columns are parted by commas or white space; empty lines, lines that begin with # and a heading are skipped. `name`
    is where the text is from, for what is said of a bad line.
    """
    for number, line in enumerate(text.splitlines(), 1):
        columns = re.split(r"[,;\s]+", line.strip())
        if len(columns) == 81 and all(len(column) == 1 for column in columns):
            columns = ["".join(columns)]
        grids = [column.replace(".", "0") for column in columns if re.fullmatch(r"[0-9.]{81}", column)]
        if grids:
            yield number, grids[0], grids[1] if len(grids) > 1 else None
        elif line.strip() and not line.startswith("#") and not (number == 1 and not re.search(r"\d", line)):
            raise InputError(f"{name}:{number}: no puzzle of 81 digits or dots in this line")
