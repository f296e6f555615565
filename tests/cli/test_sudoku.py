"""`gesso sudoku`, and the options of `gesso eval` for puzzles."""

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

import gesso
from gesso import Done, Result, Usage
from gesso.bundled import SOLVER
from gesso.cli import sudoku_view as view
from gesso.engine.ways import Writing
from gesso.eval.sudoku.grid import is_valid, parse_puzzle
from gesso.eval.sudoku.task import Sudoku, spaced, transformed

PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
SOLUTION = parse_puzzle(PUZZLE)[1]
OTHER = SOLUTION[:40] + "0" * 5 + SOLUTION[45:]
HIDE = "\x1b[?25l"

Main = Callable[..., SimpleNamespace]


@pytest.fixture(autouse=True)
def no_model_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GESSO_MODEL", raising=False)


@dataclass
class Fake:
    """A model that gives `answer`, or the solution, in two steps. Its tokens are characters.

    With `luck` above 0 it gives `answer` that many times, and then the solution of its prompt.
    """

    answer: str | None = None
    luck: int = 0
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    loaded: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    writing: Writing = Writing()
    defaults: Any = field(default_factory=lambda: SimpleNamespace(diffusion=gesso.Diffusion()))
    tokenizer: Any = field(default_factory=lambda: SimpleNamespace(encode=lambda text, bos: [*map(ord, text)]))

    def load(self, name: Any, **options: Any) -> "Fake":
        self.loaded.append((name, options))
        return self

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def read_image(self, picture: Image.Image, where: str) -> Image.Image:
        return picture

    def stream(self, prompt: str, **options: Any) -> Iterator[Any]:
        self.asked.append((prompt, options))
        right = self.answer is None or 0 < self.luck < len(self.asked)
        text = spaced(parse_puzzle(prompt)[1] if right else self.answer)
        tokens = [*map(ord, text.ljust(256, "\x01"))]
        for step, settled in ((1, False), (2, True)):
            canvas = SimpleNamespace(step=step)
            yield SimpleNamespace(kind="draft", before=(), tokens=tokens, stable=[settled] * 256, canvas=canvas)
        yield Done(0, Result(text, tuple(tokens), "stop", Usage(denoising_steps=2), options["seed"] or 0))


@pytest.fixture
def fake(loads: Callable[[Any], None]) -> Fake:
    model = Fake()
    loads(model.load)
    return model


# --- sudoku ---------------------------------------------------------------------------------------------------------


def nine_lines(grid: str) -> str:
    return "\n".join(spaced(grid[i : i + 9]) for i in range(0, 81, 9)) + "\n"


@pytest.mark.parametrize("written", [PUZZLE, PUZZLE.replace("0", "."), spaced(PUZZLE), nine_lines(PUZZLE)])
@pytest.mark.parametrize("way", ["argument", "file", "stdin"])
def test_a_puzzle_can_be_typed_piped_or_in_a_file(main: Main, fake: Fake, tmp_path: Path, written: str, way: str):
    file = tmp_path / "puzzle.txt"
    file.write_text(written)
    given = {"argument": written, "file": str(file), "stdin": "-"}[way]
    done = main("sudoku", given, "--seed", "5", "--steps", "9", stdin=written)
    assert (done.code, done.out) == (0, SOLUTION + "\n")
    assert re.fullmatch(r"solved in 2 steps, 0\.\d\d s\n", done.err)
    assert fake.asked == [(spaced(PUZZLE), {**Sudoku.options, "seed": 5, "steps": 9})]


def test_the_bundled_solver_is_the_default_model(main: Main, fake: Fake):
    main("sudoku", PUZZLE)
    main("sudoku", PUZZLE, "-m", "mine", "--adapter", "a", "--device", "cpu", "--dtype", "float32")
    usual = {"quantize": None, "memory": "0.9", "write": "canvas", "threads": None, "cache_dir": None}
    usual["text_only"] = False
    assert fake.loaded == [
        (SOLVER, {"device": None, "dtype": None, "adapter": None, **usual}),
        ("mine", {"device": "cpu", "dtype": "float32", "adapter": "a", **usual}),
    ]


def test_puzzles_of_a_file_are_solved_in_order(main: Main, fake: Fake, tmp_path: Path):
    text = f"# two of them\n{PUZZLE},{SOLUTION}\n\n{OTHER} 5 stars\n"
    file = tmp_path / "puzzles.csv"
    file.write_text(text)
    for given, name in ((str(file), str(file)), ("-", "stdin")):
        done = main("sudoku", given, stdin=text)
        assert (done.code, done.out) == (0, f"{SOLUTION}\n{SOLUTION}\n")
        noted = "".join(done.err.split("\n"))
        assert f"{name}:2: solved in 2 steps" in noted and f"{name}:4: solved" in noted
        assert noted.endswith("2 of 2 solved")
    assert [prompt for prompt, _ in fake.asked] == [spaced(PUZZLE), spaced(OTHER)] * 2
    assert len(fake.loaded) == 2


TWICE = "5" + PUZZLE[1:8] + "5" + PUZZLE[9:]


@pytest.mark.parametrize(
    ("given", "stdin", "reason"),
    [
        (PUZZLE[:-1], "", "81 cells, got 80"),
        ("", "", "81 cells, got 0"),
        ("x" + PUZZLE[1:], "", "digits, with 0 or . for empty cells; found 'x'"),
        (TWICE, "", "contradictory clues: 5 occurs more than once in row 1"),
        ("0" * 81, "", "several solutions"),
        (PUZZLE[:2] + "2" + PUZZLE[3:], "", "no solution"),
        ("absent.txt", "", "no such file: absent.txt"),
        ("a\0b", "", "no such file"),
        ("x" * 5000, "", "no such file"),
        ("-", "", "stdin: no puzzle found"),
        ("-", f"{PUZZLE}\n{TWICE}\n", "stdin:2: contradictory clues"),
        ("-", f"{PUZZLE}\n{PUZZLE[:-1]}\n", "stdin:2: no puzzle found"),
        ("-", f"{PUZZLE},{SOLUTION[::-1]}\n", "stdin:1: the solution in this line does not solve its puzzle"),
        (".", "", "cannot read puzzles from ."),
    ],
)
def test_an_invalid_puzzle_is_rejected_before_a_model_is_loaded(
    main: Main, fake: Fake, given: str, stdin: str, reason: str
):
    done = main("sudoku", given, stdin=stdin)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("gesso: ") and reason in done.err
    assert fake.loaded == []


def test_json_prints_one_object_per_puzzle(main: Main, fake: Fake):
    done = main("sudoku", "-", "--json", "--seed", "7", stdin=f"{PUZZLE}\n{OTHER}\n")
    first, second = map(json.loads, done.out.splitlines())
    assert (done.code, done.err) == (0, "")
    assert 0 <= first.pop("seconds") < 10
    assert first == {
        "puzzle": PUZZLE, "solution": SOLUTION, "solved": True, "valid": True, "clues": 30, "attempts": 1, "steps": 2,
        "seed": 7,
    }  # fmt: skip
    assert (second["puzzle"], second["clues"]) == (OTHER, 76)


# Rows 1 and 2 exchanged: a valid grid that changes clues.
EXCHANGED = SOLUTION[9:18] + SOLUTION[:9] + SOLUTION[18:]


@pytest.mark.parametrize(
    ("answer", "reason", "valid"),
    [
        # Row 1 column 3 is 4. An 8 conflicts with row 1 column 6 and with the clue in row 3 column 3.
        (SOLUTION[:2] + "8" + SOLUTION[3:], "2 cells break the rules", False),
        (EXCHANGED, "7 clues not kept", True),
        ("9" + SOLUTION[1:], "3 cells break the rules, 1 clue not kept", False),
        (SOLUTION[:-1], "the answer is not a grid of 81 digits", False),
        (SOLUTION + "1", "the answer is not a grid of 81 digits", False),
        ("what?", "the answer is not a grid of 81 digits", False),
    ],
)
def test_a_wrong_answer_is_printed_unchanged_with_exit_code_1(
    main: Main, fake: Fake, answer: str, reason: str, valid: bool
):
    fake.answer = answer
    done = main("sudoku", PUZZLE, "--attempts", "1")
    assert (done.code, done.out, done.err) == (1, answer + "\n", f"not solved: {reason}\n")
    done = main("sudoku", PUZZLE, "--json", "--attempts", "1")
    found = json.loads(done.out)
    assert (done.code, found["solved"], found["valid"], found["solution"]) == (1, False, valid, answer)


def test_a_wrong_grid_is_retried_under_a_symmetry_and_reported(main: Main, fake: Fake):
    fake.answer, fake.luck = EXCHANGED, 2
    done = main("sudoku", PUZZLE, "--seed", "5")
    assert (done.code, done.out) == (0, SOLUTION + "\n")
    assert [options["seed"] for _, options in fake.asked] == [5, 5, 5]
    shown = ["".join(prompt.split()) for prompt, _ in fake.asked]
    assert shown[0] == PUZZLE and len(set(shown)) == 3
    assert [transformed(PUZZLE, 5, attempt)[0] for attempt in (1, 2)] == shown[1:]
    assert done.err.splitlines()[0] == "attempt 1: not solved: 7 clues not kept; trying again"
    assert done.err.splitlines()[1].startswith("attempt 2: not solved: ")
    assert re.fullmatch(r"solved in 6 steps, 0\.\d\d s, at attempt 3", done.err.splitlines()[2])


def test_json_counts_all_attempts_at_a_puzzle(main: Main, fake: Fake):
    fake.answer, fake.luck = EXCHANGED, 1
    done = main("sudoku", PUZZLE, "--seed", "7", "--json")
    found = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert (found["solved"], found["attempts"], found["steps"], found["seed"]) == (True, 2, 4, 7)


def test_attempts_are_limited(main: Main, fake: Fake):
    fake.answer = EXCHANGED
    for given, most in ([], 4), (["--attempts", "2"], 2):
        fake.asked.clear()
        done = main("sudoku", PUZZLE, *given)
        assert (done.code, len(fake.asked)) == (1, most)
        assert is_valid(done.out.strip()), "transformed back, it is still a valid grid"
        assert "not kept" in done.err.splitlines()[-1] and done.err.count("trying again") == most - 1


def test_an_unsolved_puzzle_does_not_stop_the_others(main: Main, fake: Fake):
    fake.answer = SOLUTION
    swapped = EXCHANGED[:40] + "0" + EXCHANGED[41:]
    done = main("sudoku", "-", "--attempts", "1", stdin=f"{swapped}\n{PUZZLE}\n")
    assert (done.code, done.out) == (1, f"{SOLUTION}\n{SOLUTION}\n")
    assert done.err.endswith("1 of 2 solved\n")


def test_a_terminal_gets_the_grid_in_nine_lines(main: Main, fake: Fake):
    assert main("sudoku", PUZZLE, terminals=["stdout"]).out == nine_lines(SOLUTION)


def test_the_live_view_shows_the_clues_then_the_answer_and_closes(main: Main, fake: Fake, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    done = main("sudoku", PUZZLE, terminals=["stderr"])
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.err).split("┌───────┬───────┬───────┐")[1:]
    assert (done.code, done.out) == (0, SOLUTION + "\n")
    assert "│ 5 3 · │ · 7 · │ · · · │" in frames[0] and "reading the puzzle" in frames[0]
    assert spaced(SOLUTION[:3]) in frames[1] and "step 1 · cells settled 0/81" in frames[1]
    assert "step 2 · cells settled 81/81" in frames[2] and "solved in 2 steps" in frames[-1]
    for unwanted in ("--no-live", "--json"):
        assert HIDE not in main("sudoku", PUZZLE, unwanted, terminals=["stderr"]).err


def test_pauses_of_the_live_view_do_not_count_as_model_time(main: Main, fake: Fake, monkeypatch):
    slept: list[float] = []
    clock = SimpleNamespace(perf_counter=lambda: sum(slept), sleep=slept.append)  # time passes only in sleep
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(view, "time", clock)  # the pauses of a real clock vary
    assert main("sudoku", PUZZLE).code == 0 and slept == [], "no live view, no pauses"
    assert "solved in 2 steps, 0.00 s" in main("sudoku", PUZZLE, terminals=["stderr"]).err
    assert slept == pytest.approx([view.FRAME_SECONDS] * 3)


def test_the_live_view_keeps_its_shape_with_tokens_of_noise(main: Main, tiny_directory: Path, monkeypatch):
    """Drafts of a real engine may contain any token, even one wider than a cell."""
    monkeypatch.setenv("TERM", "xterm-256color")
    few = ("--steps", "2", "--seed", "1", "--attempts", "2")
    done = main("sudoku", PUZZLE, "-m", str(tiny_directory), *few, terminals=["stderr"])
    assert "attempt 2, transformed · step 2" in done.err and "attempt 1: not solved" in done.err
    assert done.code == 1 and "not solved: the answer is not a grid" in done.err
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.err)
    assert "step 2 · cells settled" in shown
    rows = [line for line in shown.splitlines() if line.startswith("│")]
    assert {len(row) for row in rows} == {25} and not set("\x1b\x07\x00\ufffd") & set("".join(rows))


def painted(cells: str, standing: Sequence[bool]) -> list[tuple[str, str]]:
    return view.paint(view.Puzzle("", PUZZLE), cells, standing)


def test_clues_are_bold_and_settled_cells_are_coloured():
    open_cells, standing = painted(SOLUTION, [False] * 81), painted(SOLUTION, [True] * 81)
    assert [sign for sign, _ in standing] == list(SOLUTION)
    for cell, clue in enumerate(PUZZLE):
        assert open_cells[cell] == (SOLUTION[cell], view.OPEN if clue == "0" else view.CLUE)
        assert standing[cell] == (SOLUTION[cell], view.SETTLED if clue == "0" else view.CLUE)


def test_settled_conflicts_and_changed_clues_are_red():
    cells = "9" + SOLUTION[1] + "8" + SOLUTION[3:]  # a changed clue, and an 8 that row 1 and box 1 already have
    found = painted(cells, [True] * 81)
    wrong = {cell: sign for cell, (sign, style) in enumerate(found) if style == view.WRONG}
    assert wrong == {0: "9", 6: "9", 54: "9", 2: "8", 5: "8"}
    assert all(style != view.WRONG for _, style in painted(cells, [False] * 81))
    assert painted(cells, [False] * 81)[0] == (PUZZLE[0], view.CLUE)


@pytest.mark.parametrize(("height", "lines"), [(30, 14), (15, 14), (14, 10)])
def test_a_low_terminal_gets_the_grid_without_lines(height: int, lines: int):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=height)
    console.print(view.Frame(painted(SOLUTION, [True] * 81), "status"))
    assert console.file.getvalue().count("\n") == lines < height  # type: ignore[attr-defined]


# --- eval -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "clues"), [("40-45", (40, 45)), ("70", (70, 70))])
def test_eval_generates_puzzles_with_the_given_clues(
    main: Main, tiny_directory: Path, given: str, clues: tuple[int, int]
):
    few = ("--count", "2", "--steps", "1", "--batch", "3")
    done = main("eval", "sudoku", "-m", str(tiny_directory), *few, "--clues", given, "--json")
    (report,) = json.loads(done.out)
    puzzles = Sudoku(clues=clues).items("test", 2, seed=0)
    assert [item["expected"] for item in report["items"]] == [item.expected for item in puzzles]


@pytest.mark.parametrize("clues", [(40, 45), (70, 70)])
def test_generated_puzzles_have_the_given_clues(clues: tuple[int, int]):
    puzzles = [item.meta["puzzle"] for item in Sudoku(clues=clues).items("test", 2, seed=0)]
    assert all(clues[0] <= 81 - puzzle.count("0") <= clues[1] for puzzle in puzzles)


def test_eval_reports_first_and_last_attempts(main: Main, tiny_directory: Path):
    few = ("--count", "2", "--steps", "1", "--clues", "70", "-m", str(tiny_directory))
    done = main("eval", "sudoku", *few, "--attempts", "3")
    names = [line.split("  ")[1].strip() for line in done.out.splitlines()[1:]]
    assert names[:6] == ["exact", "cells", "valid", "exact, 1st try", "cells, 1st try", "valid, 1st try"]
    steps = json.loads(main("eval", "sudoku", *few, "--attempts", "3", "--json").out)[0]["items"]
    assert [item["attempts"] for item in steps] == [3, 3] and all(item["denoising_steps"] >= 3 for item in steps)
    assert "1st try" not in main("eval", "sudoku", *few).out
    refused = main("eval", "structured", "--count", "1", "--attempts", "2")
    assert refused.code == 2 and "structured cannot" in refused.err


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (["sudoku", "--clues", "many"], "--clues must be a number or a range"),
        (["sudoku", "--clues", "36-30"], "--clues must be a number or a range"),
        (["sudoku", "--clues", "30-"], "--clues must be a number or a range"),
        (["sudoku", "--clues", "5-6"], "5 to 6"),
        (
            ["python_infill", "--clues", "30"],
            "--clues applies to sudoku; remove it for the task python_infill",
        ),
        (["sudoku", "--clues", "30", "--data", "x.csv"], "--clues applies to generated puzzles"),
        (["chess", "--clues", "30"], "unknown task 'chess'"),
    ],
)
def test_invalid_clues_are_rejected(main: Main, fake: Fake, rest: list[str], reason: str):
    done = main("eval", *rest)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err and fake.loaded == []


# --- pictures -------------------------------------------------------------------------------------------------------


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.new("RGB", (20, 20)).save(path)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read PUZZLE in every picture; the prompt with the picture is that of the puzzle."""
    # The fake model has no tower that reads pictures.
    monkeypatch.setattr(view, "read_grid", lambda model, image, where: PUZZLE)
    monkeypatch.setattr(view, "puzzle_prompt", lambda model, image: spaced(PUZZLE))  # nor soft tokens


def test_a_picture_gives_the_grid_that_was_read_and_its_solution(main: Main, fake: Fake, photo: Path, reads: None):
    done = main("sudoku", "--image", str(photo), "--seed", "5")
    assert (done.code, done.out) == (0, SOLUTION + "\n")
    assert done.err.startswith(f"{photo} shows\n5 3 . . 7 . . . .\n") and "solved in 2 steps" in done.err
    done = main("sudoku", "--image", str(photo), "--image", str(photo), "--json")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [(one["puzzle"], one["solution"]) for one in found] == [(PUZZLE, SOLUTION)] * 2


def test_a_retry_shows_the_typed_symmetry_of_what_was_read(main: Main, fake: Fake, photo: Path, reads: None):
    fake.answer, fake.luck = OTHER.replace("0", "1"), 1
    done = main("sudoku", "--image", str(photo), "--seed", "5")
    assert (done.code, done.out) == (0, SOLUTION + "\n")
    assert [prompt for prompt, _ in fake.asked] == [spaced(PUZZLE), spaced(transformed(PUZZLE, 5, 1)[0])]


def test_a_puzzle_or_a_picture_is_needed(main: Main, fake: Fake, photo: Path):
    for given in ([], [PUZZLE, "--image", str(photo)]):
        done = main("sudoku", *given)
        assert done.code and "give a puzzle or --image FILE, and not both" in done.err
    done = main("sudoku", "--image", "absent.png")
    assert done.code and "absent.png cannot be read" in done.err and not fake.loaded
