"""`gesso push`."""

from pathlib import Path
from typing import Annotated

import typer

from gesso.cli.terminal import print_text


def push(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An adapter, or a checkpoint such as a merged one.")],
    name: Annotated[str, typer.Argument(help="Hugging Face name: owner/name. It is created if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False,
) -> None:
    """Upload an adapter or a checkpoint to Hugging Face, with a model card, and print its address."""
    from gesso.checkpoint import push as pushing

    print_text(pushing.push(directory, name, private=private))
