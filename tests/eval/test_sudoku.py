"""The Sudoku task: solver, generator, puzzle files and scores."""

import random

import pytest

from gesso import InputError
from gesso.eval import Sudoku
from gesso.eval.sudoku import grid as game
from gesso.eval.sudoku.puzzles import read_puzzles
from gesso.eval.task import SPLITS, Item, split_of
from tests.waiting import bounded

# Wikipedia's example, whose solution is independent of our solver.
PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def bare(text: str) -> str:
    return text.replace(" ", "")


def clue_count(grid: str) -> int:
    return sum(digit != "0" for digit in grid)


@pytest.fixture(scope="module")
def puzzles() -> dict[str, list[Item]]:
    return {split: list(Sudoku().items(split, 6, seed=3)) for split in SPLITS}


def brute_force(grid: str) -> int:
    """Return the number of solutions by trying every digit in every empty cell."""
    if "0" not in grid:  # wrong clues may contradict each other
        return int(all(len({grid[cell] for cell in unit}) == 9 for unit in game.UNITS.values()))
    cell = grid.index("0")
    near = {grid[i] for unit in game.UNITS.values() if cell in unit for i in unit}
    return sum(brute_force(grid[:cell] + d + grid[cell + 1 :]) for d in game.DIGITS if d not in near)


def test_the_solver_counts_solutions_like_brute_force():
    rng = random.Random(0)
    seen = set()
    for _ in range(60):
        grid = list(SOLUTION)
        for cell in rng.sample(range(81), 45):
            grid[cell] = "0"
        if rng.random() < 0.4:  # a random digit, which usually leaves no solution
            grid[rng.choice([i for i in range(81) if grid[i] != "0"])] = rng.choice(game.DIGITS)
        count = brute_force("".join(grid))
        found = game.solutions("".join(grid), limit=1000)
        assert len(found) == len(set(found)) == count
        assert all(game.is_valid(s) and all(a in ("0", b) for a, b in zip(grid, s, strict=True)) for s in found)
        seen.add(min(count, 2))
    assert seen == {0, 1, 2}


def test_puzzles_that_stall_naive_solvers_are_solved():
    hard = {
        "85...24..72......9..4.........1.7..23.5...9...4...........8..7..17..........36.4.": 1,
        "..............3.85..1.2.......5.7.....4...1...9.......5......73..2.1........4...9": 1,
        ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4.........": 0,
        "." * 81: 2,
    }
    with bounded():
        for puzzle, count in hard.items():
            assert len(game.solutions(puzzle.replace(".", "0"))) == count


@pytest.mark.parametrize("clues", [22, 25, 33, 50, 80])
def test_a_generated_puzzle_has_the_requested_clues_and_one_solution(clues):
    item = next(Sudoku(clues=(clues, clues)).items("test", 1, seed=1))
    puzzle, solution = item.meta["puzzle"], bare(item.expected)
    assert clue_count(puzzle) == clues
    assert game.solutions(puzzle, limit=3) == [solution]
    assert game.is_valid(solution)


def test_symmetries_keep_validity_uniqueness_and_kinship():
    rng = random.Random(5)
    transformed = set()
    for _ in range(50):
        symmetry = game.Symmetry.draw(rng)
        assert game.is_valid(symmetry(SOLUTION))
        assert game.solutions(symmetry(PUZZLE)) == [symmetry(SOLUTION)]
        assert game.kinship(symmetry(SOLUTION)) == game.kinship(SOLUTION)
        transformed.add(symmetry(SOLUTION))
    assert len(transformed) == 50
    grids = [game.solved_grid(rng) for _ in range(50)]
    assert len({game.kinship(grid) for grid in grids}) > 45  # unrelated grids differ


def test_all_symmetries_of_a_puzzle_are_in_its_split(puzzles):
    rng = random.Random(6)
    for split, items in puzzles.items():
        for item in items:
            for _ in range(5):
                assert split_of(game.kinship(game.Symmetry.draw(rng)(bare(item.expected)))) == split


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PUZZLE[:-1], "81 cells, got 80"),
        (PUZZLE[:-1] + "x", "found 'x'"),
        ("55" + PUZZLE[2:], r"5 occurs more than once in row 1 \(row 1 column 1 and row 1 column 2\)"),
        ("0" * 81, "several solutions"),
        ("123456780" + "0" * 17 + "9" + "0" * 54, "no solution"),
    ],
)
def test_an_invalid_puzzle_is_rejected_with_the_reason(text, message):
    with pytest.raises(InputError, match=message):
        game.parse_puzzle(text)


def test_a_puzzle_can_be_typed_in_several_forms():
    lines = "\n".join(PUZZLE[i : i + 9] for i in range(0, 81, 9))
    for text in (PUZZLE, PUZZLE.replace("0", "."), " ".join(PUZZLE), lines):
        assert game.parse_puzzle(text) == (PUZZLE, SOLUTION)


def test_puzzle_files_have_optional_solutions_and_are_for_testing_only(tmp_path):
    path = tmp_path / "puzzles.txt"
    dots = PUZZLE.replace("0", ".")
    forms = [f"0123456789abcdef01234567 {PUZZLE}  1.2", f"{dots},{SOLUTION}", f"{PUZZLE}\t{SOLUTION}", " ".join(PUZZLE)]
    path.write_text("\n".join(["puzzle,solution", "", "# a comment", *forms]))
    found = list(read_puzzles(path))
    assert [(number, puzzle) for number, puzzle, _ in found] == [(n, PUZZLE) for n in (4, 5, 6, 7)]
    assert [solution for *_, solution in found] == [None, SOLUTION, SOLUTION, None]
    source = Sudoku(data=(path,))
    items = list(source.items("test", 4, seed=0))
    assert {bare(item.expected) for item in items} == {SOLUTION}
    assert sorted(item.name for item in items) == [f"puzzles.txt:{n}" for n in (4, 5, 6, 7)]
    with pytest.raises(InputError, match="for the test split"):
        next(source.items("train", 1, seed=0))
    with pytest.raises(InputError, match="the files have 4"):
        next(source.items("test", 5, seed=0))
    for line, message in (("123", "no puzzle"), (f"{PUZZLE} {SOLUTION[::-1]}", "does not solve")):
        path.write_text(f"{PUZZLE}\n{line}")
        with pytest.raises(InputError, match=f"puzzles.txt:2: .*{message}"):
            list(Sudoku(data=(path,)).items("test", 2, seed=0))


def test_scores_distinguish_correct_wrong_and_garbled_answers():
    sudoku = Sudoku()
    item = Item(name="", prompt=" ".join(PUZZLE), expected=" ".join(SOLUTION), meta={"puzzle": PUZZLE})
    empty = PUZZLE.count("0")
    other = next(g for g in (game.Symmetry.draw(random.Random(i))(SOLUTION) for i in range(9)) if g != SOLUTION)
    at = PUZZLE.index("0")
    slip = SOLUTION[:at] + ("1" if SOLUTION[at] != "1" else "2") + SOLUTION[at + 1 :]
    clue_changed = ("1" if SOLUTION[0] != "1" else "2") + SOLUTION[1:]
    assert sudoku.score(item, item.expected) == {"exact": 1, "cells": 1, "valid": 1}
    assert sudoku.score(item, SOLUTION + "\n") == {"exact": 1, "cells": 1, "valid": 1}
    assert sudoku.score(item, " ".join(slip)) == {"exact": 0, "cells": (empty - 1) / empty, "valid": 0}
    assert sudoku.score(item, " ".join(clue_changed)) == {"exact": 0, "cells": 1, "valid": 0}
    wrong = sudoku.score(item, " ".join(other))
    assert (wrong["exact"], wrong["valid"]) == (0, 1)
    assert wrong["cells"] < 0.5
    assert sudoku.score(item, item.prompt) == {"exact": 0, "cells": 0, "valid": 0}
    assert sudoku.score(item, item.expected + " 1")["exact"] == 0
    assert sudoku.score(item, " ".join(SOLUTION[:40]))["cells"] < 0.6
    for garbled in ("", "no idea", "\ufffd" * 81, "9" * 81, "x" * 500):
        scores = sudoku.score(item, garbled)
        assert (scores["exact"], scores["valid"]) == (0, 0)
        assert 0 <= scores["cells"] < 0.3
