"""`gesso eval` and `gesso data`."""

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gesso.cli.options import Candidates, Denoising, Loading, with_options
from gesso.cli.terminal import print_json, print_text
from gesso.errors import InputError

if TYPE_CHECKING:
    from gesso.eval import Task

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="sudoku, python_infill or structured.")]
Data = Annotated[list[Path] | None, typer.Option(help="A file of items instead of our own; may be repeated.")]
Clues = Annotated[
    str | None, typer.Option(metavar="LOW-HIGH", help="Clues of a Sudoku of our own, such as 30-36 or 24.")
]


@with_options
def evaluate(
    name: TaskName,
    count: Annotated[int, typer.Option(min=1, help="How many items.")] = 100,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    data: Data = None,
    clues: Clues = None,
    batch: Annotated[int, typer.Option(min=1, help="Items under way at once; the answers do not depend on it.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Of the items and of the answers.")] = 0,
    steps: Annotated[
        list[int] | None, typer.Option(min=1, help="Step limit; several give accuracy against steps.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write accuracy against steps as SVG.")] = None,
    attempts: Annotated[
        int, typer.Option(min=1, help="Tries at an item whose answer can be told to be wrong; a Sudoku's can.")
    ] = 1,
    candidates: Candidates = 1,
    pinned: Annotated[
        bool, typer.Option("--pinned", help="Fill holes as a model without markers does: what follows is pinned.")
    ] = False,
    constrained: Annotated[bool, typer.Option("--constrained", help="Hold answers to what items say of them.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Everything, item by item, as one JSON object.")] = False,
    *,
    loading: Loading,
    denoising: Denoising,
) -> None:
    """Score a model on a task, every figure with its 95 % interval."""
    from gesso.eval.run import run

    task = _task(name, data, clues)
    settings = denoising.diffusion()
    found = loading.load(max_batch=batch)
    evaluations = run(
        found, task, split=split, count=count, seed=seed, steps=steps or [], plot=plot, constrained=constrained,
        attempts=attempts, candidates=candidates, pinned=pinned, **settings,
    )  # fmt: skip
    if json:
        print_json([evaluation.to_dict() for evaluation in evaluations])
        return
    for evaluation in evaluations:
        print_text(evaluation.summary())


def training_data(
    name: TaskName,
    count: Annotated[int, typer.Option(min=1, help="How many rows.")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same rows.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A file: .jsonl, .jsonl.gz, .jsonl.xz or .jsonl.zst; without it, stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    data: Data = None,
    clues: Clues = None,
) -> None:
    """Write a task's training rows, as gesso train reads them."""
    from gesso.eval.run import write_rows

    write_rows(_task(name, data, clues).training_rows(count, seed), count, out, force=force)


def _task(name: str, data: Sequence[Path] | None, clues: str | None) -> "Task":
    from gesso import eval as tasks

    options: dict[str, Any] = {"data": tuple(data)} if data else {}
    if clues is not None:
        options["clues"] = _range(clues)
    for option in options:
        able = [task for task, kind in tasks.TASKS.items() if option in inspect.signature(kind).parameters]
        if name in tasks.TASKS and name not in able:
            raise InputError(f"--{option} is for {' and '.join(able)}; the task {name} takes none")
    if data and clues is not None:
        raise InputError("--clues is for puzzles of our own; those from --data have the clues they have")
    return tasks.task(name, **options)


def _range(text: str) -> tuple[int, int]:
    """30-36, or 30 for a range of one."""
    match = re.fullmatch("([0-9]{1,3})(?:-([0-9]{1,3}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high:
        raise InputError(f"--clues is a number or a range from low to high, such as 24 or 30-36; got {text!r}")
    return low, high
