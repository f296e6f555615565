"""`gesso train`."""

from pathlib import Path
from typing import Annotated

import typer

from gesso.cli.terminal import print_json, print_styled


def train(
    recipe: Annotated[Path, typer.Argument(help="A TOML file; see examples/ and docs/training.md.")],
    check: Annotated[bool, typer.Option("--check", help="Look at the data and train nothing.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Stop after so long; run again, it goes on.")] = None,
    json: Annotated[bool, typer.Option("--json", help="With --check: the report as one JSON object.")] = False,
) -> None:
    """Train or fine-tune a model. Run again, it goes on from its newest checkpoint."""
    from gesso.train import check as checks
    from gesso.train import run as command
    from gesso.train.recipe import load

    read = load(recipe)
    if not check:
        from gesso.eval.scorer import scorer

        score = None
        if asked := read.eval:
            directory = command.directory_of(read)
            score = scorer(directory, asked.task, count=asked.count, seed=asked.seed, steps=asked.steps)
        command.train(read, score=score, minutes=minutes)
        return
    report = command.check(read)
    if json:
        print_json(report.to_dict())
    else:
        print_styled(lambda console: checks.render(report, console))
