"""The four examples of `gesso demo` and docs/quickstart.md: a command and the right answer of each.

If new weights make an answer wrong, `python -m examples.demo.check` shows which seeds give the right one. Change the
seed here; tests/docs/test_examples.py then shows the command to change in docs/quickstart.md.
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

FILES = Path(__file__).parent
PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
SOLUTION_OF_PICTURE = "857946312214583679936712584489635127173298465625471938392157846741869253568324791"
REQUEST = "Book a table at Luigi for 4 people at 19:30, on the terrace."
BOOKING = {"restaurant": "Luigi", "guests": 4, "time": "19:30", "outdoor": True}


@dataclass(frozen=True, kw_only=True)
class DemoExample:
    title: str
    arguments: tuple[str | Path, ...]  # of `gesso`, without --seed
    seed: int
    stdin: str = ""
    answer: str  # on a stdout that is no terminal

    @property
    def words(self) -> list[str]:
        """Return the arguments of `gesso`, the seed included."""
        words = [_path(argument) if isinstance(argument, Path) else argument for argument in self.arguments]
        return [*words, "--seed", str(self.seed)]

    @property
    def command(self) -> str:
        """Return the command as a line for the shell."""
        line = shlex.join(["gesso", *self.words])
        return f'echo "{self.stdin}" | {line}' if self.stdin else line


EXAMPLES = (
    DemoExample(
        title="A Sudoku: all 51 empty cells are filled at once",
        arguments=("sudoku", PUZZLE),
        seed=7,
        answer=SOLUTION,
    ),
    DemoExample(
        title="A Sudoku in a picture: the model reads the digits and solves it",
        arguments=("sudoku", "--image", FILES / "puzzle.jpg"),
        seed=1,
        answer=SOLUTION_OF_PICTURE,
    ),
    DemoExample(
        title="A missing line: the model sees the code before and after it",
        arguments=("infill", FILES / "point.txt"),
        seed=1,
        answer=(FILES / "point.txt").read_text(encoding="utf-8").replace("<FILL>", "self.y = y"),
    ),
    DemoExample(
        title="A booking: the model calls a tool with the arguments that the sentence contains",
        arguments=("chat", "--tools", FILES / "book_table.json"),
        seed=1,
        stdin=REQUEST,
        answer=json.dumps({"name": "book_table", "arguments": BOOKING}),
    ),
)


def _path(file: Path) -> str:
    """Return the path of a file, relative to the working directory if the file is below it."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)
