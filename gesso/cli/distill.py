"""`gesso distill`."""

import gc
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gesso.cli.options import Model, SettingOptions, with_options
from gesso.cli.terminal import note, print_text
from gesso.cli.train import is_given, train_recipe
from gesso.errors import InputError
from gesso.progress import Progress

if TYPE_CHECKING:
    from gesso.distill.prompts import Prompts
    from gesso.train.recipe import Recipe

RECORDINGS = "trajectories"  # in the directory of the run
COUNT = 2000
# Options that a recipe replaces.
TRAINING = (
    "model", "quantize", "out", "lora", "targets", "objective", "certainty", "depth", "rows", "steps",
    "batch_size", "lr",
)  # fmt: skip


def _training(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Training", **more)


@with_options
def distill(
    context: typer.Context,
    recipe: Annotated[
        Path | None,
        typer.Argument(help="A recipe with a [distill] section, in place of the options under Training."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="structured|python_infill|sudoku|module:class", help="Record answers to items of its train split."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|OWNER/NAME[:SPLIT]",
            help="Record answers to the prompts of these rows, as for gesso train; may be repeated.",
        ),
    ] = None,
    trajectories: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Where the runs are recorded. Default: trajectories/ in --out. Without --task and --data: train on "
            "these recordings; may be repeated.",
        ),
    ] = None,
    accept: Annotated[
        str | None,
        typer.Option(
            metavar="SCORE|none",
            help="Train on texts with a 1 in this score of the task; for rows exact, contains, json or python. "
            "Default: fields, parses or exact, by the task; none for rows.",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help=f"Runs to record. Default: {COUNT}, or all rows.")] = None,
    record_only: Annotated[bool, typer.Option("--record-only", help="Record the runs without training.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Runs that are recorded at once; the result is the same.")] = 32,
    denoising_steps: Annotated[
        int | None, typer.Option(min=2, help="Step limit of the recorded runs. Default: the checkpoint's.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens per recorded answer.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after this many minutes; the same command continues.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the prompts, the runs and the training.")] = 0,
    model: Model = None,
    quantize: Annotated[
        str | None, _training("Quantize the frozen weights while loading.", metavar="fp8|int4|nvfp4")
    ] = None,
    out: Annotated[str | None, _training("Directory of the run. Required without a recipe.")] = None,
    lora: Annotated[
        int | None, _training("Train an adapter of this rank. Default: all weights.", metavar="RANK", min=1)
    ] = None,
    targets: Annotated[str, _training("Weights that the adapter changes, as for gesso train.")] = "attention,mlp",
    objective: Annotated[
        str,
        _training("ordinary is the control: the same texts under random noise.", metavar="trajectory|ordinary"),
    ] = "trajectory",
    certainty: Annotated[float, _training("Weight of the entropy where the argmax is right.", min=0.0)] = 1.0,
    depth: Annotated[
        int, _training("Steps before the last canvas of a run that is shown; each costs a pass.", min=1)
    ] = 4,
    rows: Annotated[
        float, _training("Share of ordinary rows: the references of the prompts, or --data.", min=0.0, max=0.9)
    ] = 0.25,
    steps: Annotated[int | None, _training("Optimizer steps. Default: two passes over the runs.", min=1)] = None,
    batch_size: Annotated[int | None, _training("Examples per step. Default: 64, 16 on a CPU.", min=2)] = None,
    lr: Annotated[float | None, _training("Peak learning rate. Default: by the width of the model.")] = None,
    *,
    denoising: SettingOptions,
) -> None:
    """Teach a model to write its own texts in fewer steps.

    Records runs of the model, with the canvas before every step, and keeps those whose text a verifier accepts. Then
    trains every canvas towards the final text of its run. The same command continues an interrupted one.
    """
    import torch

    from gesso.checkpoint.find import find_directory
    from gesso.distill.plan import DistillOptions, make_recipe
    from gesso.model.config import Config
    from gesso.train.recipe import load

    if task is not None and data:
        raise InputError("give --task or --data, not both: a recording has one kind of prompts")
    if recipe is not None and (given := next(filter(partial(is_given, context), TRAINING), None)):
        option = f"--{given.replace('_', '-')}"
        raise InputError(f"{option} is for a run without a recipe; in place of it, change {recipe}")
    settings = load(recipe) if recipe is not None else None
    if settings is not None and settings.distill is None:
        raise InputError(f"{recipe} has no [distill] section; add one, or train it with gesso train")
    if settings is None and out is None and not (record_only and trajectories):
        raise InputError("give --out, the directory of the run")
    if settings is not None and settings.distill is not None:
        places = settings.distill.trajectories
        model = settings.model.path
        quantize = settings.model.quantize
    else:
        places = tuple(trajectories or (f"{out}/{RECORDINGS}",))
    began = time.monotonic()
    if task is not None or data:
        if "RANK" in os.environ:
            raise InputError("runs are recorded in one process; record them first, then torchrun gesso train RECIPE")
        into = tuple(trajectories or places)
        if len(into) > 1:
            raise InputError("a command records into one directory: name it with --trajectories DIRECTORY")
        options = denoising.diffusion()
        options |= {"steps": denoising_steps} if denoising_steps else {}
        options |= {"max_new_tokens": max_new_tokens} if max_new_tokens else {}
        prompts = _prompts(model, task, tuple(data or ()), count, seed, accept)
        adapter = getattr(settings.lora, "adapter", None) if settings else None
        if not _record(prompts, Path(into[0]), model, quantize, adapter, options, batch, minutes):
            print_text("stopped  while recording: the same command continues")
            return
    elif record_only:
        raise InputError("give --task or --data: there is nothing to record")
    if record_only:
        return
    if settings is None:
        assert out is not None
        chosen = DistillOptions(
            out=out, trajectories=places, data=tuple(data or ()), model=model, quantize=quantize, lora=lora,
            targets=tuple(name.strip() for name in targets.split(",")), objective=objective, certainty=certainty,
            depth=depth, rows=rows, steps=steps, batch_size=batch_size, lr=lr, seed=seed,
        )  # fmt: skip
        device = "cuda" if torch.cuda.is_available() else "cpu"
        settings = make_recipe(chosen, Config.from_directory(find_directory(model)), device)
        note("\n".join(_lines(settings)))
    left = None if minutes is None else max(minutes - (time.monotonic() - began) / 60, 0.01)
    train_recipe(settings, left, written=recipe is None)


def _prompts(
    model: str | None, task: str | None, data: tuple[str, ...], count: int | None, seed: int, accept: str | None
) -> "Prompts":
    from gesso.chat.tokenizer import Tokenizer
    from gesso.checkpoint.find import find_directory
    from gesso.distill.prompts import RowPrompts, TaskPrompts
    from gesso.train.data import Dataset
    from gesso.train.plan import LIMIT
    from gesso.train.recipe import DataSettings
    from gesso.train.run import eos_of

    if task is not None:
        return TaskPrompts(task, count or COUNT, seed, accept)
    directory = find_directory(model)
    wanted = DataSettings(files=data, max_length=LIMIT, on_bad_row="skip")
    return RowPrompts(
        data, Dataset(wanted, Tokenizer.from_directory(directory), eos_of(directory)), count, seed, accept
    )


def _record(
    prompts: "Prompts",
    directory: Path,
    model: str | None,
    quantize: str | None,
    adapter: str | None,
    options: dict[str, Any],
    batch: int,
    minutes: float | None,
) -> bool:
    """Record the runs, with a progress bar, and free the model: training needs its memory."""
    import torch

    import gesso
    from gesso.checkpoint.find import find_directory
    from gesso.checkpoint.source import open_source
    from gesso.distill.record import is_complete, note_of, record
    from gesso.train.inputs import base_fingerprints
    from gesso.train.trajectories import read_index

    base = base_fingerprints(open_source(find_directory(model)))
    named = {"model": base, "quantize": quantize, "adapter": adapter}
    if is_complete(directory, note_of(prompts, named, options)):
        return True
    g = gesso.load(model, quantize=quantize, adapter=adapter, max_batch=batch, write="canvas")
    try:
        with Progress() as progress:
            show = partial(progress.show, "recording runs")
            complete = record(g, prompts, directory, named, options, batch=batch, show=show, minutes=minutes)
    finally:
        del g
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if index := read_index(directory):
        note(
            f"runs     {index['runs']:,} recorded in {directory}, {index['accepted']:,} accepted "
            f"({prompts.note['accept']}), {index['steps']:.1f} steps per canvas"
        )
    return complete


def _lines(recipe: "Recipe") -> list[str]:
    """Return the choices, in a few lines."""
    from gesso.bundled import BASE

    run = recipe.run
    distill = recipe.distill
    assert distill is not None
    lora = recipe.lora
    trained = f"adapter of rank {getattr(lora, 'rank', '')}" if lora else "all weights"
    examples = run.batch_size * run.accumulate
    return [
        f"model    {recipe.model.path or BASE}, {recipe.model.quantize or recipe.model.dtype}, {trained}",
        f"steps    {run.steps:,} of {examples} examples, {distill.rows:.0%} ordinary rows, "
        f"objective {distill.objective}",
        f"rate     {recipe.optimizer.lr:.2g}, cosine to 10 %, after {recipe.optimizer.warmup} steps of warm-up",
    ]
