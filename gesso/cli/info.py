"""`gesso info`."""

from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from gesso.bundled import BASE
from gesso.cards.named import CARDS, find
from gesso.cli.options import MODEL_HELP
from gesso.cli.terminal import print_json, print_styled, print_text
from gesso.errors import InputError

if TYPE_CHECKING:
    from gesso.checkpoint.source import CheckpointSource


def info(
    model: Annotated[
        str | None,
        typer.Argument(envvar="GESSO_MODEL", help=MODEL_HELP),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
    gpu: Annotated[
        str | None, typer.Option(metavar="CARD", help=f"Add a plan for a graphics card: {', '.join(CARDS)}.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="With --gpu: denoising steps per canvas; 16 if not given.")
    ] = None,
) -> None:
    """Describe a checkpoint: its size, the memory it needs, and reasons why it would not load."""
    from gesso.info import fit, render
    from gesso.info.report import describe
    from gesso.info.verdict import verdict

    card = None if gpu is None else find(gpu)
    if card is None and steps is not None:
        raise InputError("--steps needs --gpu: it is the number of denoising steps per canvas on that card")
    source = _source(model)
    report = describe(source, model or f"the bundled model ({BASE})")
    plan = None if card is None else fit.plan(source.config, card, steps or fit.STEPS)
    judged = None if plan is None else verdict(model, plan)
    missing = _missing_kernels()
    if json:
        print_json(
            asdict(report)
            | {"missing_kernels": missing}
            | ({} if plan is None else {"verdict": judged, "gpu": asdict(plan)})
        )
        return
    if judged is not None:
        print_text(judged + "\n")
    print_styled(lambda console: render.render_report(report, console))
    if plan is not None:
        print_styled(lambda console: render.render_plan(plan, console))
    for line in missing:
        print_text(f"\nOn this machine, {line}")


def _missing_kernels() -> list[str]:
    """Return a line for each kernel that the installed Triton disables on this machine's GPU."""
    import torch

    if not torch.cuda.is_available() or find_spec("triton") is None:
        return []
    from gesso.backends.cuda.kernels.gluon_kernels import missing_kernels

    return missing_kernels(torch.device("cuda"))


def _source(model: str | None) -> "CheckpointSource":
    """Return the checkpoint to describe. The shape of DiffusionGemma is known without its files."""
    from gesso.checkpoint.aliases import is_automatic
    from gesso.checkpoint.find import find
    from gesso.checkpoint.random_weights import PUBLISHED_SHAPE, is_random
    from gesso.checkpoint.source import locate, open_source

    if is_automatic(model):
        return locate(PUBLISHED_SHAPE)
    if is_random(model):
        return locate(model)
    return open_source(find(model, weights=False))
