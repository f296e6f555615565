"""`gesso tune`."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gesso import renamed
from gesso.cli.eval import clue_range
from gesso.cli.options import Loading, with_options
from gesso.cli.terminal import note, print_json, print_text
from gesso.errors import InputError
from gesso.progress import Progress
from gesso.settings import BY_TOKEN, SAMPLERS, WRITES, WriteName

if TYPE_CHECKING:
    from gesso.eval import Item
    from gesso.eval.tune.measure import Judge
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
    way: Annotated[
        list[str] | None,
        typer.Option(metavar="|".join(WRITES), help="Ways of writing to try; may be repeated. Default: all."),
    ] = None,
    sampler: Annotated[list[str] | None, typer.Option(hidden=True, help="The former name of --way.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens per answer. Default: the task's.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="End after this time. Default: no limit.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Answers that are written at once.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the items, the settings to try and the answers.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the settings to this .json file, for --preset.")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the settings to the generation_config.json of a local checkpoint.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Write quality against passes as SVG.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    *,
    loading: Loading,
) -> None:
    """Find the settings with the fewest passes at the same quality, for a checkpoint and your own prompts.

    The settings are chosen on some items and confirmed on others. If nothing is better beyond noise, the default stays.
    """
    from gesso.bundled import BASE, DIRECTORIES
    from gesso.checkpoint.generation import check_writable, write_diffusion
    from gesso.eval.tune import report
    from gesso.eval.tune import run as tuning
    from gesso.presets import SUFFIX, write_preset

    if write:
        name = loading.model or BASE
        check_writable(DIRECTORIES.get(name) or Path(name).expanduser())
    if out is not None and out.suffix != SUFFIX:
        raise InputError(f"--out must end in {SUFFIX}, so that --preset recognizes a file; got {out}")
    ways = _ways([*(way or ()), *map(_renamed, sampler or ())], write)
    name, judge, items, options = _items(prompts, task, score, clues, count, held_out, seed)
    if max_new_tokens is not None:
        options = {**options, "max_new_tokens": max_new_tokens}
    g = loading.load(max_batch=batch)
    with Progress() as progress:
        found = tuning.tune(
            g,
            name,
            judge,
            *items,
            writes=ways,
            scores=(score or ()) if task is not None else (),
            tolerance=tolerance,
            options=options,
            minutes=minutes,
            seed=seed,
            progress=progress.show,
        )
    if json:
        print_json(report.to_dict(found))
    else:
        print_text(report.summary(found))
    if plot is not None and found.search.table.answers:
        plot.write_text(report.plot(found), encoding="utf-8")
    if found.ended == "interrupt":
        raise typer.Exit(130)
    if out is not None:
        write_preset(out, found.best, report.facts(found))
        note(f"wrote {out}; use it with --preset {out}")
    if write:
        _write(found, g.directory, write_diffusion)


def _renamed(sampler: str) -> str:
    """Return the way of writing that a value of --sampler names, and warn."""
    way = renamed.SAMPLERS.get(sampler, "canvas" if sampler in SAMPLERS else sampler)
    renamed.warn(f"--sampler {sampler} is now --way {way}; {renamed.SOON}")
    return way


def _ways(given: Sequence[str], write: bool) -> list[WriteName]:
    """Return the ways of writing to try. The defaults of a checkpoint must suit constraints and pins."""
    if unknown := [name for name in given if name not in WRITES]:
        raise InputError(f"--way must be one of {', '.join(WRITES)}, got {unknown[0]!r}")
    chosen = [way for way in WRITES if way in given or not given]
    if not write:
        return chosen
    if tokens := [way for way in given if way in BY_TOKEN]:
        raise InputError(
            f"--write with --way {tokens[0]}: constraints and pins need canvases, so the defaults of a checkpoint "
            "cannot decide token by token; remove one, or use --out"
        )
    return [way for way in chosen if way not in BY_TOKEN]


def _items(
    prompts: Sequence[Path] | None,
    task: str | None,
    score: Sequence[str] | None,
    clues: str | None,
    count: int,
    held_out: int,
    seed: int,
) -> "tuple[str, Judge, tuple[list[Item], list[Item]], dict[str, Any]]":
    """Return a name, the judgement of answers, tuning and held-out items, and the options of their requests."""
    from gesso import eval as tasks
    from gesso.eval.own_data import LIKELIHOOD, OwnData, has_answers
    from gesso.eval.tune.measure import ByModel, ByTask
    from gesso.eval.tune.run import draw, split

    if bool(prompts) == (task is not None):
        raise InputError("give either a file of prompts or --task, such as gesso tune my.jsonl")
    if clues is not None and task != "sudoku":
        raise InputError("--clues applies to --task sudoku; remove it")
    if task is not None:
        if task not in TASKS and ":" not in task:
            raise InputError(f"--task must be one of {', '.join(TASKS)}, or module:class, got {task!r}")
        chosen = tasks.task(task, **({} if clues is None else {"clues": clue_range(clues)}))
        return chosen.name, ByTask(chosen), draw(chosen, count, held_out, seed), dict(chosen.options)
    if len(score or ()) > 1:
        raise InputError("rows of your own are scored in one way; give --score once")
    if score and score[0] == LIKELIHOOD:
        raise InputError(f"--score {LIKELIHOOD} reads given answers, so no settings matter; choose another score")
    paths = tuple(prompts or ())
    scored = bool(score) or has_answers(paths)
    rows = OwnData(data=paths, kind=score[0] if score else "exact", needs_answers=scored)
    tuning, confirming = split(list(rows.items("test", sys.maxsize, seed)), held_out, seed)
    return rows.name, ByTask(rows) if scored else ByModel(), (tuning[:count], confirming), {}


def _write(found: "Tuning", directory: Path, write: Callable[..., None]) -> None:
    if not found.verdict[0]:
        note("the defaults of the checkpoint stay as they are")
        return
    write(directory, found.best)
    note(f"wrote the settings to {directory / 'generation_config.json'}")
