"""`gesso merge`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from gesso.cli.terminal import print_report
from gesso.printable import printable


def merge(
    base: Annotated[str, typer.Argument(help="Directory or hub name of the checkpoint that the adapter belongs to.")],
    adapter: Annotated[str, typer.Argument(help="Directory or hub name of an adapter.")],
    out: Annotated[Path, typer.Argument(help="The directory to write, new or empty.")],
    json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Add an adapter to the weights of a checkpoint and write the result as a checkpoint of the same dtype."""
    from gesso.adapters.merging import merge_files

    report = merge_files(base, adapter, out)

    def render(console: Console) -> None:
        text = f"{report.directory}: {report.merged} tensors changed, {report.bytes / 1e9:,.2f} GB"
        console.print(Text(printable(text), overflow="fold"))

    print_report(report, render, json)
