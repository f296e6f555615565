"""`gesso pull`."""

from typing import Annotated

import typer

from gesso.checkpoint import aliases
from gesso.checkpoint.cache import HubName
from gesso.choosing import choose_here
from gesso.cli.options import Device, Memory
from gesso.cli.terminal import note, print_text
from gesso.errors import InputError
from gesso.memory.device import SHARE

NAME_HELP = (
    f"Hugging Face name: owner/model, or of a GGUF file owner/model:Q4_K_M. Or an alias: {', '.join(aliases.names())}."
)


def pull(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    device: Device = None,
    memory: Memory = str(SHARE),
) -> None:
    """Download a model, or the rest of it, and print its path. A model that is here is updated."""
    from gesso.checkpoint import hub

    if aliases.is_automatic(name):
        choice = choose_here(device, memory, None)
        note(choice.reason)
        name = choice.name
    print_text(str(hub.pull(hub_name(name))))


def hub_name(name: str) -> HubName:
    """Return the parts of a hub name or alias."""
    parts = HubName.parse(str(aliases.hub_name(name)))
    if parts is None:
        raise InputError(f"{name!r} is not a Hugging Face name of the form owner/model or owner/model:FILE.gguf")
    return parts
