"""`gesso tune`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gesso.cli.eval import clue_range
from gesso.cli.options import LoadOptions, with_options
from gesso.cli.terminal import note, print_json, print_text
from gesso.errors import InputError
from gesso.progress import Progress

if TYPE_CHECKING:
    from gesso.eval import Item
    from gesso.eval.tune.judge import Judge
    from gesso.eval.tune.run import Tuning

TASKS = ("python_infill", "structured", "sudoku")
COUNT, HELD_OUT = 64, 500


@with_options
def tune(
    prompts: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PROMPTS.jsonl", help="Rows as gesso eval --data reads them; answers are optional."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="|".join((*TASKS, "module:class")), help="A task in place of prompts.")
    ] = None,
    score: Annotated[
        list[str] | None,
        typer.Option(
            help="How to score your rows (exact, contains, json or python), or the scores of a task that must not "
            "fall; may be repeated for a task. Default: exact, or the task's first."
        ),
    ] = None,
    clues: Annotated[
        str | None, typer.Option(metavar="LOW-HIGH", help="Clues of generated Sudokus, such as 22-24.")
    ] = None,
    count: Annotated[int, typer.Option(min=8, help="Items to tune on, at most.")] = COUNT,
    held_out: Annotated[
        int, typer.Option(min=3, help="Items to confirm the result on, at most; of your rows at most half.")
    ] = HELD_OUT,
    tolerance: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="How far a score may fall: 0.02 is two points.")
    ] = 0.02,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens per answer. Default: the task's.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="End after this time. Default: no limit.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Answers that are written at once.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the items and the answers.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the settings to this .json file, for --preset.")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the settings to the generation_config.json of a local checkpoint.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Write quality against passes as SVG.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    *,
    loading: LoadOptions,
) -> None:
    """Find the settings with the fewest passes at the same quality, for a checkpoint and your own prompts.

    The settings are chosen on some items and confirmed on others. If nothing is better beyond noise, the default stays.
    """
    from gesso.bundled import BASE, DIRECTORIES
    from gesso.checkpoint.generation import check_writable, write_diffusion
    from gesso.eval.tune import report
    from gesso.eval.tune.grid import candidates
    from gesso.eval.tune.run import Tuner, Tuning, goal_of
    from gesso.presets import SUFFIX, write_preset

    if write:
        name = loading.model or BASE
        check_writable(DIRECTORIES.get(name) or Path(name).expanduser())
    if out is not None and out.suffix != SUFFIX:
        raise InputError(f"--out must end in {SUFFIX}, so that --preset recognizes a file; got {out}")
    name, judge, items, confirming = _items(prompts, task, score, clues, count, held_out, seed)
    goal = goal_of(judge, (score or ()) if task is not None else ())
    g = loading.load(max_batch=batch)
    tuning = Tuning(
        name=name,
        goal=goal,
        tolerance=tolerance,
        candidates=candidates(g.defaults.diffusion, canvases_only=write),
        items=(len(items), len(confirming)),
        seed=seed,
    )
    tuner = Tuner(
        g=g,
        judge=judge,
        options={"seed": seed} | ({} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}),
        watch=_watch,
        finished=lambda trial: note(report.line(trial)),
        minutes=minutes,
    )
    tuner.run(tuning, items, confirming)
    if json:
        print_json(report.to_dict(tuning))
    else:
        print_text(report.summary(tuning))
    if plot is not None and tuning.trials:
        plot.write_text(report.plot(tuning), encoding="utf-8")
    if tuning.ended == "interrupt":
        raise typer.Exit(130)
    if out is not None:
        write_preset(out, tuning.best, report.facts(tuning))
        note(f"wrote {out}; use it with --preset {out}")
    if write:
        _write(tuning, g.directory, write_diffusion)


def _items(
    prompts: Sequence[Path] | None,
    task: str | None,
    score: Sequence[str] | None,
    clues: str | None,
    count: int,
    held_out: int,
    seed: int,
) -> "tuple[str, Judge, list[Item], list[Item]]":
    """Return a name, the judgement of answers, and tuning and held-out items."""
    from gesso import eval as tasks
    from gesso.eval.own_data import LIKELIHOOD, OwnData, has_answers
    from gesso.eval.tune.judge import ByModel, ByTask
    from gesso.eval.tune.run import split

    if bool(prompts) == (task is not None):
        raise InputError("give either a file of prompts or --task, such as gesso tune my.jsonl")
    if clues is not None and task != "sudoku":
        raise InputError("--clues applies to --task sudoku; remove it")
    if task is not None:
        if task not in TASKS and ":" not in task:
            raise InputError(f"--task must be one of {', '.join(TASKS)}, or module:class, got {task!r}")
        chosen = tasks.task(task, **({} if clues is None else {"clues": clue_range(clues)}))
        tuning = list(chosen.items("validation", count, seed))
        return chosen.name, ByTask(chosen), tuning, list(chosen.items("test", held_out, seed))
    if len(score or ()) > 1:
        raise InputError("rows of your own are scored in one way; give --score once")
    if score and score[0] == LIKELIHOOD:
        raise InputError(f"--score {LIKELIHOOD} reads given answers, so no settings matter; choose another score")
    paths = tuple(prompts or ())
    scored = bool(score) or has_answers(paths)
    rows = OwnData(data=paths, kind=score[0] if score else "exact", needs_answers=scored)
    tuning, confirming = split(list(rows.items("test", sys.maxsize, seed)), held_out, seed)
    return rows.name, ByTask(rows) if scored else ByModel(rows), tuning[:count], confirming


@contextmanager
def _watch(name: str) -> "Iterator[Callable[[int, int], None]]":
    """Show the progress of the work of this name. The line of a finished candidate follows when it has ended."""
    with Progress() as progress:
        yield partial(progress.show, name)


def _write(tuning: "Tuning", directory: Path, write: Callable[..., None]) -> None:
    if not tuning.verdict[0]:
        note("the defaults of the checkpoint stay as they are")
        return
    write(directory, tuning.best)
    note(f"wrote the settings to {directory / 'generation_config.json'}")
