"""`gesso eval`."""

import inspect
import re
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gesso.cli.options import Candidates, LoadOptions, SettingOptions, with_options
from gesso.cli.terminal import print_json, print_text
from gesso.errors import InputError
from gesso.progress import Progress

COUNT = 100
TASKS = "sudoku, python_infill, structured or decide"

if TYPE_CHECKING:
    from gesso.api import Gesso
    from gesso.eval import Item, Task
    from gesso.eval.evaluate import Evaluation
    from gesso.eval.paired import ComparedRun, Comparison


@with_options
def evaluate(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK", help=f"{TASKS}, or module:class for a task of your own; none for rows of your own."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help=f"Number of items. Default: {COUNT}, or all rows of your own.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    data: Annotated[
        list[Path] | None,
        typer.Option(help="A file of items to use instead of generated ones; without TASK, JSON Lines. Repeatable."),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="exact|contains|json|python|likelihood",
            help="How to score rows of your own. likelihood generates no text. Default: exact.",
        ),
    ] = None,
    clues: Annotated[
        str | None, typer.Option(metavar="LOW-HIGH", help="Clues of generated Sudokus, such as 30-36 or 24.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens per answer. Default: the task's.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Items that run at once. The answers do not depend on it.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the items and of the answers.")] = 0,
    steps: Annotated[
        list[int] | None, typer.Option(min=1, help="Step limit; repeat it for accuracy against steps.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write accuracy against steps as SVG.")] = None,
    attempts: Annotated[
        int, typer.Option(min=1, help="Attempts per item, for tasks that recognize a wrong answer (sudoku).")
    ] = 1,
    candidates: Candidates = 1,
    pinned: Annotated[
        bool, typer.Option("--pinned", help="Fill holes with the suffix pinned in the canvas, without markers.")
    ] = False,
    schema_in_prompt: Annotated[
        bool,
        typer.Option("--schema-in-prompt/--no-schema-in-prompt", help="Show the model the JSON schema (structured)."),
    ] = True,
    constrained: Annotated[bool, typer.Option("--constrained", help="Apply the constraints of the items.")] = False,
    against: Annotated[
        Path | None, typer.Option(help="A file with the --json output of an earlier run: print the paired difference.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything, item by item, as one JSON list.")] = False,
    *,
    loading: LoadOptions,
    denoising: SettingOptions,
) -> None:
    """Score a model on a task or on rows of your own. Every figure has a 95 % interval."""
    from gesso.eval.task import LOG_PROBABILITY

    task = _own_data(data, score, clues, plot) if name is None else _task(name, data, score, clues, schema_in_prompt)
    count = count or (COUNT if name else sys.maxsize)
    items = list(task.items(split, count, seed))  # before a large model is loaded
    settings: dict[str, Any] = {
        **denoising.diffusion(),
        **({} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}),
        "seed": seed,
        "data": {"split": split, "count": len(items), "seed": seed, "command": shlex.join(["gesso", *sys.argv[1:]])},
        "constrained": constrained,
        "attempts": attempts,
        "candidates": candidates,
        "pinned": pinned,
    }
    limits: Sequence[int | None] = [None] if LOG_PROBABILITY in task.scores else steps or [None]
    earlier = None if against is None else _earlier(against, items, len(limits))
    g = loading.load(max_batch=batch)
    evaluations = [_evaluate(g, task, items, limit, settings) for limit in limits]
    compared = _compared(earlier, evaluations)
    if plot is not None:
        from gesso.eval.plot import series, svg

        shown = task.scores[0]
        curve = series(task.name, evaluations, shown)
        plot.write_text(svg([curve], title=f"{task.name}: {shown} against steps", y_label=shown), encoding="utf-8")
    if json:
        rows = zip(evaluations, compared, strict=True)
        print_json([one.to_dict() | ({"against": change.to_dict()} if change else {}) for one, change in rows])
        return
    for evaluation, change in zip(evaluations, compared, strict=True):
        print_text(evaluation.summary())
        if change is not None:
            print_text(change.summary())


def _earlier(path: Path, items: "Sequence[Item]", count: int) -> "list[ComparedRun]":
    """Return the runs in a file, one for each of `count` evaluations. Reject other items before a model is loaded."""
    from gesso.eval.evaluate import fingerprint
    from gesso.eval.paired import check_same_items, read_runs

    runs = read_runs(path)
    if len(runs) not in (1, count):
        raise InputError(f"{path} has {len(runs)} evaluations; --against needs one, or one per --steps")
    for run in runs:
        check_same_items(run.fingerprint, fingerprint(items))
    return runs if len(runs) == count else runs * count


def _compared(
    earlier: "Sequence[ComparedRun] | None", evaluations: "Sequence[Evaluation]"
) -> "Sequence[Comparison] | Sequence[None]":
    """Return the difference of each evaluation to the earlier one at its place."""
    from gesso.eval.paired import ComparedRun, compare

    if earlier is None:
        return [None] * len(evaluations)
    return [compare(before, ComparedRun.of(after)) for before, after in zip(earlier, evaluations, strict=True)]


def _evaluate(
    g: "Gesso", task: "Task", items: Sequence[Any], steps: int | None, settings: dict[str, Any]
) -> "Evaluation":
    """Evaluate, and show the progress. A limit on `steps` overrides the settings."""
    from gesso.eval.evaluate import evaluate

    if steps is not None:
        settings = {**settings, "steps": steps}
    label = task.name if steps is None else f"{task.name}, --steps {steps}"
    with Progress() as progress:
        return evaluate(g, task, items, progress=partial(progress.show, label), **settings)


def _own_data(data: Sequence[Path] | None, score: str | None, clues: str | None, plot: Path | None) -> "Task":
    from gesso.eval.own_data import LIKELIHOOD, OwnData

    if not data:
        raise InputError(f"give a task ({TASKS}, or module:class), or your own rows with --data FILE")
    if clues is not None:
        raise InputError("--clues applies to sudoku; remove it, or name the task")
    if score == LIKELIHOOD and plot is not None:
        raise InputError("--plot shows scores against denoising steps, and --score likelihood takes none; remove one")
    return OwnData(data=tuple(data), kind=score or "exact")


def _task(
    name: str,
    data: Sequence[Path] | None,
    score: str | None,
    clues: str | None,
    schema_in_prompt: bool,
) -> "Task":
    from gesso import eval as tasks

    if score is not None:
        raise InputError(f"--score applies to rows of your own, without a task; {name} has scores of its own")
    options: dict[str, Any] = {"data": tuple(data)} if data else {}
    if clues is not None:
        options["clues"] = clue_range(clues)
    if not schema_in_prompt:
        options["schema_in_prompt"] = False
    for option in options:
        if option not in inspect.signature(tasks.find_class(name)).parameters:
            supported = [task for task, kind in tasks.TASKS.items() if option in inspect.signature(kind).parameters]
            flag = "no-schema-in-prompt" if option == "schema_in_prompt" else option
            raise InputError(f"--{flag} applies to {' and '.join(supported)}; remove it for the task {name}")
    if data and clues is not None:
        raise InputError("--clues applies to generated puzzles; remove it, or remove --data")
    return tasks.task(name, **options)


def clue_range(text: str) -> tuple[int, int]:
    """Parse 30-36, or 30 for a range of one number."""
    match = re.fullmatch("([0-9]{1,3})(?:-([0-9]{1,3}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high:
        raise InputError(f"--clues must be a number or a range from low to high, such as 24 or 30-36; got {text!r}")
    return low, high
