"""Prepared images on their way to the engine: their shapes, and the pixels of all of them.

Imports no torch: the request reader packs them, and the engine process unpacks them.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from gesso.images.image import Image

Shape = tuple[int, int, int, int]  # rows and columns of patches, soft tokens, and values of a patch


def pack(images: Iterable[Image]) -> tuple[list[Shape], bytes]:
    """Return the shapes and the pixels of images. An image that occurs twice is packed once: a prompt names it."""
    different = {image.digest: image for image in images}.values()
    shapes = [(image.rows, image.columns, image.tokens, image.patches.shape[1]) for image in different]
    return shapes, b"".join(np.ascontiguousarray(image.patches).tobytes() for image in different)


def unpack(shapes: Sequence[Shape], pixels: memoryview) -> tuple[Image, ...]:
    """Return the images with these shapes. The pixels are not copied."""
    images, start = [], 0
    for rows, columns, tokens, values in shapes:
        count = rows * columns * values
        patches = np.frombuffer(pixels, np.uint8, count, start).reshape(rows * columns, values)
        images.append(Image(patches, rows, columns, tokens))
        start += count
    return tuple(images)
