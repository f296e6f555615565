"""`gesso quantize`."""

from pathlib import Path
from typing import Annotated

import typer

from gesso.cli.terminal import print_json, print_styled


def quantize(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Directory or hub name of a checkpoint.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The directory to write; new, or empty.")],
    to: Annotated[
        str,
        typer.Option(
            help="fp8 (half the size), int4 or nvfp4 (a third: experts at four bits, the rest fp8); "
            "fp8-layers, int4-layers, nvfp4-layers: embeddings and head stay as they are."
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> None:
    """Write a checkpoint with its matrices in few bits, and report how far they are from the original."""
    from gesso.checkpoint.quantize import convert as command

    report = command.quantize(source, target, to)
    if json:
        print_json(report.to_dict())
    else:
        print_styled(lambda console: command.render(report, console))
