"""`gesso sudoku`, `gesso data` and the clues of `gesso eval`, as they are typed."""

import gzip
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import gesso
from gesso.bundled import SOLVER
from gesso.cli import sudoku_view as view
from gesso.engine.events import Done, Result, Usage
from gesso.eval import run as command
from gesso.eval.sudoku import Sudoku, spaced, turned
from gesso.eval.sudoku_grid import is_valid, parse_puzzle
from gesso.eval.task import split_of
from gesso.train.data import Dataset, DataSettings

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
    """A model that gives this answer, or the solution, in two steps; its tokens are characters.

    For `luck` above 0 it gives the answer so many times, and then the solution of what it is asked.
    """

    answer: str | None = None
    luck: int = 0
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    loaded: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    tokenizer: Any = field(default_factory=lambda: SimpleNamespace(encode=lambda text, bos: [*map(ord, text)]))

    def load(self, name: Any, **options: Any) -> "Fake":
        self.loaded.append((name, options))
        return self

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def stream(self, prompt: str, **options: Any) -> Iterator[Any]:
        self.asked.append((prompt, options))
        right = self.answer is None or 0 < self.luck < len(self.asked)
        text = spaced(parse_puzzle(prompt)[1] if right else self.answer)
        tokens = [*map(ord, text.ljust(256, "\x01"))]
        for step, settled in ((1, False), (2, True)):
            canvas = SimpleNamespace(step=step)
            yield SimpleNamespace(kind="draft", before=(), tokens=tokens, settled=[settled] * 256, canvas=canvas)
        yield Done(0, Result(text, tuple(tokens), "stop", Usage(denoising_steps=2), options["seed"] or 0))


@pytest.fixture
def fake(monkeypatch) -> Fake:
    model = Fake()
    monkeypatch.setattr(gesso, "load", model.load)
    monkeypatch.setattr(view, "FRAME_SECONDS", 0.0)
    return model


# --- sudoku ---------------------------------------------------------------------------------------------------------


def nine_lines(grid: str) -> str:
    return "\n".join(spaced(grid[i : i + 9]) for i in range(0, 81, 9)) + "\n"


@pytest.mark.parametrize("written", [PUZZLE, PUZZLE.replace("0", "."), spaced(PUZZLE), nine_lines(PUZZLE)])
@pytest.mark.parametrize("way", ["argument", "file", "stdin"])
def test_a_puzzle_may_be_typed_piped_or_in_a_file(main: Main, fake: Fake, tmp_path: Path, written: str, way: str):
    file = tmp_path / "puzzle.txt"
    file.write_text(written)
    given = {"argument": written, "file": str(file), "stdin": "-"}[way]
    done = main("sudoku", given, "--seed", "5", "--steps", "9", stdin=written)
    assert (done.code, done.out) == (0, SOLUTION + "\n")
    assert re.fullmatch(r"solved in 2 steps, 0\.\d\d s\n", done.err)
    assert fake.asked == [(spaced(PUZZLE), {**Sudoku.options, "seed": 5, "steps": 9})]


def test_the_solver_in_the_box_is_loaded_unless_another_is_named(main: Main, fake: Fake):
    main("sudoku", PUZZLE)
    main("sudoku", PUZZLE, "-m", "mine", "--adapter", "a", "--device", "cpu", "--dtype", "float32")
    assert fake.loaded == [
        (SOLVER, {"device": None, "dtype": None, "adapter": None}),
        ("mine", {"device": "cpu", "dtype": "float32", "adapter": "a"}),
    ]


def test_all_puzzles_of_a_file_are_solved_in_their_order(main: Main, fake: Fake, tmp_path: Path):
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
        ("x" + PUZZLE[1:], "", "digits, and 0 or . for empty cells; found 'x'"),
        (TWICE, "", "contradictory clues: 5 stands more than once in row 1"),
        ("0" * 81, "", "several solutions"),
        (PUZZLE[:2] + "2" + PUZZLE[3:], "", "no solution"),
        ("absent.txt", "", "no such file: absent.txt"),
        ("a\0b", "", "no such file"),
        ("x" * 5000, "", "no such file"),
        ("-", "", "stdin: there is no puzzle in it"),
        ("-", f"{PUZZLE}\n{TWICE}\n", "stdin:2: contradictory clues"),
        ("-", f"{PUZZLE}\n{PUZZLE[:-1]}\n", "stdin:2: no puzzle of 81"),
        ("-", f"{PUZZLE},{SOLUTION[::-1]}\n", "stdin:1: the solution in this line is not the puzzle's"),
        (".", "", "cannot read puzzles from ."),
    ],
)
def test_a_puzzle_that_cannot_be_asked_is_told_before_a_model_is_loaded(
    main: Main, fake: Fake, given: str, stdin: str, reason: str
):
    done = main("sudoku", given, stdin=stdin)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("gesso: ") and reason in done.err
    assert fake.loaded == []


def test_json_is_one_object_a_puzzle(main: Main, fake: Fake):
    done = main("sudoku", "-", "--json", "--seed", "7", stdin=f"{PUZZLE}\n{OTHER}\n")
    first, second = map(json.loads, done.out.splitlines())
    assert (done.code, done.err) == (0, "")
    assert 0 <= first.pop("seconds") < 10
    assert first == {
        "puzzle": PUZZLE, "solution": SOLUTION, "solved": True, "valid": True, "clues": 30, "attempts": 1, "steps": 2,
        "seed": 7,
    }  # fmt: skip
    assert (second["puzzle"], second["clues"]) == (OTHER, 76)


# Rows 1 and 2 exchanged: a grid without fault, of another puzzle.
EXCHANGED = SOLUTION[9:18] + SOLUTION[:9] + SOLUTION[18:]


@pytest.mark.parametrize(
    ("answer", "reason", "valid"),
    [
        # Row 1 column 3 is 4: with an 8 it meets those of row 1 column 6 and row 3 column 3, a clue.
        (SOLUTION[:2] + "8" + SOLUTION[3:], "2 cells break the rules", False),
        (EXCHANGED, "7 clues not kept", True),
        ("9" + SOLUTION[1:], "3 cells break the rules, 1 clue not kept", False),
        (SOLUTION[:-1], "the answer is not a grid of 81 digits", False),
        (SOLUTION + "1", "the answer is not a grid of 81 digits", False),
        ("what?", "the answer is not a grid of 81 digits", False),
    ],
)
def test_an_answer_that_is_no_solution_is_shown_as_it_is_and_exit_code_1(
    main: Main, fake: Fake, answer: str, reason: str, valid: bool
):
    fake.answer = answer
    done = main("sudoku", PUZZLE, "--attempts", "1")
    assert (done.code, done.out, done.err) == (1, answer + "\n", f"not solved: {reason}\n")
    done = main("sudoku", PUZZLE, "--json", "--attempts", "1")
    found = json.loads(done.out)
    assert (done.code, found["solved"], found["valid"], found["solution"]) == (1, False, valid, answer)


def test_a_grid_that_breaks_a_rule_is_attempted_again_turned_and_said_to_be(main: Main, fake: Fake):
    fake.answer, fake.luck = EXCHANGED, 2
    done = main("sudoku", PUZZLE, "--seed", "5")
    assert (done.code, done.out) == (0, SOLUTION + "\n")
    assert [options["seed"] for _, options in fake.asked] == [5, 5, 5]
    shown = ["".join(prompt.split()) for prompt, _ in fake.asked]
    assert shown[0] == PUZZLE and len(set(shown)) == 3
    assert [turned(PUZZLE, 5, attempt)[0] for attempt in (1, 2)] == shown[1:]
    assert done.err.splitlines()[0] == "attempt 1: not solved: 7 clues not kept; trying again"
    assert done.err.splitlines()[1].startswith("attempt 2: not solved: ")
    assert re.fullmatch(r"solved in 6 steps, 0\.\d\d s, at attempt 3", done.err.splitlines()[2])


def test_one_object_tells_of_all_attempts_at_a_puzzle(main: Main, fake: Fake):
    fake.answer, fake.luck = EXCHANGED, 1
    done = main("sudoku", PUZZLE, "--seed", "7", "--json")
    found = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert (found["solved"], found["attempts"], found["steps"], found["seed"]) == (True, 2, 4, 7)


def test_no_more_is_attempted_than_was_asked_for(main: Main, fake: Fake):
    fake.answer = EXCHANGED
    for given, most in ([], 4), (["--attempts", "2"], 2):
        fake.asked.clear()
        done = main("sudoku", PUZZLE, *given)
        assert (done.code, len(fake.asked)) == (1, most)
        assert is_valid(done.out.strip()), "turned back, it is still a grid without fault"
        assert "not kept" in done.err.splitlines()[-1] and done.err.count("trying again") == most - 1


def test_one_puzzle_unsolved_leaves_the_others_solved(main: Main, fake: Fake):
    fake.answer = SOLUTION
    swapped = EXCHANGED[:40] + "0" + EXCHANGED[41:]
    done = main("sudoku", "-", "--attempts", "1", stdin=f"{swapped}\n{PUZZLE}\n")
    assert (done.code, done.out) == (1, f"{SOLUTION}\n{SOLUTION}\n")
    assert done.err.endswith("1 of 2 solved\n")


def test_a_terminal_gets_the_grid_in_nine_lines(main: Main, fake: Fake, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main("sudoku", PUZZLE).out == nine_lines(SOLUTION)


def test_the_live_view_shows_the_clues_then_the_answer_and_is_gone(main: Main, fake: Fake, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    done = main("sudoku", PUZZLE)
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.err).split("┌───────┬───────┬───────┐")[1:]
    assert (done.code, done.out) == (0, SOLUTION + "\n")
    assert "│ 5 3 · │ · 7 · │ · · · │" in frames[0] and "reading the puzzle" in frames[0]
    assert spaced(SOLUTION[:3]) in frames[1] and "step 1 · cells settled 0/81" in frames[1]
    assert "step 2 · cells settled 81/81" in frames[2] and "solved in 2 steps" in frames[-1]
    for unwanted in ("--no-live", "--json"):
        assert HIDE not in main("sudoku", PUZZLE, unwanted).err


def test_frames_stand_long_enough_to_be_seen_and_that_time_is_not_the_models(main: Main, fake: Fake, monkeypatch):
    slept: list[float] = []
    clock = SimpleNamespace(perf_counter=lambda: sum(slept), sleep=slept.append)  # time passes in sleep alone
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(view, "FRAME_SECONDS", 10.0)
    monkeypatch.setattr(view, "time", clock)
    assert main("sudoku", PUZZLE).code == 0 and slept == [], "nobody watches"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert "solved in 2 steps, 0.00 s" in main("sudoku", PUZZLE).err
    assert slept == [10.0, 10.0, 10.0]


def test_a_model_that_is_no_solver_fills_the_view_with_noise(main: Main, tiny, monkeypatch):
    """The drafts of a real engine, whose tokens are anything, even wider than a cell."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(gesso, "load", lambda *_, **__: tiny)
    monkeypatch.setattr(view, "FRAME_SECONDS", 0.0)
    done = main("sudoku", PUZZLE, "--steps", "2", "--seed", "1", "--attempts", "2")
    assert "attempt 2, turned · step 2" in done.err and "attempt 1: not solved" in done.err
    assert done.code == 1 and "not solved: the answer is not a grid" in done.err
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.err)
    assert "step 2 · cells settled" in shown
    rows = [line for line in shown.splitlines() if line.startswith("│")]
    assert {len(row) for row in rows} == {25} and not set("\x1b\x07\x00\ufffd") & set("".join(rows))


def painted(cells: str, standing: Sequence[bool]) -> list[tuple[str, str]]:
    return view.paint(view.Puzzle("", PUZZLE), cells, standing)


def test_clues_are_bold_and_cells_coloured_when_they_stand():
    open_cells, standing = painted(SOLUTION, [False] * 81), painted(SOLUTION, [True] * 81)
    assert [sign for sign, _ in standing] == list(SOLUTION)
    for cell, clue in enumerate(PUZZLE):
        assert open_cells[cell] == (SOLUTION[cell], view.OPEN if clue == "0" else view.CLUE)
        assert standing[cell] == (SOLUTION[cell], view.STANDS if clue == "0" else view.CLUE)


def test_what_repeats_a_digit_or_changes_a_clue_is_red_once_it_stands():
    cells = "9" + SOLUTION[1] + "8" + SOLUTION[3:]  # a clue changed, and an 8 that is in row 1 and in box 1 already
    found = painted(cells, [True] * 81)
    wrong = {cell: sign for cell, (sign, style) in enumerate(found) if style == view.WRONG}
    assert wrong == {0: "9", 6: "9", 54: "9", 2: "8", 5: "8"}
    assert all(style != view.WRONG for _, style in painted(cells, [False] * 81))
    assert painted(cells, [False] * 81)[0] == (PUZZLE[0], view.CLUE)


@pytest.mark.parametrize(("height", "lines"), [(30, 14), (15, 14), (14, 10)])
def test_a_low_terminal_gets_the_grid_without_its_lines(height: int, lines: int):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=height)
    console.print(view.Frame(painted(SOLUTION, [True] * 81), "status"))
    assert console.file.getvalue().count("\n") == lines < height  # type: ignore[attr-defined]


# --- eval -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "clues"), [("40-45", (40, 45)), ("70", (70, 70))])
def test_eval_asks_puzzles_with_so_many_clues(main: Main, tiny, monkeypatch, given: str, clues: tuple[int, int]):
    loaded: dict[str, Any] = {}
    monkeypatch.setattr(gesso, "load", lambda *_, **options: loaded.update(options) or tiny)
    seen = []
    monkeypatch.setattr(Sudoku, "score", lambda self, item, _: seen.append(item) or dict.fromkeys(self.scores, 0.0))
    assert main("eval", "sudoku", "--count", "2", "--steps", "1", "--clues", given, "--batch", "3").code == 0
    assert loaded["max_batch"] == 3
    assert len(seen) == 2
    assert all(clues[0] <= 81 - item.meta["puzzle"].count("0") <= clues[1] for item in seen)


def test_eval_tells_the_first_try_from_the_last(main: Main, tiny, monkeypatch):
    monkeypatch.setattr(gesso, "load", lambda *_, **__: tiny)
    few = ("--count", "2", "--steps", "1", "--clues", "70")
    done = main("eval", "sudoku", *few, "--attempts", "3")
    names = [line.split("  ")[1].strip() for line in done.out.splitlines()[1:]]
    assert names[:6] == ["exact", "cells", "valid", "exact, 1st try", "cells, 1st try", "valid, 1st try"]
    steps = json.loads(main("eval", "sudoku", *few, "--attempts", "3", "--json").out)[0]["items"]
    assert [item["attempts"] for item in steps] == [3, 3] and all(item["denoising_steps"] >= 3 for item in steps)
    assert "1st try" not in main("eval", "sudoku", *few).out
    refused = main("eval", "structured", "--count", "1", "--attempts", "2")
    assert refused.code == 2 and "structured cannot" in refused.err


@pytest.mark.parametrize("command", [["eval"], ["data", "--count", "1"]])
@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (["sudoku", "--clues", "many"], "--clues is a number or a range"),
        (["sudoku", "--clues", "36-30"], "--clues is a number or a range"),
        (["sudoku", "--clues", "30-"], "--clues is a number or a range"),
        (["sudoku", "--clues", "5-6"], "5 to 6"),
        (["python_infill", "--clues", "30"], "--clues is for sudoku; the task python_infill takes none"),
        (["sudoku", "--clues", "30", "--data", "x.csv"], "--clues is for puzzles of our own"),
        (["chess", "--clues", "30"], "unknown task 'chess'"),
    ],
)
def test_clues_that_cannot_be_are_told(main: Main, fake: Fake, command: list[str], rest: list[str], reason: str):
    done = main(*command, *rest)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err and fake.loaded == []


# --- data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.xz", "rows.jsonl.zst"])
def test_training_reads_the_rows_that_data_writes(main: Main, tiny, tmp_path: Path, name: str):
    out = tmp_path / name
    done = main("data", "sudoku", "--count", "20", "--seed", "3", "--clues", "50-52", "--out", str(out))
    assert (done.code, done.out) == (0, "") and "20 rows" in done.err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    dataset = Dataset(DataSettings(files=(str(out),), max_length=512), tiny.tokenizer, eos=1)
    assert (dataset.good, dataset.rejected) == (20, [])
    rows = list(Sudoku(clues=(50, 52)).training_rows(20, 3))
    for example, row in zip(dataset.read(), rows, strict=True):
        assert tiny.tokenizer.decode(example.tokens) == row["prompt"] + row["completion"]
        assert is_valid(row["completion"].replace(" ", ""))
    if name.endswith(".gz"):
        assert out.read_bytes()[4:8] == bytes(4), "no time of writing: the same rows give the same bytes"


def test_without_a_file_the_rows_go_to_stdout_even_with_a_bar_on_the_terminal(main: Main, monkeypatch):
    plain = main("data", "sudoku", "--count", "3")
    assert [json.loads(line) for line in plain.out.splitlines()] == list(Sudoku().training_rows(3, 0))
    assert plain.err == ""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    watched = main("data", "sudoku", "--count", "3")
    assert watched.out == plain.out and "rows" in watched.err


def test_rows_are_written_without_torch():
    script = "import sys\nfrom gesso.cli import main as cli\nassert not cli.main() and 'torch' not in sys.modules"
    arguments = ["data", "structured", "--count", "1"]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, timeout=60, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["messages"]


def test_a_file_that_is_there_is_replaced_only_by_force(main: Main, tmp_path: Path):
    out = tmp_path / "rows.jsonl"
    out.write_text("mine\n")
    done = main("data", "sudoku", "--count", "1", "--out", str(out))
    assert done.code == 2 and "--force" in done.err and out.read_text() == "mine\n"
    assert main("data", "sudoku", "--count", "1", "--out", str(out), "--force").code == 0
    assert json.loads(out.read_text())["prompt"]


def test_rows_that_run_out_leave_the_file_as_it_was(main: Main, tmp_path: Path):
    source = tmp_path / next(name for n in range(100) if split_of(name := f"m{n}.py") == "train")
    source.write_text("first = 1\nsecond = 2\n")
    out = tmp_path / "rows.jsonl.gz"
    command = ["data", "python_infill", "--data", str(source), "--out", str(out), "--force", "--count"]
    assert main(*command, "2").code == 0
    before = out.read_bytes()
    assert gzip.decompress(before).count(b"\n") == 2
    done = main(*command, "3")
    assert done.code == 2 and "3 lines were asked for" in done.err
    assert out.read_bytes() == before and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("out", "reason"),
    [("rows.json", ".jsonl.zst"), ("absent/rows.jsonl", "no directory"), ("d.jsonl", "there already")],
)
def test_a_file_that_cannot_be_written_is_told_first(main: Main, tmp_path: Path, out: str, reason: str):
    (tmp_path / "d.jsonl").mkdir()
    done = main("data", "sudoku", "--count", "1", "--force", "--out", str(tmp_path / out))
    assert done.code == 2 and reason in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["d.jsonl"]


def test_without_zstandard_the_error_says_what_to_install(main: Main, tmp_path: Path, monkeypatch):
    def absent(name: str) -> Any:
        if name == "zstandard":
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(command, "import_module", absent)
    done = main("data", "sudoku", "--count", "1", "--out", str(tmp_path / "rows.jsonl.zst"))
    assert done.code == 2 and "pip install 'gesso[train]'" in done.err
    assert list(tmp_path.iterdir()) == []
