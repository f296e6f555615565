"""The four examples of `make demo` and docs/quickstart.md: a command and the right answer of each.

If new weights make an answer wrong, `python -m examples.demo --check` shows which seeds give the right one. Change the
seed here; tests/docs/test_examples.py then shows the command to change in docs/quickstart.md.
"""

import io
import json
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from gesso.cli.main import main

FILES = Path(__file__).parent
PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
PICTURE = "examples/sudoku_images/puzzle.jpg"
SOLUTION_OF_PICTURE = "857946312214583679936712584489635127173298465625471938392157846741869253568324791"
REQUEST = "Book a table at Luigi for 4 people at 19:30, on the terrace."
BOOKING = {"restaurant": "Luigi", "guests": 4, "time": "19:30", "outdoor": True}


@dataclass(frozen=True)
class Example:
    title: str
    command: str  # gesso …, or echo TEXT | gesso …; run from the root of the repository
    answer: str  # on a stdout that is no terminal

    @property
    def seed(self) -> int:
        return int(self.command.rpartition("--seed ")[2])

    def with_seed(self, seed: int) -> str:
        """Return the command with another seed."""
        return f"{self.command.rpartition('--seed ')[0]}--seed {seed}"


EXAMPLES = (
    Example("A Sudoku: all 51 empty cells are filled at once", f"gesso sudoku {PUZZLE} --seed 7", SOLUTION),
    Example(
        "A Sudoku in a picture: the model reads the digits and solves it",
        f"gesso sudoku --image {PICTURE} --seed 1",
        SOLUTION_OF_PICTURE,
    ),
    Example(
        "A missing line: the model sees the code before and after it",
        "gesso infill examples/demo/point.py --seed 1",
        (FILES / "point.py").read_text(encoding="utf-8").replace("<FILL>", "self.y = y"),
    ),
    Example(
        "A booking: the model calls a tool with the arguments that the sentence contains",
        f'echo "{REQUEST}" | gesso chat --tools examples/demo/book_table.json --seed 1',
        json.dumps({"name": "book_table", "arguments": BOOKING}),
    ),
)


def run(command: str) -> int:
    """Run the command of an example in this process and return its exit code."""
    message, _, line = command.rpartition(" | ")
    stdin = sys.stdin
    sys.stdin = io.StringIO(shlex.split(message)[1] if message else "")
    try:
        return main(shlex.split(line)[1:])
    finally:
        sys.stdin = stdin


def answer(command: str) -> str:
    """Return what the command of an example prints on stdout."""
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()):
        run(command)
    return printed.getvalue().strip()


def right_seeds(example: Example, count: int) -> list[int]:
    """Return the seeds below `count` that give the right answer."""
    return [seed for seed in range(count) if answer(example.with_seed(seed)) == example.answer.strip()]
