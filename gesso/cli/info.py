"""`gesso info`."""

from typing import Annotated

import typer

from gesso.bundled import BASE
from gesso.cli.options import MODEL_HELP
from gesso.cli.terminal import print_json, print_styled
from gesso.errors import InputError
from gesso.info.hardware import CARDS


def info(
    model: Annotated[
        str | None,
        typer.Argument(envvar="GESSO_MODEL", help=MODEL_HELP),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as one JSON object.")] = False,
    gpu: Annotated[
        str | None, typer.Option(metavar="CARD", help=f"And how it would run on a card: {', '.join(CARDS)}.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="With --gpu: denoising steps a canvas takes; 16 if not given.")
    ] = None,
) -> None:
    """Describe a checkpoint: its size, the memory it needs, what would keep it from loading."""
    from gesso.checkpoint import huggingface as checkpoint
    from gesso.info import fit, hardware
    from gesso.info.report import describe, render

    card = None if gpu is None else hardware.find(gpu)
    if card is None and steps is not None:
        raise InputError("--steps belongs to --gpu: it is how many denoising steps to reckon with on that card")
    directory = checkpoint.find(model)
    report = describe(directory, model or f"the model in the box ({BASE})")
    plan = None if card is None else fit.plan(directory, card, steps or fit.STEPS)
    if json:
        print_json(report.to_dict() | ({} if plan is None else {"gpu": plan.to_dict()}))
        return
    print_styled(lambda console: render(report, console))
    if plan is not None:
        print_styled(lambda console: fit.render(plan, console))
