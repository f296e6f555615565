"""`gesso train`."""

from pathlib import Path
from typing import Annotated

import typer

from gesso.cli.terminal import print_report


def train(
    recipe: Annotated[Path, typer.Argument(help="A TOML file; see examples/ and docs/guides/fine-tuning.md.")],
    check: Annotated[bool, typer.Option("--check", help="Report on the data without training.")] = False,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after this many minutes; the same command resumes the run.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="With --check: print the report as one JSON object.")] = False,
) -> None:
    """Train or fine-tune a model. The same command resumes an interrupted run from its newest checkpoint."""
    from gesso.train import data_report, run
    from gesso.train.recipe import load

    settings = load(recipe)
    if check:
        report = run.check(settings)
        print_report(report, lambda console: data_report.render(report, console), json)
        return
    from gesso.eval.scorer import scorer

    score = None
    if wanted := settings.eval:
        directory = run.directory_of(settings)
        score = scorer(directory, wanted.task, count=wanted.count, seed=wanted.seed, steps=wanted.steps)
    run.train(settings, score=score, minutes=minutes)
