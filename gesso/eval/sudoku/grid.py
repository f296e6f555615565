"""Sudoku grids: solver, generator and symmetries.

A grid is a string of 81 characters, row by row, with 0 for an empty cell.

The solver keeps a plane for each digit: an 81-bit integer whose bit i is set if the digit is still possible in cell i.
One `&` removes a digit from the 20 peers of a cell, and nine `|` find all cells with a single candidate.
"""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from gesso.errors import InputError

DIGITS = "123456789"
FULL = (1 << 81) - 1
CELLS = range(81)
ROWS = [[9 * r + c for c in range(9)] for r in range(9)]
COLUMNS = [[9 * r + c for r in range(9)] for c in range(9)]
BOXES = [[27 * (b // 3) + 3 * (b % 3) + 9 * (i // 3) + i % 3 for i in range(9)] for b in range(9)]
UNITS = {f"{kind} {n + 1}": unit for kind, units in
         (("row", ROWS), ("column", COLUMNS), ("box", BOXES)) for n, unit in enumerate(units)}  # fmt: skip
MASKS = [sum(1 << cell for cell in unit) for unit in UNITS.values()]
# For each cell, all cells except its peers: the cells in which its digit remains possible.
KEEP = [FULL ^ sum(1 << i for i in CELLS if i != cell and any({i, cell} <= {*u} for u in UNITS.values()))
        for cell in CELLS]  # fmt: skip

# Generating a puzzle on one core takes 25 ms with 24 clues or more, 0.3 s with 22, and 4 s with 20.
FEWEST_CLUES = 20


# --- solving --------------------------------------------------------------------------------------------------------


def solutions(grid: str, limit: int = 2, rng: random.Random | None = None) -> list[str]:
    """Return up to `limit` solutions; two show that a grid is ambiguous. `rng` shuffles their order."""
    grids: list[str] = []
    for planes in _search(*_board(grid), rng):
        grids.append(_text(planes))
        if len(grids) == limit:
            break
    return grids


def _board(grid: str) -> tuple[list[int], int]:
    """Return the planes after removing each clue from its peers, and the mask of the filled cells."""
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
    """Yield the planes of every solution. `rng` shuffles the order of guesses."""
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
    """Return the mask of the cells with one candidate. After `_settle`, their peers no longer have it."""
    at_least_one = at_least_two = 0  # masks of the cells with that many candidates
    for plane in planes:
        at_least_two |= at_least_one & plane
        at_least_one |= plane
    return at_least_one & ~at_least_two


def _settle(planes: list[int], done: int) -> list[tuple[int, int]] | None:
    """Apply forced moves in place. Return guesses at the most constrained place: [] if solved, None if impossible."""
    while True:
        # Masks of the cells with that many candidates.
        at_least_one = at_least_two = at_least_three = 0
        for plane in planes:
            at_least_three |= at_least_two & plane
            at_least_two |= at_least_one & plane
            at_least_one |= plane
        if at_least_one != FULL:
            return None
        if singles := at_least_one & ~at_least_two & ~done:
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
                    if not spots & (done | placed):  # the only place left for this digit
                        placed |= spots
                        planes[:] = [p & ~spots for p in planes]
                        planes[d] = plane
                elif not pair and not rest & (rest - 1):  # two places: as few guesses as a cell with two candidates
                    pair = [(d, spots ^ rest), (d, rest)]
        if placed:
            continue
        if cells := at_least_two & ~at_least_three:
            bit = cells & -cells
        elif pair:
            return pair
        else:
            bit = min((1 << i for i in CELLS if not done >> i & 1), key=lambda b: sum(1 for p in planes if p & b))
        return [(d, bit) for d in range(9) if planes[d] & bit]


def parse_puzzle(text: str) -> tuple[str, str]:
    """Return a typed puzzle as a grid, and its only solution. Empty cells are 0 or a dot; white space is ignored."""
    grid = re.sub(r"\s", "", text).replace(".", "0")
    if wrong := sorted(set(grid) - set("0" + DIGITS)):
        raise InputError(f"a Sudoku has digits, with 0 or . for empty cells; found {' '.join(map(repr, wrong))}")
    if len(grid) != 81:
        raise InputError(f"a Sudoku must have 81 cells, got {len(grid)}")
    for name, unit in UNITS.items():
        for digit in DIGITS:
            if len(cells := [cell for cell in unit if grid[cell] == digit]) > 1:
                where = " and ".join(f"row {cell // 9 + 1} column {cell % 9 + 1}" for cell in cells)
                raise InputError(f"contradictory clues: {digit} occurs more than once in {name} ({where})")
    solved = solutions(grid)
    if len(solved) != 1:
        problem = "several solutions; add clues" if solved else "no solution; check the clues"
        raise InputError(f"this Sudoku has {problem}")
    return grid, solved[0]


def is_valid(grid: str) -> bool:
    """Return whether a grid is full and breaks no rule."""
    return len(grid) == 81 and all({grid[cell] for cell in unit} == set(DIGITS) for unit in UNITS.values())


def solves(grid: str, puzzle: str) -> bool:
    """Return whether a grid is full, breaks no rule and keeps the clues: the solution, if the puzzle has only one."""
    return is_valid(grid) and all(clue in ("0", digit) for clue, digit in zip(puzzle, grid, strict=True))


# --- generating -------------------------------------------------------------------------------------------------------


def solved_grid(rng: random.Random) -> str:
    """Return a random full grid.

    The three boxes on the diagonal share no unit, so any filling of them can be completed.
    """
    grid = ["0"] * 81
    for box in (BOXES[0], BOXES[4], BOXES[8]):
        for cell, digit in zip(box, rng.sample(DIGITS, 9), strict=True):
            grid[cell] = digit
    return _text(next(_search(*_board("".join(grid)), rng)))


def make_puzzle(solution: str, clues: int, rng: random.Random) -> str | None:
    """Return a puzzle with at most `clues` clues whose only solution is this, or None if 1,000 rounds find none.

    Removing clues ends at about 24. Restoring a few cells, removing clues again and keeping the better result reaches
    fewer.
    """
    best = _dig(solution, solution, rng)
    for _ in range(1000):
        if _count(best) <= clues:
            return best
        again = _dig(with_clues(best, solution, _count(best) + 6, rng), solution, rng)
        best = min(again, best, key=_count)
    return None


def _dig(puzzle: str, solution: str, rng: random.Random) -> str:
    """Remove, in random order, every clue that is not needed for a unique solution."""
    grid = list(puzzle)
    for cell in rng.sample([cell for cell in CELLS if puzzle[cell] != "0"], _count(puzzle)):
        grid[cell] = "0"
        planes, done = _board("".join(grid))
        planes[int(solution[cell]) - 1] &= ~(1 << cell)  # search for a solution with another digit here
        if next(_search(planes, done), None) is not None:
            grid[cell] = solution[cell]
    return "".join(grid)


def _count(puzzle: str) -> int:
    return 81 - puzzle.count("0")


def with_clues(puzzle: str, solution: str, clues: int, rng: random.Random) -> str:
    """Add random clues from the solution up to a total of `clues`."""
    empty = [cell for cell in CELLS if puzzle[cell] == "0"]
    added = set(rng.sample(empty, clues - _count(puzzle)))
    return "".join(solution[cell] if cell in added else puzzle[cell] for cell in CELLS)


@dataclass(frozen=True)
class Symmetry:
    """A rule-preserving transformation: cell i of the new grid is cell `cells[i]` of the old one, relabelled."""

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
        """Return the old grid for a new one."""
        labels = {new: old for old, new in self.digits.items()}
        old = dict(zip(self.cells, grid.translate(labels), strict=True))
        return "".join(old[cell] for cell in CELLS)


def kinship(solution: str) -> str:
    """Return a key that a solved grid shares with all its symmetries, so that they belong to one split.

    Two rows of a band define a permutation of the digits. Its cycle lengths are invariant: relabelling conjugates it,
    permuting columns leaves it unchanged, and exchanging the rows inverts it. Sorting removes the order of rows and
    bands; a transposition swaps the two halves of the key.
    """
    return " ".join(sorted((_kinship_of_lines(solution, ROWS), _kinship_of_lines(solution, COLUMNS))))


def _kinship_of_lines(solution: str, lines: list[list[int]]) -> str:
    """Return the half of the key that belongs to the rows, or to the columns."""
    keys = []
    for first in (0, 3, 6):
        a, b, c = lines[first : first + 3]
        cycles = (_cycle_lengths(solution, a, b), _cycle_lengths(solution, b, c), _cycle_lengths(solution, a, c))
        keys.append(",".join(sorted(cycles)))
    return "/".join(sorted(keys))


def _cycle_lengths(solution: str, line: list[int], other: list[int]) -> str:
    """Return the cycle lengths, sorted, of the permutation that maps the digits of a line to those of another."""
    following = {solution[i]: solution[j] for i, j in zip(line, other, strict=True)}
    lengths = []
    while following:
        digit = min(following)
        length = 0
        while digit in following:
            digit = following.pop(digit)
            length += 1
        lengths.append(length)
    return "".join(map(str, sorted(lengths)))
