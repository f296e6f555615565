"""`gesso generate`."""

import sys
from typing import Annotated

import typer

from gesso.cli.delivery import deliver
from gesso.cli.options import Asking, Constraint, Denoising, Json, Live, Loading, with_options
from gesso.cli.terminal import follow, lines
from gesso.errors import InputError


@with_options
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; - or nothing: stdin, less its last line break.")
    ] = None,
    live: Live = True,
    json: Json = False,
    *,
    loading: Loading,
    asking: Asking,
    constraint: Constraint,
    denoising: Denoising,
) -> None:
    """Continue a text."""
    text, asked = _prompt(prompt), {**asking.asked(), **constraint.constraint(), **denoising.diffusion()}
    model = loading.load()
    result = follow(model, model.stream(text, **asked), live and not json)
    deliver(result, as_json=json)


def _prompt(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        raise InputError("no prompt; give one as an argument or pipe it in")
    text = "\n".join(lines(interactive=False)) if given in (None, "-") else given
    if not text:
        raise InputError("the prompt is empty")
    return text
