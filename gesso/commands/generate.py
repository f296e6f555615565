"""`gesso generate`."""

import sys
from typing import Annotated

import typer

from gesso.commands.delivery import deliver
from gesso.errors import InputError
from gesso.options import Options, with_options
from gesso.terminal import follow, lines


@with_options
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; - or nothing: stdin, less its last line break.")
    ] = None,
    *,
    options: Options,
) -> None:
    """Continue a text."""
    text, asked = _prompt(prompt), options.request()
    model = options.load()
    result = follow(model, model.stream(text, **asked), options.watch)
    deliver(result, as_json=options.json)


def _prompt(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        raise InputError("no prompt; give one as an argument or pipe it in")
    text = "\n".join(lines(interactive=False)) if given in (None, "-") else given
    if not text:
        raise InputError("the prompt is empty")
    return text
