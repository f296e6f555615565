"""`gesso train`."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gesso.cli.options import Model
from gesso.cli.terminal import note, print_report, print_text
from gesso.cli.train_summary import CURVE_FILE, RECIPE_FILE, summary
from gesso.errors import InputError
from gesso.memory.allocator import allocator_settings

if TYPE_CHECKING:
    from gesso.train.plan import TrainingPlan
    from gesso.train.recipe import Recipe


def _with_data(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="With --data", **more)


def train(
    context: typer.Context,
    recipe: Annotated[
        Path | None, typer.Argument(help="A TOML file; see examples/ and docs/guides/fine-tuning.md. Or give --data.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|OWNER/NAME[:SPLIT]",
            help="Train an adapter on these rows without a recipe: a .jsonl, .json or .parquet file, or a dataset of "
            "the hub; may be repeated.",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Report on the data without training.")] = False,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after this many minutes; the same command resumes the run.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|SIZE",
            help="GPU memory that the process may use, with the CUDA context: a share of the GPU's, or a size such as "
            "18GB. Default: all.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="With --check: print the report as one JSON object.")] = False,
    model: Model = None,
    quantize: Annotated[
        str | None, _with_data("Quantize the frozen weights while loading.", metavar="fp8|int4|nvfp4")
    ] = None,
    out: Annotated[str | None, _with_data("Directory of the run. Default: runs/ and the name of the data.")] = None,
    held_out: Annotated[
        list[str] | None,
        _with_data(
            "Rows to evaluate on, as --data; may be repeated. none: train on all rows. Default: none for up to 200 "
            "rows and a small model, which learns them by heart; otherwise 5 % of them, at least 2 and at most 200.",
            metavar="FILE|OWNER/NAME[:SPLIT]|none",
        ),
    ] = None,
    steps: Annotated[int | None, _with_data("Optimizer steps. Default: by the number of epochs.", min=1)] = None,
    epochs: Annotated[
        int | None, _with_data("Passes over the rows. Default: 3, more for few rows or a small model.", min=1)
    ] = None,
    lr: Annotated[float | None, _with_data("Peak learning rate. Default: by the width of the model.")] = None,
    rank: Annotated[
        int | None,
        _with_data("Rank of the adapter; alpha is twice that. Default: 16; 64 below a billion parameters.", min=1),
    ] = None,
    targets: Annotated[
        str | None,
        _with_data(
            "Weights that the adapter changes, of attention, mlp, experts, router, self_conditioning. Default: "
            "attention,mlp; below a billion parameters also experts and self_conditioning."
        ),
    ] = None,
    max_length: Annotated[
        int | None, _with_data("Tokens of a row at most. Default: the longest row, up to 2048.", min=2)
    ] = None,
    batch_size: Annotated[
        int | None, _with_data("Rows per step. Default: 16, or 8 for a small model; fewer for few rows.", min=1)
    ] = None,
    eval_every: Annotated[
        int | None, _with_data("Steps between evaluations of the held-out rows. Default: an eighth of all.", min=1)
    ] = None,
    patience: Annotated[int, _with_data("Stop after this many evaluations without an improvement.", min=1)] = 3,
    seed: Annotated[int, _with_data("Seed of the adapter, the order and the noise.", min=0)] = 0,
    log: Annotated[
        list[str] | None, _with_data("Send the metrics there as well; may be repeated.", metavar="wandb|tensorboard")
    ] = None,
) -> None:
    """Train or fine-tune a model, with a recipe or with --data.

    The same command resumes an interrupted run from its newest checkpoint.
    """
    os.environ.update(allocator_settings(os.environ))  # before torch is imported
    from gesso.train import data_report, run
    from gesso.train.recipe import load

    if recipe is not None:
        if given := next(filter(partial(is_given, context), WITH_DATA), None):
            option = f"--{given.replace('_', '-')}"
            raise InputError(f"{option} goes with --data; in place of it, change {recipe}, which has all settings")
        settings = load(recipe)
    elif data:
        plan = _plan(context.params, check)
        settings = plan.recipe
        if not check:
            note("\n".join(plan.lines()))
    else:
        raise InputError("give a recipe or --data FILE, such as gesso train --data chats.jsonl")
    if check:
        report = run.check(settings)
        print_report(report, lambda console: data_report.render(report, console), json)
        return
    train_recipe(settings, minutes, written=recipe is None, memory=memory)


WITH_DATA = (
    "data", "model", "quantize", "out", "held_out", "steps", "epochs", "lr", "rank", "targets", "max_length",
    "batch_size", "eval_every", "patience", "seed", "log",
)  # fmt: skip


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether an option is on the command line, not in the environment or the configuration file."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _plan(options: Mapping[str, Any], check: bool) -> "TrainingPlan":
    """Return the plan for the options of the command line. Lists become tuples, as a recipe has them."""
    import torch

    from gesso.train.plan import TrainOptions, make_plan

    given = {name: options[name] for name in WITH_DATA}
    given["targets"] = [name.strip() for name in (given["targets"] or "").split(",") if name.strip()]
    lists = {name: tuple(given[name] or ()) for name in ("data", "held_out", "targets", "log")}
    return make_plan(TrainOptions(**{**given, **lists}), "cuda" if torch.cuda.is_available() else "cpu", check=check)


def train_recipe(recipe: "Recipe", minutes: float | None, *, written: bool, memory: str | None = None) -> None:
    """Train, and write the loss curve and the next commands. With `written`, write the recipe as well."""
    from gesso.eval.curve import loss_curve
    from gesso.eval.samples import answerer
    from gesso.eval.scorer import scorer
    from gesso.train import run, state
    from gesso.train.metrics import read_metrics
    from gesso.train.recipe_file import write_recipe

    out, directory = Path(recipe.run.out).expanduser(), run.directory_of(recipe)
    first = os.environ.get("RANK", "0") == "0"  # of the processes of torchrun
    written = written and first
    comment = f"Repeat this run: gesso train {RECIPE_FILE}, with another run.out."
    if written and state.latest(out) is None:  # the directory of another run is rejected before anything is written
        write_recipe(recipe, out / RECIPE_FILE, comment)
    score = None
    if wanted := recipe.eval:
        score = scorer(directory, wanted.task, count=wanted.count, seed=wanted.seed, steps=wanted.steps)
    answer = answerer(directory)
    learned = run.train(recipe, score=score, minutes=minutes, answer=answer, memory=memory)
    if not first:
        return
    if written:
        write_recipe(recipe, out / RECIPE_FILE, comment)
    metrics = read_metrics(out)
    if metrics:
        (out / CURVE_FILE).write_text(loss_curve(metrics, f"Loss of {out.name}"), encoding="utf-8")
    print_text("\n".join(summary(recipe, out, metrics, learned)))
