"""`gesso models` and `gesso rm`: the models on this machine."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from gesso.checkpoint import aliases
from gesso.cli.pull import NAME_HELP, hub_name
from gesso.cli.terminal import note, print_json, print_styled
from gesso.errors import InputError
from gesso.printable import printable

if TYPE_CHECKING:
    from gesso.checkpoint.local import LocalModel


def models(
    json: Annotated[bool, typer.Option("--json", help="Print the models as one JSON list.")] = False,
) -> None:
    """List the models on this machine: the bundled ones, and those in the Hugging Face cache."""
    from gesso.checkpoint import local

    installed = local.models()
    if json:
        print_json([asdict(model) for model in installed])
    else:
        print_styled(lambda console: _render(installed, console))


def rm(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a model from the Hugging Face cache, with interrupted downloads and old versions of it."""
    from gesso.checkpoint import local

    if aliases.is_automatic(name):
        raise InputError(f"{name} may be one of several models; gesso models lists the names of those here")
    target = hub_name(name)
    if not yes and (rows := local.removable(target)):
        if not sys.stdin.isatty():
            raise InputError(f"gesso rm asks before it deletes {target}, and stdin is not a terminal; give --yes")
        names = ", ".join(f"{row.name} ({_size(row.bytes)})" for row in rows)
        if not _confirmed(f"Delete {printable(names)}?"):
            note("nothing deleted")
            return
    note(f"deleted {target}: {_size(local.remove(target))} freed")


def _confirmed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        return False


def _render(models: "Sequence[LocalModel]", console: Console) -> None:
    table = Table("name", "format", "precision", "size", "last used", "")
    for model in models:
        size, mark = _size(model.bytes), "" if model.state == "complete" else model.state
        if model.state == "incomplete":
            size += f" of {_size(model.total_bytes)}"
        cells = (model.name, model.format, model.precision, size, model.last_used or "", mark)
        table.add_row(*map(printable, cells))
    console.print(table)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 10**8 else f"{count / 1e6:.1f} MB"
