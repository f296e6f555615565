"""Limits on pictures, checked when a file has been opened and nothing has been decoded yet.

A file of a few kilobytes can claim gigabytes of pixels, or have millions of pixels decoded again and again.
"""

from typing import Any

from gesso.errors import InputError

MAX_SIDE = 30_000  # pixels; for a damaged TIFF file, libtiff writes a line per row to stderr
# The largest sensors of phones and cameras have fewer. A pixel takes 4 bytes while it is decoded, 8 if it is converted,
# and 10 in a progressive JPEG file.
MAX_PIXELS = 1 << 26
# Of all scans of a JPEG file together. Each passes over the whole picture, and one of 100 bytes may take 50 ms.
# Progressive files have about ten.
MAX_SCANNED = 24 * MAX_PIXELS
MAX_RUN_LENGTH = 1 << 21  # pixels and bytes of a BMP file with run-length encoding, which Pillow decodes in Python

# Tags of TIFF files (TIFF 6.0, sections 8, 15 and 22).
COMPRESSION = 259
STRIP_SIZES = 279
TILE_WIDTH = 322
TILE_HEIGHT = 323
TILE_SIZES = 325
JPEG_COMPRESSIONS = (6, 7)


def check_cost(picture: Any, data: bytes) -> None:
    """Reject a picture that would take too much memory or time to decode. `data` is its file."""
    width, height = picture.size
    _check_pixels(width, height)
    pixels = width * height
    tags = getattr(picture, "tag_v2", {})
    if tags:
        # A tile is decoded as a whole even if the picture is smaller. All strips could share the same bytes.
        _check_pixels(sum(_numbers(tags, TILE_WIDTH)), sum(_numbers(tags, TILE_HEIGHT)), "a tile of the picture")
        if sum(_numbers(tags, STRIP_SIZES)) + sum(_numbers(tags, TILE_SIZES)) > 2 * len(data):
            raise InputError("the TIFF file is damaged or incomplete: it claims more data than it has; save it again")
    if data.startswith(b"\xff\xd8") or set(_numbers(tags, COMPRESSION)) & set(JPEG_COMPRESSIONS):
        scans = data.count(b"\xff\xda")  # this marker never occurs within a scan
        if scans * pixels > MAX_SCANNED:
            raise InputError(f"the file has {scans:,} JPEG scans, which take too long to decode; save it again")
    run_length = picture.format == "BMP" and picture.info.get("compression") in (1, 2)
    if run_length and max(pixels, len(data)) > MAX_RUN_LENGTH:
        raise InputError("a compressed BMP file of this size takes too long to decode; save it as PNG")


def _check_pixels(width: int, height: int, what: str = "the picture") -> None:
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise InputError(
            f"{what} has {width:,} x {height:,} pixels; allowed are sides of {MAX_SIDE:,} and {MAX_PIXELS:,} pixels in "
            "all; make it smaller"
        )


def _numbers(tags: Any, tag: int) -> list[int]:
    """Return the numbers of a TIFF tag; none if the tag is missing or of another type."""
    value = tags.get(tag, ())
    values = value if isinstance(value, tuple) else (value,)
    return [number for number in values if isinstance(number, int)]
