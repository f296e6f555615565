"""Read puzzles, show the grid as it settles, and check the model's answer: the steps of `gesso sudoku`.

The solver of `gesso.eval` only checks that a puzzle has exactly one solution. An answer that keeps the rules and the
clues is that solution, so the solver's result is never used to judge or to complete an answer.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from gesso.cli.terminal import SPECIAL, console, lines
from gesso.errors import InputError
from gesso.eval.sudoku.grid import CELLS, DIGITS, UNITS, is_valid, solves
from gesso.eval.sudoku.puzzles import check_puzzle, find_puzzles, read_text
from gesso.eval.sudoku.reading import puzzle_prompt, read_grid
from gesso.eval.sudoku.task import Sudoku, spaced, transformed

if TYPE_CHECKING:
    import PIL.Image

    from gesso.api import Gesso
    from gesso.engine.events import Draft, Event, Result
    from gesso.images.image import Image

FRAME_SECONDS = 0.15  # a small model would finish before a frame can be seen
CLUE, SETTLED, OPEN, WRONG = "bold", "cyan", "dim", "red"
TOP, BETWEEN, BOTTOM = "┌───────┬───────┬───────┐", "├───────┼───────┼───────┤", "└───────┴───────┴───────┘"


# --- puzzles --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Puzzle:
    name: str  # file and line, or empty for a typed puzzle
    grid: str
    image: "Image | None" = None  # to show in place of the grid

    def lines(self) -> str:
        """Return nine lines of nine digits, with a dot for an empty cell."""
        grid = self.grid.replace("0", ".")
        return "\n".join(spaced(grid[i : i + 9]) for i in range(0, 81, 9))

    @property
    def clues(self) -> set[int]:
        return {cell for cell in CELLS if self.grid[cell] != "0"}


def read(given: str) -> list[Puzzle]:
    """Return the puzzles of an argument: 81 cells, a file of puzzles, or - for stdin. Each has exactly one solution."""
    if given == "-":
        return _from_text("\n".join(lines(interactive=False)), "stdin")
    if not _is_grid(given) and os.path.exists(given):
        return _from_text(read_text(Path(given)), given)
    if not re.fullmatch(r"[0-9.\s]*", given) and len("".join(given.split())) != 81:
        raise InputError(
            f"no such file: {given}; expected 81 digits (0 or . for an empty cell), a file of puzzles, or - for stdin"
        )
    return [_puzzle("", given)]


def read_picture(model: "Gesso", picture: "PIL.Image.Image", name: str) -> Puzzle:
    """Return the puzzle that a model reads in a picture. It has exactly one solution."""
    image = model.read_image(picture, where=name)
    read = Puzzle(name, read_grid(model, image, name), image)
    try:
        check_puzzle(read.grid)
    except InputError as error:
        raise InputError(
            f"{name} is read as\n{read.lines()}\n{error}. If it shows another puzzle, crop the picture to the grid, or "
            "type the puzzle"
        ) from None
    return read


def _from_text(text: str, name: str) -> list[Puzzle]:
    if _is_grid(text):  # one puzzle on any number of lines
        return [_puzzle(name, text)]
    puzzles = [_puzzle(f"{name}:{number}", puzzle, given) for number, puzzle, given in find_puzzles(text, name)]
    if not puzzles:
        raise InputError(f"{name}: no puzzle found; expected 81 digits or dots per line")
    return puzzles


def _is_grid(text: str) -> bool:
    return re.fullmatch(r"[0-9.]{81}", re.sub(r"\s", "", text)) is not None


def _puzzle(name: str, text: str, given: str | None = None) -> Puzzle:
    return Puzzle(name, check_puzzle(text, given, name)[0])


# --- answers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The model's answer to a puzzle."""

    puzzle: Puzzle
    answer: str  # as generated, without white space; 81 digits if well-formed
    number: int  # 1 for the first attempt
    steps: int  # of this attempt and all before it
    seconds: float  # of the model, over the same attempts; without the pauses of the live view
    seed: int

    @property
    def solved(self) -> bool:
        return solves(self.answer, self.puzzle.grid)

    @property
    def is_grid(self) -> bool:
        return re.fullmatch(r"[1-9]{81}", self.answer) is not None

    def lines(self) -> str:
        """Return nine lines of nine digits; an answer that is not a grid stays as it is."""
        return "\n".join(spaced(self.answer[i : i + 9]) for i in range(0, 81, 9)) if self.is_grid else self.answer

    def verdict(self) -> str:
        if self.solved:
            again = f", at attempt {self.number}" if self.number > 1 else ""
            return f"solved in {_count(self.steps, 'step')}, {self.seconds:.2f} s{again}"
        if not self.is_grid:
            return "not solved: the answer is not a grid of 81 digits"
        lost = {cell for cell in self.puzzle.clues if self.answer[cell] != self.puzzle.grid[cell]}
        broken = repeated(self.answer) - (self.puzzle.clues - lost)
        # The solution is unique, so an unsolved grid breaks a rule or changes a clue.
        reasons = [f"{_count(len(broken), 'cell')} break{'s' * (len(broken) == 1)} the rules"] if broken else []
        reasons += [f"{_count(len(lost), 'clue')} not kept"] if lost else []
        return f"not solved: {', '.join(reasons)}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "puzzle": self.puzzle.grid,
            "solution": self.answer,
            "solved": self.solved,
            "valid": is_valid(self.answer),
            "clues": len(self.puzzle.clues),
            "attempts": self.number,
            "steps": self.steps,
            "seconds": self.seconds,
            "seed": self.seed,
        }


def repeated(grid: Sequence[str]) -> set[int]:
    """Return the cells whose digit also occurs elsewhere in their row, column or box."""
    cells: set[int] = set()
    for unit in UNITS.values():
        signs = [grid[cell] for cell in unit]
        cells |= {cell for cell in unit if grid[cell] in DIGITS and signs.count(grid[cell]) > 1}
    return cells


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


# --- solving --------------------------------------------------------------------------------------------------------


def attempts(
    model: "Gesso", puzzle: Puzzle, *, most: int, watch: bool, seed: int | None, **options: Any
) -> Iterator[Attempt]:
    """Yield attempts until one solves the puzzle. Each retry uses a symmetry of the puzzle, which the view shows.

    `options` are options of `Gesso.generate` and override those of the task.
    """
    steps, seconds = 0, 0.0
    shown, status = puzzle, ""
    back: Callable[[str], str] = str
    for number in range(1, most + 1):
        if number > 1:
            assert seed is not None, "the first attempt sets the seed"
            grid, back = transformed(puzzle.grid, seed, number - 1)
            shown, status = replace(puzzle, grid=grid, image=None), f"attempt {number}, transformed · "
        prompt = puzzle_prompt(model, shown.image) if shown.image is not None else spaced(shown.grid)
        events = model.stream(prompt, **{**Sudoku.options, **options, "seed": seed})
        result, took = _follow(model, shown, events, watch, status)
        answer = back("".join(result.text.split()))
        steps += result.usage.denoising_steps
        seconds += took
        seed = result.seed
        attempt = Attempt(puzzle=puzzle, answer=answer, number=number, steps=steps, seconds=seconds, seed=seed)
        yield attempt
        if attempt.solved:
            return


def _follow(
    model: "Gesso", puzzle: Puzzle, events: "Iterator[Event]", watch: bool, status: str
) -> "tuple[Result, float]":
    """Consume a stream, with the live view if requested on a terminal. Return the result and the model's seconds."""
    drawable = sys.stderr.isatty() and not console(sys.stderr).is_dumb_terminal
    places = _places(model, puzzle)
    live = None
    if watch and drawable and len(places) == 81:
        blank = Frame(paint(puzzle, [SPECIAL] * 81, [False] * 81), status + "reading the puzzle")
        # No refresh thread and no redirected stdout: see gesso.cli.terminal.
        live = Live(blank, console=Console(stderr=True), transient=True, auto_refresh=False, redirect_stdout=False)
    seconds, drawn = 0.0, time.perf_counter()
    with live or nullcontext():
        while True:
            began = time.perf_counter()
            event = next(events)
            seconds += time.perf_counter() - began
            if live and event.kind in ("draft", "done"):
                time.sleep(max(0.0, drawn + FRAME_SECONDS - time.perf_counter()))
            if event.kind == "done":
                return event.result, seconds
            if live and event.kind == "draft":
                live.update(_frame(model, puzzle, event, places, status), refresh=True)
                drawn = time.perf_counter()


# --- the live view --------------------------------------------------------------------------------------------------


def _places(model: "Gesso", puzzle: Puzzle) -> list[int]:
    """Return the positions of the cells' tokens in an answer: the same as in the puzzle.

    Counting the characters of a draft instead would shift the whole grid at every token of noise.
    """
    tokens = model.tokenizer.encode(spaced(puzzle.grid), bos=False)
    return [place for place, token in enumerate(tokens) if model.decode([token]).strip()]


def _frame(model: "Gesso", puzzle: Puzzle, draft: "Draft", places: Sequence[int], status: str) -> "Frame":
    tokens = [*draft.before, *draft.tokens]
    positions = [True] * len(draft.before) + draft.stable
    # Slices, because a checkpoint with short canvases has no draft of the last cells yet.
    cells = [_sign(model.decode(tokens[place : place + 1])) for place in places]
    settled = [any(positions[place : place + 1]) for place in places]
    return Frame(paint(puzzle, cells, settled), f"{status}step {draft.canvas.step} · cells settled {sum(settled)}/81")


def _sign(text: str) -> str:
    """Return one printable ASCII character, because noise may be wide or right-to-left."""
    first = text.strip()[:1]
    return first if first and first.isascii() and first.isprintable() else SPECIAL


def paint(puzzle: Puzzle, cells: Sequence[str], settled: Sequence[bool]) -> list[tuple[str, str]]:
    """Return the character and style of each cell. Only a different settled digit replaces a clue."""
    claims = []  # the clue or settled digit of each cell
    for clue, sign, is_settled in zip(puzzle.grid, cells, settled, strict=True):
        digit = sign if is_settled and sign in DIGITS else SPECIAL
        claims.append(clue if digit == SPECIAL and clue != "0" else digit)
    wrong = repeated(claims) | {cell for cell in puzzle.clues if claims[cell] != puzzle.grid[cell]}
    painted = []
    for cell, claim in enumerate(claims):
        if claim == puzzle.grid[cell]:
            painted.append((claim, CLUE))
        elif claim == SPECIAL:
            painted.append((cells[cell], OPEN))
        else:
            painted.append((claim, WRONG if cell in wrong else SETTLED))
    return painted


@dataclass(frozen=True)
class Frame:
    """The painted cells and a status line; a low terminal gets no grid lines."""

    painted: Sequence[tuple[str, str]]
    status: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ruled = options.size.height >= 15  # thirteen lines, the status, and a line for the cursor after the view closes
        for row in range(9):
            if ruled and row % 3 == 0:
                yield Text(BETWEEN if row else TOP, style=OPEN)
            yield self._row(row)
        if ruled:
            yield Text(BOTTOM, style=OPEN)
        yield Text(self.status, style="cyan", no_wrap=True, overflow="ellipsis")

    def _row(self, row: int) -> Text:
        text = Text(no_wrap=True)
        for column in range(9):
            text.append("" if column % 3 else "│ ", OPEN)
            text.append(*self.painted[9 * row + column]).append(" ")
        return text.append("│", OPEN)
