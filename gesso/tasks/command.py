"""What `gesso eval TASK` does: draw the items, run them, and draw the plot."""

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, TaskID

from gesso.tasks import plot as plots
from gesso.tasks.evaluate import Evaluation, evaluate
from gesso.tasks.task import Task

if TYPE_CHECKING:
    from gesso.api import Gesso


def run(
    g: "Gesso", task: Task, *, split: str, count: int, seed: int, preset: str | None, steps: Sequence[int],
    plot: Path | None,
) -> list[Evaluation]:  # fmt: skip
    """One evaluation, or one for each limit on the steps."""
    items = list(task.items(split, count, seed))
    data = {"split": split, "count": count, "seed": seed, "command": shlex.join(["gesso", *sys.argv[1:]])}
    shared: dict[str, Any] = {"seed": seed, "data": data, **({"preset": preset} if preset else {})}
    limits: Sequence[int | None] = steps or [None]
    found = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        for limit in limits:
            bar_task = bar.add_task(task.name if limit is None else f"{task.name}, {limit} steps", total=count)
            options = shared if limit is None else {**shared, "steps": limit}
            show = partial(_show, bar, bar_task)
            found.append(evaluate(g, task, items, progress=show, **options))
    if plot is not None:
        score = task.scores[0]
        drawn = plots.series(task.name, found, score)
        text = plots.svg([drawn], title=f"{task.name}: {score} against steps", y_label=score)
        plot.write_text(text, encoding="utf-8")
    return found


def _show(bar: Progress, bar_task: TaskID, done: int, total: int) -> None:
    bar.update(bar_task, completed=done)
