"""The options of commands that take images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gesso.errors import InputError
from gesso.files import read_bytes
from gesso.images.budgets import BUDGET, BUDGETS
from gesso.images.read import MAX_BYTES, open_picture

if TYPE_CHECKING:
    import PIL.Image

    from gesso.api import Gesso
    from gesso.images.image import Image


def _check_tokens(tokens: int) -> int:
    if tokens not in BUDGETS:
        raise InputError(f"--image-tokens must be one of {', '.join(map(str, BUDGETS))}, got {tokens}")
    return tokens


Images = Annotated[list[Path] | None, typer.Option("--image", help="Picture for the first message; may be repeated.")]
ImageTokens = Annotated[
    int,
    typer.Option(metavar="|".join(map(str, BUDGETS)), callback=_check_tokens, help="Tokens per image, at most."),
]
IMAGE_TOKENS = BUDGET


def open_pictures(paths: Sequence[Path]) -> "list[tuple[str, PIL.Image.Image]]":
    """Return pictures with the names of their files. It needs no model: errors come before one is loaded."""
    return [(str(path), open_picture(_contents(path), str(path))) for path in paths]


def prepared(model: "Gesso", pictures: "Sequence[tuple[str, PIL.Image.Image]]", tokens: int) -> "list[Image]":
    """Return pictures as a model reads them."""
    return [model.read_image(picture, tokens, where=name) for name, picture in pictures]


def content(images: "Sequence[Image]", text: str) -> str | list[dict[str, Any]]:
    """Return the content of a message: images, and a text about them."""
    if not images:
        return text
    return [*({"type": "image", "image": image} for image in images), {"type": "text", "text": text}]


def _contents(path: Path) -> bytes:
    try:
        return read_bytes(path.expanduser(), MAX_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
