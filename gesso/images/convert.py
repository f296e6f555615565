"""Turn a picture upright and convert it to RGB, as the reference's image processor does.

`transformers` drops the alpha channel of a picture that it reads from a path, and composites a picture in memory over
white. Here every picture is composited over white: otherwise black text on a transparent background is black on black.
Gray pixels of 16 bits are scaled; `transformers` clips them at 255, so that nearly all become white.

Pictures are converted in strips, which bounds the memory in addition to the picture and the result.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image
from PIL.Image import Transpose

from gesso.errors import InputError

STRIP = 256  # rows
# The transposition that turns a picture upright, by the value of EXIF's orientation (TIFF 6.0, section 8).
TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
ORIENTATION = 0x0112


def upright_rgb(picture: Image.Image) -> Image.Image:
    """Return a picture in RGB, turned as its EXIF orientation requires. The result has no metadata."""
    picture.load()
    turn = TURNS.get(_orientation(picture))
    converted = _rgb(picture)
    if turn is not None:
        converted = converted.transpose(turn)
        converted.info = {}  # a copy that keeps its orientation would be turned again
    return converted


def _orientation(picture: Image.Image) -> int:
    try:
        orientation = picture.getexif().get(ORIENTATION, 1)
    except Exception:  # of any type: the metadata is damaged, the pixels are not
        return 1
    return orientation if isinstance(orientation, int) else 1


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I;16"):
        return _in_strips(picture, _from_16_bits)
    if picture.mode in ("I", "F"):
        raise InputError(
            f"its pixels have 32 bits (mode {picture.mode}), and their range is unknown; scale them to 8 bits"
        )
    if picture.has_transparency_data:
        return _in_strips(picture, _over_white)
    return picture if picture.mode == "RGB" else _in_strips(picture, lambda strip: strip.convert("RGB"))


def _in_strips(picture: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    width, height = picture.size
    converted = Image.new("RGB", picture.size)
    for top in range(0, height, STRIP):
        strip = picture.crop((0, top, width, min(top + STRIP, height)))
        converted.paste(convert(strip), (0, top))
    return converted


def _over_white(strip: Image.Image) -> Image.Image:
    white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, strip.convert("RGBA")).convert("RGB")


def _from_16_bits(strip: Image.Image) -> Image.Image:
    wide = np.asarray(strip).astype(np.uint32)
    gray = ((wide + 128) // 257).astype(np.uint8)  # 65535 = 255 * 257
    gray[wide == strip.info.get("transparency", -1)] = 255  # a PNG file may name one gray value as transparent
    return Image.fromarray(gray).convert("RGB")
