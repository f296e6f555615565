"""The bank: minimal puzzles, reproducible examples, and no symmetries of test puzzles."""

import random
from collections import Counter

import numpy as np
import pytest

from examples.sudoku.bank import HARD, TRAIN_17, Bank, build, draw, without_kin
from examples.sudoku.dig import Diggers, others
from gesso import InputError
from gesso.eval import Sudoku
from gesso.eval.sudoku.grid import (
    CELLS,
    UNITS,
    Symmetry,
    is_valid,
    kinship,
    parse_puzzle,
    solutions,
    solved_grid,
)
from gesso.eval.sudoku.puzzles import SEVENTEEN, read_puzzles
from gesso.eval.task import split_of


def text(row) -> str:
    return "".join(map(str, row.tolist()))


def clue_count(grid: str) -> int:
    return 81 - grid.count("0")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("bank") / "bank.npz"
    return path, build(path, grids=3, sparse=16, seed=3)


@pytest.fixture(scope="module")
def bank(made) -> Bank:
    return made[1]


# --- making ---------------------------------------------------------------------------------------------------------


def test_boards_solved_together_have_solutions_exactly_if_each_alone_has():
    rng = random.Random(0)
    grids, boards = [], []
    for _ in range(60):
        solution = solved_grid(rng)
        keep = rng.sample(range(81), rng.randint(24, 40))
        grid = ["0"] * 81
        for cell in keep:
            grid[cell] = solution[cell]
        if rng.random() < 0.5:  # most such errors leave no solution
            empty = rng.choice([i for i in range(81) if grid[i] == "0"])
            grid[empty] = rng.choice("123456789")
        grids.append("".join(grid))
        boards.append([511 if d == "0" else 1 << int(d) - 1 for d in grid])
    may = np.array(boards, np.uint16).T
    has, found = others(may.copy(), np.zeros_like(may))
    alone = [bool(solutions(grid, limit=1)) for grid in grids]
    assert sorted(has.tolist()) == [i for i, is_solvable in enumerate(alone) if is_solvable]
    assert {True, False} == set(alone)
    for i, bits in zip(has.tolist(), found.T, strict=True):
        solution = "".join(str(int(bit).bit_length()) for bit in bits)
        assert is_valid(solution) and all(a in ("0", b) for a, b in zip(grids[i], solution, strict=True))


def test_generated_puzzles_have_one_solution_and_need_every_clue(bank):
    few = [which[0] for count, which in bank.by_clues.items() if count > 17]
    assert len(few) > 4
    for i in few:
        solution = text(bank.solutions[i])
        puzzle = text(np.where(bank.given[i], bank.solutions[i], 0))
        assert solutions(puzzle) == [solution]
        for cell in range(81):
            if puzzle[cell] != "0":
                assert len(solutions(puzzle[:cell] + "0" + puzzle[cell + 1 :])) == 2


def test_restoring_and_removing_clues_finds_sparser_puzzles():
    grids = np.array([[int(d) for d in solved_grid(random.Random(i))] for i in range(16)], np.uint8)
    diggers = Diggers(grids, seed=1)
    first = diggers.dig(np.ones_like(grids, bool))
    better = diggers.better(first, 6, 6)
    assert (better.sum(axis=1) <= first.sum(axis=1)).all()
    assert better.sum() < first.sum() - 16


def test_the_bank_has_few_clues_and_many_grids(bank):
    counts = {count: len(which) for count, which in bank.by_clues.items()}
    assert counts[17] > 500
    assert sum(counts.get(n, 0) for n in (18, 19, 20, 21)) > 5
    assert max(counts) < 30
    assert len(np.unique(bank.solutions, axis=0)) > 500


def test_a_bank_depends_on_its_seed_and_not_on_the_number_of_processes(made, tmp_path):
    path, bank = made
    heard = []
    again = build(
        tmp_path / "again.npz", grids=3, sparse=16, seed=3, processes=2, progress=lambda *at: heard.append(at)
    )
    assert path.read_bytes() == (tmp_path / "again.npz").read_bytes()
    assert heard == [(n, len(heard)) for n in range(1, len(heard) + 1)]
    assert (Bank.load(path).solutions == bank.solutions).all() and (Bank.load(path).given == again.given).all()
    other = build(tmp_path / "other.npz", grids=1, sparse=0, seed=4)
    assert not (other.solutions[-1] == bank.solutions).all(axis=1).any()


def test_a_file_that_is_not_a_bank_is_rejected(tmp_path):
    path = tmp_path / "bank.npz"
    for content in (None, b"", b"PK nonsense"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match="not a bank of Sudoku puzzles"):
            Bank.load(path)
    np.savez(path, solutions=np.zeros((3, 81), np.uint8), given=np.zeros((2, 11), np.uint8))
    with pytest.raises(InputError, match="not a bank of Sudoku puzzles"):
        Bank.load(path)


# --- the two sides --------------------------------------------------------------------------------------------------


def test_17_clue_files_are_correct_and_share_no_symmetries():
    sides = {path: list(read_puzzles(path)) for path in (SEVENTEEN, TRAIN_17)}
    kin = {path: {kinship(solution) for *_, solution in rows} for path, rows in sides.items()}
    assert not kin[SEVENTEEN] & kin[TRAIN_17]
    assert {split_of(name) for name in kin[TRAIN_17]} == {"train"}
    assert len(sides[SEVENTEEN]) == 500
    for rows in sides.values():
        assert {clue_count(puzzle) for _, puzzle, _ in rows} == {17}
        for _, puzzle, solution in rows[::25]:
            assert parse_puzzle(puzzle) == (puzzle, solution)


def test_the_bank_has_no_symmetry_of_a_test_puzzle(bank):
    tested = {kinship(solution) for *_, solution in read_puzzles(SEVENTEEN)}
    kin = {kinship(text(row)) for row in bank.solutions}
    assert {split_of(name) for name in kin} == {"train"}
    assert not kin & tested
    _, drawn = draw(bank, np.arange(100), seed=1)
    assert {kinship(text(row)) for row in drawn} <= kin


def test_symmetries_of_held_out_files_are_excluded(bank, tmp_path):
    path = tmp_path / "tested.txt"
    turn = Symmetry.draw(random.Random(2))
    path.write_text("\n".join(turn(text(bank.solutions[i])) for i in (0, -1)))
    kin = {kinship(text(bank.solutions[i])) for i in (0, -1)}
    left = without_kin(bank, [path])
    assert len(left) < len(bank)
    assert {kinship(text(row)) for row in left.solutions} == {kinship(text(row)) for row in bank.solutions} - kin
    assert len(without_kin(bank, [])) == len(bank)


def test_a_task_reads_the_shipped_puzzles():
    items = list(Sudoku(data=(SEVENTEEN,)).items("test", 3, seed=0))
    assert all(clue_count(item.meta["puzzle"]) == 17 for item in items)


# --- drawing --------------------------------------------------------------------------------------------------------


def test_an_example_depends_only_on_seed_and_number(bank):
    numbers = np.arange(5000, 5256)
    puzzles, solved = draw(bank, numbers, seed=2)
    for some in (slice(0, 1), slice(17, 90), slice(None, None, -1)):
        again = draw(bank, numbers[some], seed=2)
        assert (again[0] == puzzles[some]).all() and (again[1] == solved[some]).all()
    assert not (draw(bank, numbers, seed=3)[1] == solved).all(axis=1).any()
    assert len(np.unique(solved, axis=0)) == len(np.unique(puzzles, axis=0)) == 256
    far = draw(bank, np.array([2**62, 2**62 + 1]), seed=2)[1]
    assert (far[0] != far[1]).any()


def test_an_example_is_a_puzzle_with_its_only_solution(bank):
    puzzles, solved = draw(bank, np.arange(400), seed=0)
    assert puzzles.dtype == solved.dtype == np.uint8 and puzzles.shape == solved.shape == (400, 81)
    assert ((puzzles == 0) | (puzzles == solved)).all()
    assert all(is_valid(text(row)) for row in solved)
    for puzzle, solution in zip(puzzles[::20], solved[::20], strict=True):
        assert solutions(text(puzzle)) == [text(solution)]


def test_examples_follow_the_requested_shares_and_clues(bank):
    counts = Counter((draw(bank, np.arange(4000), seed=0, shares={17: 1, 24: 3}, plain=1)[0] > 0).sum(axis=1).tolist())
    assert set(counts) == {17, 24}
    assert 800 < counts[17] < 1200
    counts = Counter((draw(bank, np.arange(4000), seed=0, shares={17: 1}, clues=(17, 26))[0] > 0).sum(axis=1).tolist())
    assert set(counts) == set(range(17, 27))
    assert 2900 < counts[17] < 3300  # three quarters of them as they are, and a tenth of the others
    assert all(60 < counts[n] < 140 for n in range(18, 27))
    counts = Counter((draw(bank, np.arange(500), seed=0, clues=(30, 36))[0] > 0).sum(axis=1).tolist())
    assert set(counts) == set(range(30, 37))
    with pytest.raises(InputError, match="no puzzles with 40 clues; it has puzzles with 17, "):
        draw(bank, np.arange(2), seed=0, shares={40: 1})
    with pytest.raises(InputError, match="within 17 to 81, got 16 to 30"):
        draw(bank, np.arange(2), seed=0, clues=(16, 30))


def where_go(*cells: int, count: int):
    """Return the positions of these cells in several examples [N, cells]. Only they have a different digit."""
    board = np.ones((1, 81), np.uint8)
    board[0, cells] = 2
    _, drawn = draw(Bank(board, np.ones((1, 81), bool)), np.arange(count), seed=0, shares={81: 1})
    odd = drawn != np.array([np.bincount(row).argmax() for row in drawn])[:, None]
    return np.nonzero(odd)[1].reshape(count, len(cells))


def test_puzzles_that_need_guesses_are_drawn_more_often(bank):
    for i in (*np.flatnonzero(bank.hard)[:20], *np.flatnonzero(~bank.hard)[:20]):
        puzzle = "".join(str(d) for d in np.where(bank.given[i], bank.solutions[i], 0))
        assert ("0" in _forced(puzzle)) == bank.hard[i]
    drawn, solution = draw(bank, np.arange(3000), seed=0, shares={24: 1}, plain=1)
    share = Bank(solution, drawn > 0).hard.mean()
    hard = bank.hard[bank.by_clues[24]].mean()
    assert share == pytest.approx(HARD * hard / (HARD * hard + 1 - hard), abs=0.05)


def _forced(puzzle: str) -> str:
    """Return the grid after filling all cells with one candidate and all digits with one place."""
    grid = list(puzzle)
    while True:
        may = {
            cell: set("123456789") - {grid[other] for unit in UNITS.values() if cell in unit for other in unit}
            for cell in CELLS
            if grid[cell] == "0"
        }
        found = {cell: digits for cell, digits in may.items() if len(digits) == 1}
        for unit in UNITS.values():
            for digit in "123456789":
                if len(places := [cell for cell in unit if digit in may.get(cell, ())]) == 1:
                    found[places[0]] = {digit}
        if not found:
            return "".join(grid)
        for cell, digits in found.items():
            (grid[cell],) = digits


def test_symmetries_of_every_kind_are_drawn_evenly():
    places = Counter(where_go(13, count=8100)[:, 0].tolist())
    assert set(places) == set(range(81))
    assert all(55 < count < 145 for count in places.values())
    for cells, is_one_box in (((0, 1), True), ((0, 3), False)):  # in one row, or in one column after transposing
        a, b = where_go(*cells, count=1000).T
        same_row, same_column = a // 9 == b // 9, a % 9 == b % 9
        assert (same_row ^ same_column).all()
        assert 420 < same_row.sum() < 580
        assert (((a // 27 == b // 27) & (a % 9 // 3 == b % 9 // 3)) == is_one_box).all()

    grid = np.array([[int(d) for d in solved_grid(random.Random(1))]], np.uint8)
    _, solved = draw(Bank(grid, np.ones((1, 81), bool)), np.arange(8000), seed=0, shares={81: 1})
    assert all(760 < (solved[:, cell] == digit).sum() < 1020 for cell in (0, 40, 77) for digit in range(1, 10))
    assert len(np.unique(solved, axis=0)) == 8000
