"""Masks of single digits, typed or written, for pictures of Sudokus.

Typed digits are those of the font that comes with Pillow. Written digits are strokes between points that differ a
little each time.
"""

import math
import random
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont
from PIL.Image import Resampling, Transform

# Strokes of written digits: points in a box of width and height 1, from the upper left corner. Some have two forms.
STROKES: dict[str, tuple[tuple[tuple[tuple[float, float], ...], ...], ...]] = {
    "1": ((((0.5, 0.0), (0.5, 1.0)),), (((0.25, 0.25), (0.55, 0.0), (0.55, 1.0)),)),
    "2": ((((0.15, 0.2), (0.35, 0.0), (0.7, 0.03), (0.82, 0.27), (0.6, 0.55), (0.12, 1.0), (0.88, 1.0)),),),
    "3": (
        (((0.18, 0.1), (0.5, 0.0), (0.8, 0.18), (0.7, 0.42), (0.45, 0.48)),
         ((0.45, 0.48), (0.8, 0.6), (0.82, 0.85), (0.5, 1.0), (0.15, 0.9))),
    ),
    "4": (
        (((0.62, 1.0), (0.62, 0.0), (0.1, 0.68), (0.92, 0.68)),),
        (((0.2, 0.0), (0.15, 0.5), (0.85, 0.5)), ((0.7, 0.15), (0.68, 1.0))),
    ),
    "5": ((((0.82, 0.0), (0.25, 0.0), (0.2, 0.42), (0.6, 0.4), (0.85, 0.66), (0.6, 1.0), (0.15, 0.92)),),),
    "6": ((((0.7, 0.0), (0.3, 0.4), (0.18, 0.75), (0.45, 1.0), (0.8, 0.8), (0.65, 0.52), (0.25, 0.62)),),),
    "7": (
        (((0.12, 0.0), (0.88, 0.0), (0.42, 1.0)),),
        (((0.12, 0.02), (0.85, 0.0), (0.45, 1.0)), ((0.35, 0.5), (0.8, 0.47))),
    ),
    "8": (
        (((0.5, 0.47), (0.2, 0.28), (0.45, 0.0), (0.75, 0.2), (0.5, 0.47), (0.15, 0.76), (0.5, 1.0), (0.84, 0.76),
          (0.5, 0.47)),),
    ),
    "9": ((((0.78, 0.3), (0.5, 0.5), (0.22, 0.28), (0.5, 0.0), (0.78, 0.2), (0.74, 0.6), (0.55, 1.0)),),),
}  # fmt: skip
FINER = 2  # strokes are drawn this much larger, and reduced: Pillow draws lines without smooth edges


@lru_cache(maxsize=4096)
def typed(digit: str, height: int, bold: int, file: str | None = None) -> Image.Image:
    """Return a digit of a font, with a border of its own height around it. `bold` widens its strokes, in pixels.

    file: a font, or None for the one that comes with Pillow.
    """
    size = round(1.35 * height)  # of this size, digits have about the given height
    font = ImageFont.load_default(size) if file is None else ImageFont.truetype(file, size)
    left, top, right, bottom = (round(edge) for edge in font.getbbox(digit, stroke_width=bold))
    mask = Image.new("L", (2 * height, 2 * height))
    at = (height - (left + right) // 2, height - (top + bottom) // 2)
    ImageDraw.Draw(mask).text(at, digit, fill=255, font=font, stroke_width=bold)
    return mask


def written(digit: str, height: int, bold: int, rng: random.Random) -> Image.Image:
    """Return a digit drawn by strokes, with a border of its own height around it."""
    side, high = 2 * height * FINER, height * FINER
    wide = high * rng.uniform(0.5, 0.75)
    mask = Image.new("L", (side, side))
    draw = ImageDraw.Draw(mask)
    width = max(2, round(high * (0.07 + 0.04 * bold)))
    for stroke in rng.choice(STROKES[digit]):
        points = [
            (
                (side - wide) / 2 + wide * (x + rng.uniform(-0.06, 0.06)),
                (side - high) / 2 + high * (y + rng.uniform(-0.05, 0.05)),
            )
            for x, y in _smooth(stroke)
        ]
        draw.line(points, fill=255, width=width, joint="curve")
    return mask.reduce(FINER)


def _smooth(points: tuple[tuple[float, float], ...]) -> list[tuple[float, float]]:
    """Return the points with every corner cut once, which makes curves of polygons (Chaikin's method)."""
    if len(points) < 5:  # straight strokes: 1, 4 and 7
        return list(points)
    cut = [points[0]]
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        cut += [(0.75 * x0 + 0.25 * x1, 0.75 * y0 + 0.25 * y1), (0.25 * x0 + 0.75 * x1, 0.25 * y0 + 0.75 * y1)]
    return [*cut, points[-1]]


def turned(mask: Image.Image, angle: float, slant: float, stretch: float) -> Image.Image:
    """Return a mask turned by an angle in degrees, slanted, and stretched in width, about its middle."""
    middle = mask.width / 2
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    a, b, d, e = cosine / stretch, (slant + sine) / stretch, -sine, cosine
    around = (a, b, middle - (a + b) * middle, d, e, middle - (d + e) * middle)
    return mask.transform(mask.size, Transform.AFFINE, around, Resampling.BILINEAR)
