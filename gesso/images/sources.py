"""Read an image from whatever a Python program has: a path, the bytes of a file, a `data:` URL or a Pillow image."""

import os
import re
from pathlib import Path
from typing import Any

from gesso.errors import InputError
from gesso.files import read_bytes
from gesso.images.budgets import BUDGET
from gesso.images.image import Image
from gesso.images.process import prepare
from gesso.images.read import MAX_BYTES, open_picture
from gesso.images.urls import data_of


def read_source(
    source: Any, where: str, budget: int | None = None, *, patch: int = 16, pool: int = 3, positions: int | None = None
) -> Image:
    """Return an image prepared by `gesso.images.process.prepare`. Errors begin with `where`."""
    import PIL.Image

    if isinstance(source, Image):
        if budget is not None:
            raise InputError(
                f"{where}: the image is prepared already, with {source.tokens} tokens; leave out its budget"
            )
        return source
    try:
        picture = source if isinstance(source, PIL.Image.Image) else open_picture(_bytes(source, where), where)
        return prepare(picture, budget or BUDGET, patch, pool, positions)
    except InputError as error:
        message = str(error)
        raise InputError(message if message.startswith(where) else f"{where}: {message}") from None
    except OSError as error:  # of a Pillow image that is decoded only now
        raise InputError(f"{where}: the picture cannot be read: {error}") from None


def _bytes(source: Any, where: str) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str) and re.match("data:", source, re.IGNORECASE):
        return data_of(source, where)
    if isinstance(source, str) and (scheme := re.match(r"(https?|file|ftp)://", source, re.IGNORECASE)):
        do = "give its path" if scheme[1].lower() == "file" else "download it and give its path or bytes"
        raise InputError(f"{where}: URLs are not opened, except data: URLs; {do}")
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"{where}: expected a path, bytes, a data: URL or a Pillow image, got {type(source).__name__}")
    path = Path(source).expanduser()
    try:
        return read_bytes(path, MAX_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise InputError(f"{where}: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
