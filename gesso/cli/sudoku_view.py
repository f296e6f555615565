"""What `gesso sudoku` does: read puzzles as people write them, watch the grid settle, and judge the model's answer.

The solver of `gesso.eval` says whether a puzzle can be asked, which is whether it has one solution; it never lends it.
Whether it was answered the rules tell: what keeps them and the clues is that solution.
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
from gesso.eval.sudoku import Sudoku, spaced, turned
from gesso.eval.sudoku_grid import CELLS, DIGITS, UNITS, is_valid, parse_puzzle, puzzles_in, read_text, solves

if TYPE_CHECKING:
    from gesso.api import Gesso
    from gesso.engine.events import Draft, Event, Result

FRAME_SECONDS = 0.15  # a small model is done before the eye has seen a thing
CLUE, STANDS, OPEN, WRONG = "bold", "cyan", "dim", "red"
TOP, BETWEEN, BOTTOM = "┌───────┬───────┬───────┐", "├───────┼───────┼───────┤", "└───────┴───────┴───────┘"


# --- puzzles --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Puzzle:
    name: str  # file and line, or nothing for one that was typed
    grid: str

    @property
    def clues(self) -> set[int]:
        return {cell for cell in CELLS if self.grid[cell] != "0"}


def read(given: str) -> list[Puzzle]:
    """The puzzles that an argument means: 81 cells, a file of puzzles, or - for stdin. All of them can be solved."""
    if given == "-":
        return _from_text("\n".join(lines(interactive=False)), "stdin")
    if not _is_grid(given) and os.path.exists(given):
        return _from_text(read_text(Path(given)), given)
    if not re.fullmatch(r"[0-9.\s]*", given) and len("".join(given.split())) != 81:
        raise InputError(
            f"no such file: {given}; a puzzle is 81 digits (0 or . for an empty cell), a file of such lines, "
            "or - for stdin"
        )
    return [_puzzle("", given)]


def _from_text(text: str, name: str) -> list[Puzzle]:
    if _is_grid(text):  # one puzzle, on as many lines as it likes
        return [_puzzle(name, text)]
    found = [_puzzle(f"{name}:{number}", puzzle, given) for number, puzzle, given in puzzles_in(text, name)]
    if not found:
        raise InputError(f"{name}: there is no puzzle in it; expected 81 digits or dots a line")
    return found


def _is_grid(text: str) -> bool:
    return re.fullmatch(r"[0-9.]{81}", re.sub(r"\s", "", text)) is not None


def _puzzle(name: str, text: str, given: str | None = None) -> Puzzle:
    try:
        grid, solution = parse_puzzle(text)
        if given not in (None, solution):
            raise InputError("the solution in this line is not the puzzle's")
    except InputError as error:
        raise InputError(f"{name}: {error}" if name else str(error)) from None
    return Puzzle(name, grid)


# --- answers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What the model made of a puzzle."""

    puzzle: Puzzle
    answer: str  # as it was written, less white space; 81 digits if all went well
    number: int  # 1 for the first attempt
    steps: int  # of this attempt and those before it
    seconds: float  # the same, of the model; what the view waits for the eye is not in it
    seed: int

    @property
    def solved(self) -> bool:
        return solves(self.answer, self.puzzle.grid)

    @property
    def is_grid(self) -> bool:
        return re.fullmatch(r"[1-9]{81}", self.answer) is not None

    def lines(self) -> str:
        """Nine lines of nine digits; an answer that is no grid as it is."""
        return "\n".join(spaced(self.answer[i : i + 9]) for i in range(0, 81, 9)) if self.is_grid else self.answer

    def verdict(self) -> str:
        if self.solved:
            again = f", at attempt {self.number}" if self.number > 1 else ""
            return f"solved in {_count(self.steps, 'step')}, {self.seconds:.2f} s{again}"
        if not self.is_grid:
            return "not solved: the answer is not a grid of 81 digits"
        lost = {cell for cell in self.puzzle.clues if self.answer[cell] != self.puzzle.grid[cell]}
        broken = repeated(self.answer) - (self.puzzle.clues - lost)
        # The solution is the only one: what keeps the clues and the rules would be it.
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
    """The cells whose digit stands elsewhere in their row, column or box too."""
    found: set[int] = set()
    for unit in UNITS.values():
        signs = [grid[cell] for cell in unit]
        found |= {cell for cell in unit if grid[cell] in DIGITS and signs.count(grid[cell]) > 1}
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


# --- solving --------------------------------------------------------------------------------------------------------


def attempts(
    model: "Gesso", puzzle: Puzzle, *, most: int, watch: bool, seed: int | None, **options: Any
) -> Iterator[Attempt]:
    """Ask the model, and while its answer breaks a rule, ask again with the puzzle turned, which is how it is watched.

    `options` are those of `Gesso.generate`, on top of the task's own.
    """
    steps, seconds = 0, 0.0
    shown, status = puzzle, ""
    back: Callable[[str], str] = str
    for number in range(1, most + 1):
        if number > 1:
            assert seed is not None, "the first attempt has drawn one"
            grid, back = turned(puzzle.grid, seed, number - 1)
            shown, status = replace(puzzle, grid=grid), f"attempt {number}, turned · "
        events = model.stream(spaced(shown.grid), **{**Sudoku.options, **options, "seed": seed})
        result, took = _follow(model, shown, events, watch, status)
        answer = back("".join(result.text.split()))
        steps, seconds, seed = steps + result.usage.denoising_steps, seconds + took, result.seed
        attempt = Attempt(puzzle=puzzle, answer=answer, number=number, steps=steps, seconds=seconds, seed=result.seed)
        yield attempt
        if attempt.solved:
            return


def _follow(
    model: "Gesso", puzzle: Puzzle, events: "Iterator[Event]", watch: bool, status: str
) -> "tuple[Result, float]":
    """A stream to its end and the seconds it took, watched if that is wanted and there is a terminal."""
    drawable = sys.stderr.isatty() and not console(sys.stderr).is_dumb_terminal
    places = _places(model, puzzle)
    live = None
    if watch and drawable and len(places) == 81:
        blank = Frame(paint(puzzle, [SPECIAL] * 81, [False] * 81), status + "reading the puzzle")
        # No thread and no hand on stdout, for the reasons given in gesso.cli.terminal.
        live = Live(blank, console=Console(stderr=True), transient=True, auto_refresh=False, redirect_stdout=False)
    seconds, drawn = 0.0, time.perf_counter()
    with live or nullcontext():
        while True:
            asked = time.perf_counter()
            event = next(events)
            seconds += time.perf_counter() - asked
            if live and event.kind in ("draft", "done"):
                time.sleep(max(0.0, drawn + FRAME_SECONDS - time.perf_counter()))
            if event.kind == "done":
                return event.result, seconds
            if live and event.kind == "draft":
                live.update(_frame(model, puzzle, event, places, status), refresh=True)
                drawn = time.perf_counter()


# --- the live view --------------------------------------------------------------------------------------------------


def _places(model: "Gesso", puzzle: Puzzle) -> list[int]:
    """Where in an answer the tokens of the cells are: where they are in the puzzle, which is written the same way.

    Counting the characters of a draft instead would move the whole grid for every token of noise.
    """
    tokens = model.tokenizer.encode(spaced(puzzle.grid), bos=False)
    return [place for place, token in enumerate(tokens) if model.decode([token]).strip()]


def _frame(model: "Gesso", puzzle: Puzzle, draft: "Draft", places: Sequence[int], status: str) -> "Frame":
    tokens = [*draft.before, *draft.tokens]
    settled = [True] * len(draft.before) + draft.settled
    # Slices: a checkpoint with short canvases has not come to the last cells yet.
    cells = [_sign(model.decode(tokens[place : place + 1])) for place in places]
    standing = [any(settled[place : place + 1]) for place in places]
    return Frame(paint(puzzle, cells, standing), f"{status}step {draft.canvas.step} · cells settled {sum(standing)}/81")


def _sign(text: str) -> str:
    """One column, whatever the token: noise may be wide, or write to the left."""
    first = text.strip()[:1]
    return first if first and first.isascii() and first.isprintable() else SPECIAL


def paint(puzzle: Puzzle, cells: Sequence[str], standing: Sequence[bool]) -> list[tuple[str, str]]:
    """What each cell shows, and in which style. A clue gives way only to another digit that stands in its place."""
    claims = []  # the digit that a cell holds by now, if any
    for clue, sign, stands in zip(puzzle.grid, cells, standing, strict=True):
        digit = sign if stands and sign in DIGITS else SPECIAL
        claims.append(clue if digit == SPECIAL and clue != "0" else digit)
    wrong = repeated(claims) | {cell for cell in puzzle.clues if claims[cell] != puzzle.grid[cell]}
    painted = []
    for cell, claim in enumerate(claims):
        if claim == puzzle.grid[cell]:
            painted.append((claim, CLUE))
        elif claim == SPECIAL:
            painted.append((cells[cell], OPEN))
        else:
            painted.append((claim, WRONG if cell in wrong else STANDS))
    return painted


@dataclass(frozen=True)
class Frame:
    """The painted cells and the status below them; without the ruled lines where the terminal is too low for them."""

    painted: Sequence[tuple[str, str]]
    status: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ruled = options.size.height >= 15  # thirteen lines, the status, and one for the cursor when the view closes
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
