"""`gesso generate`."""

import sys
from typing import Annotated

import typer

from gesso import renamed
from gesso.cli.delivery import deliver
from gesso.cli.options import Decode, GenerationOptions, Json, Live, LoadOptions, with_options
from gesso.cli.terminal import follow, lines
from gesso.errors import InputError


@with_options
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="Text to continue. - or none: stdin without its last line break.")
    ] = None,
    live: Live = True,
    json: Json = False,
    decode: Decode = None,
    *,
    loading: LoadOptions,
    options: GenerationOptions,
) -> None:
    """Continue a text."""
    text, keywords = _prompt(prompt), renamed.translated({**options.keywords(), "decode": decode})
    model = loading.load(max_batch=1, write=keywords.get("write"))
    result = follow(model, model.events(model.request(text, **keywords), retry=True), live and not json)
    deliver(result, as_json=json, writing=model.writing)


def _prompt(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        raise InputError("there is no prompt; give one as an argument or pipe it to stdin")
    text = "\n".join(lines(interactive=False)) if given in (None, "-") else given
    if not text:
        raise InputError("the prompt is empty; give some text to continue")
    return text
