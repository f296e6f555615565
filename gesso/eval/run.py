"""What `gesso eval TASK` and `gesso data TASK` do: run the items and draw the plot; write the rows to train on."""

import gzip
import json
import lzma
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, TaskID

from gesso.cli.terminal import note, print_json
from gesso.errors import InputError
from gesso.eval import plot as plots
from gesso.eval import task
from gesso.eval.task import Task
from gesso.files import replacing
from gesso.train.files import SUFFIXES

if TYPE_CHECKING:
    from gesso.api import Gesso
    from gesso.chat.tokenizer import Tokenizer
    from gesso.eval.evaluate import Evaluation
    from gesso.model.transformer import DiffusionGemma
    from gesso.train.data import Source
    from gesso.train.recipe import DataSettings, EvalSettings
    from gesso.train.trainer import Score

# --- eval -----------------------------------------------------------------------------------------------------------


def run(
    g: "Gesso", asked: Task, *, split: str, count: int, seed: int, steps: Sequence[int], plot: Path | None,
    **options: Any,
) -> "list[Evaluation]":  # fmt: skip
    """One evaluation, or one for each limit on the steps."""
    from gesso.eval.evaluate import evaluate

    items = list(asked.items(split, count, seed))
    data = {"split": split, "count": count, "seed": seed, "command": shlex.join(["gesso", *sys.argv[1:]])}
    shared: dict[str, Any] = {"seed": seed, "data": data, **options}
    limits: Sequence[int | None] = steps or [None]
    found = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        for limit in limits:
            bar_task = bar.add_task(asked.name if limit is None else f"{asked.name}, {limit} steps", total=count)
            settings = shared if limit is None else {**shared, "steps": limit}
            show = partial(_show, bar, bar_task)
            found.append(evaluate(g, asked, items, progress=show, **settings))
    if plot is not None:
        score = asked.scores[0]
        drawn = plots.series(asked.name, found, score)
        text = plots.svg([drawn], title=f"{asked.name}: {score} against steps", y_label=score)
        plot.write_text(text, encoding="utf-8")
    return found


def _show(bar: Progress, bar_task: TaskID, done: int, total: int) -> None:
    bar.update(bar_task, completed=done)


# --- data -----------------------------------------------------------------------------------------------------------


def write_rows(rows: Iterable[Mapping[str, Any]], count: int, out: Path | None, *, force: bool = False) -> None:
    """`count` rows as JSON lines: into a file that is packed as its name says, or to stdout."""
    if out is None:
        for row in _shown(rows, count, hidden=sys.stdout.isatty()):
            print_json(row)
        return
    with _whole_file(out, force) as file:
        for row in _shown(rows, count):
            file.write(json.dumps(row).encode() + b"\n")
    note(f"{count:,} rows in {out}")


def _shown(rows: Iterable[Mapping[str, Any]], count: int, hidden: bool = False) -> Iterator[Mapping[str, Any]]:
    """The rows, with a bar on stderr if that is a terminal."""
    disable = hidden or not sys.stderr.isatty()
    # The bar would otherwise take what goes to stdout for something to print above itself, on stderr.
    with Progress(console=Console(stderr=True), transient=True, disable=disable, redirect_stdout=False) as bar:
        yield from bar.track(rows, total=count, description="rows")


@contextmanager
def _whole_file(out: Path, force: bool) -> Iterator[IO[bytes]]:
    """A new file of training rows that is there when all of it is written."""
    if not out.name.endswith(SUFFIXES):
        raise InputError(f"--out {out}: the name must end in {', '.join(SUFFIXES)}")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no directory {out.parent}")
    if out.is_dir() or (out.exists() and not force):
        raise InputError(f"--out {out}: it is there already" + ("" if out.is_dir() else "; --force replaces it"))
    with replacing(out) as file, _packed(file, out.suffix) as packed:
        yield packed


def _packed(file: IO[bytes], suffix: str) -> Any:
    """Return a writer that compresses into `file` and leaves it open. The same rows give the same bytes."""
    if suffix == ".gz":
        return gzip.GzipFile("", "wb", fileobj=file, mtime=0)
    if suffix == ".xz":
        return lzma.open(file, "wb", preset=9)
    if suffix != ".zst":
        return nullcontext(file)
    try:
        return import_module("zstandard").ZstdCompressor().stream_writer(file, closefd=False)
    except ImportError:
        raise InputError("writing .zst needs the package zstandard: pip install 'gesso[train]'") from None


# --- train ----------------------------------------------------------------------------------------------------------


def source(settings: "DataSettings") -> "Callable[[Tokenizer, int], Source] | None":
    """What `data.task` in a recipe asks for: examples made as they are needed."""
    if settings.task is None:
        return None
    if settings.task != "sudoku":
        raise InputError(f"the task {settings.task!r} makes no examples as it goes; write its rows: gesso data")
    from gesso.eval.sudoku_source import SudokuSource

    return partial(SudokuSource, settings)


def scorer(directory: Path, settings: "EvalSettings") -> "Score":
    """What `[eval]` in a recipe asks for: the task's scores for a model in training, by name."""
    from gesso.api import Gesso
    from gesso.chat.tokenizer import Tokenizer
    from gesso.checkpoint.generation import GenerationDefaults
    from gesso.eval.evaluate import evaluate
    from gesso.model.config import Config

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
