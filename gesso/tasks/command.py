"""What `gesso eval TASK` does: draw the items, run them, and draw the plot."""

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, TaskID

from gesso.errors import InputError
from gesso.tasks import plot as plots
from gesso.tasks import task
from gesso.tasks.evaluate import Evaluation, evaluate
from gesso.tasks.sudoku_source import SudokuSource
from gesso.tasks.task import Task

if TYPE_CHECKING:
    from gesso.api import Gesso
    from gesso.model.transformer import DiffusionGemma
    from gesso.tokenizer import Tokenizer
    from gesso.train.data import DataSettings, Source
    from gesso.train.recipe import EvalSettings
    from gesso.train.trainer import Score


def run(
    g: "Gesso", asked: Task, *, split: str, count: int, seed: int, preset: str | None, steps: Sequence[int],
    plot: Path | None,
) -> list[Evaluation]:  # fmt: skip
    """One evaluation, or one for each limit on the steps."""
    items = list(asked.items(split, count, seed))
    data = {"split": split, "count": count, "seed": seed, "command": shlex.join(["gesso", *sys.argv[1:]])}
    shared: dict[str, Any] = {"seed": seed, "data": data, **({"preset": preset} if preset else {})}
    limits: Sequence[int | None] = steps or [None]
    found = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        for limit in limits:
            bar_task = bar.add_task(asked.name if limit is None else f"{asked.name}, {limit} steps", total=count)
            options = shared if limit is None else {**shared, "steps": limit}
            show = partial(_show, bar, bar_task)
            found.append(evaluate(g, asked, items, progress=show, **options))
    if plot is not None:
        score = asked.scores[0]
        drawn = plots.series(asked.name, found, score)
        text = plots.svg([drawn], title=f"{asked.name}: {score} against steps", y_label=score)
        plot.write_text(text, encoding="utf-8")
    return found


def _show(bar: Progress, bar_task: TaskID, done: int, total: int) -> None:
    bar.update(bar_task, completed=done)


def source(settings: "DataSettings") -> "Callable[[Tokenizer, int], Source] | None":
    """What `data.task` in a recipe asks for: examples made as they are needed."""
    if settings.task is None:
        return None
    if settings.task != "sudoku":
        raise InputError(f"the task {settings.task!r} makes no examples as it goes; write its rows: gesso data")
    return partial(SudokuSource, settings)


def scorer(directory: Path, settings: "EvalSettings") -> "Score":
    """What `[eval]` in a recipe asks for: the task's scores for a model in training, by name."""
    from gesso.api import Gesso
    from gesso.config import Config
    from gesso.settings import GenerationDefaults
    from gesso.tokenizer import Tokenizer

    chosen = task(settings.task)
    items = list(chosen.items("validation", settings.count, settings.seed))
    defaults = GenerationDefaults.from_directory(directory, Config.from_directory(directory))
    tokenizer = Tokenizer.from_directory(directory)
    options: dict[str, Any] = {} if settings.steps is None else {"steps": settings.steps}

    def score(model: "DiffusionGemma") -> dict[str, float]:
        g = Gesso(model, tokenizer, defaults, directory, max_batch=8, max_length=None)
        found = evaluate(g, chosen, items, seed=settings.seed, **options)
        scores = {f"{settings.task}_{name}": value.mean for name, value in found.scores.items()}
        return {**scores, f"{settings.task}_steps": found.denoising_steps.mean}

    return score
