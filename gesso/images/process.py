"""Resize a picture to a budget of soft tokens and cut it into patches, as the reference's image processor does.

The reference is `Gemma4ImageProcessorPil` of `transformers`. It divides the pixels by 255; here the model does.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from gesso.errors import InputError
from gesso.images.budgets import BUDGET, BUDGETS
from gesso.images.image import Image

if TYPE_CHECKING:
    import PIL.Image


def prepare(
    picture: "PIL.Image.Image", budget: int = BUDGET, patch: int = 16, pool: int = 3, positions: int | None = None
) -> Image:
    """Return a picture as the model reads it, with at most `budget` soft tokens.

    A patch has `patch` x `patch` pixels, and `pool` x `pool` patches become one soft token. `positions` is the size of
    the model's table of positions: no side has more patches.
    """
    from PIL.Image import Resampling

    from gesso.images.convert import upright_rgb

    if not all(picture.size):
        raise InputError(f"the picture has no pixels: it is {picture.width} x {picture.height}")
    picture = upright_rgb(picture)
    size = target_size(picture.width, picture.height, budget, patch * pool)
    if positions is not None:  # a small model's; the table of Gemma 4 is longer than any picture
        size = (min(size[0], positions // pool * pool * patch), min(size[1], positions // pool * pool * patch))
    if size != picture.size:
        picture = picture.resize(size, Resampling.BICUBIC)
    columns, rows = size[0] // patch, size[1] // patch
    pixels = np.asarray(picture).reshape(rows, patch, columns, patch, 3)
    patches = pixels.transpose(0, 2, 1, 3, 4).reshape(rows * columns, 3 * patch * patch)
    return Image(patches, rows, columns, tokens=rows * columns // pool**2)


def target_size(width: int, height: int, budget: int, side: int) -> tuple[int, int]:
    """Return the size to resize to: about the same shape, in multiples of `side`, and `budget` squares at most."""
    if budget not in BUDGETS:
        raise InputError(f"an image has {', '.join(map(str, BUDGETS[:-1]))} or {BUDGETS[-1]} tokens, got {budget}")
    scale = math.sqrt(budget * side**2 / (width * height))
    columns, rows = math.floor(scale * width / side), math.floor(scale * height / side)
    # A picture that is longer than `budget` times its width gets one row, and is distorted.
    if rows == 0:
        columns, rows = min(width // height, budget), 1
    elif columns == 0:
        columns, rows = 1, min(height // width, budget)
    return columns * side, rows * side
