"""`gesso decide`."""

from dataclasses import asdict
from typing import Annotated

import typer

from gesso.cli.images import IMAGE_TOKENS, Images, ImageTokens, content, open_pictures, prepared
from gesso.cli.options import Json, LoadOptions, with_options
from gesso.cli.terminal import print_json, print_text
from gesso.errors import InputError


@with_options
def decide(
    prompt: Annotated[str, typer.Argument(help="Question to answer with one of the choices.")],
    choice: Annotated[list[str], typer.Option(help="A possible answer; repeat it, at least twice.")],
    is_text: Annotated[
        bool, typer.Option("--continue", help="The prompt is a text that one of the choices continues.")
    ] = False,
    image: Images = None,
    image_tokens: ImageTokens = IMAGE_TOKENS,
    json: Json = False,
    *,
    loading: LoadOptions,
) -> None:
    """Choose among several answers to a question, or continuations of a text, with the probability of each."""
    if is_text and image:
        raise InputError("--image belongs to a question; leave out --continue")
    pictures = open_pictures(image or ())
    model = loading.load()
    question = content(prepared(model, pictures, image_tokens), prompt)
    decision = model.decide(prompt if is_text else [{"role": "user", "content": question}], choice)
    if json:
        print_json(asdict(decision))
        return
    for text, probability in decision.probabilities.items():
        print_text(f"{100 * probability:5.1f} %  {text}")
