"""Pictures of Sudokus: a grid drawn in a style, as a scan, a screenshot or a photo of a page may show it.

A style is drawn from ranges. Some of its values are never drawn for training, only for held-out pictures: a band of
ink colours and a band of digit sizes.
"""

import colorsys
import io
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from PIL.Image import Resampling, Transform

from examples.sudoku_images.digits import turned, typed, written

Colour = tuple[int, int, int]
Point = tuple[float, float]
# Bands of values, as shares of their ranges, that only held-out pictures have.
HELD_OUT_HUES = (0.55, 0.75)  # blue
HELD_OUT_SIZES = (0.5, 0.65)


@dataclass(frozen=True, kw_only=True)
class Style:
    cell: int  # pixels of a side
    margins: tuple[float, float, float, float]  # left, top, right, bottom, as shares of the grid's side
    thin: int  # lines, in pixels
    thick: int
    paper: Colour
    lines: Colour
    ink: Colour
    height: float  # of a digit, as a share of its cell
    bold: int
    written: bool
    jitter: float  # of each digit: 0 to 1
    corners: tuple[float, ...]  # shifts of the four corners in x and y, as shares of a side: rotation and perspective
    shade: tuple[float, float]  # change of the light across and down the picture, as a share
    blur: float  # radius, as a share of a cell
    noise: float  # of the pixels, of 255
    quality: int | None  # of JPEG; None: no artefacts
    stretch: float  # width over height of the picture, relative to the grid's
    font: str | None = None  # file of the font of typed digits; None: Pillow's own, the only one in training


def draw_style(rng: random.Random, difficulty: float = 1.0, held_out: bool = False) -> Style:
    """Return a random style. A `difficulty` below 1 narrows the ranges, to begin training with simple pictures."""
    hard = difficulty

    def often(share: float) -> bool:
        return rng.random() < share * hard

    dark_paper = often(0.12)
    tint = rng.uniform(0, 0.12 * hard)
    paper = _colour(rng.random(), tint, rng.uniform(0.0, 0.25) if dark_paper else rng.uniform(1 - 0.25 * hard, 1))
    far = rng.uniform(0.75, 1.0) if dark_paper else rng.uniform(0, 0.45 * hard)
    near = rng.uniform(0.45, 1.0) if dark_paper else rng.uniform(0, 0.6 * hard)
    hue, size = (_within(rng, band, held_out) for band in (HELD_OUT_HUES, HELD_OUT_SIZES))
    angle = max(-7.0, min(7.0, rng.gauss(0, 2.2) * hard))
    skew = [rng.uniform(-0.04, 0.04) * hard for _ in range(8)] if often(0.5) else [0.0] * 8
    thin = 1 if rng.random() < 0.6 else 2
    return Style(
        cell=rng.randint(round(46 - 20 * hard), round(48 + 12 * hard)),
        margins=tuple(rng.uniform(0.005, 0.015 + 0.075 * hard) for _ in range(4)),  # type: ignore[arg-type]
        thin=thin,
        thick=thin + rng.randint(1, 3),
        paper=paper,
        lines=_colour(rng.random(), rng.uniform(0, 0.5 * hard), near),
        ink=_colour(hue, rng.uniform(0.5, 1.0) if held_out or often(0.5) else 0.0, far),
        height=0.42 + 0.3 * size,
        bold=rng.choice((0, 0, 1, 2)),
        written=often(0.35),
        jitter=rng.random() * hard,
        corners=tuple(a + b for a, b in zip(rotation(angle), skew, strict=True)),
        shade=(rng.uniform(-0.3, 0.3) * hard, rng.uniform(-0.3, 0.3) * hard) if often(0.4) else (0.0, 0.0),
        blur=rng.uniform(0.01, 0.03) if often(0.35) else 0.0,
        noise=rng.uniform(4, 24) if often(0.4) else 0.0,
        quality=rng.randint(25, 85) if often(0.35) else None,
        stretch=rng.uniform(1 - 0.12 * hard, 1 + 0.12 * hard),
    )


def rotation(angle: float) -> tuple[float, ...]:
    """Return the shifts of the corners of a page that is turned by an angle in degrees."""
    turn = 0.5 * math.tan(math.radians(angle))
    return (turn, -turn, turn, turn, -turn, turn, -turn, -turn)


def draw_picture(grid: str, style: Style, rng: random.Random) -> Image.Image:
    """Return a picture of a square grid: a character per cell, row by row, with 0 for an empty cell."""
    picture = _page(grid, style, rng)
    if any(style.corners) or style.stretch != 1:
        picture = _photographed(picture, style)
    if style.blur:
        picture = picture.filter(ImageFilter.GaussianBlur(style.blur * style.cell))
    if style.noise or any(style.shade):
        picture = Image.fromarray(_lit(np.asarray(picture), style, rng))
    if style.quality is not None:
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=style.quality)
        picture = Image.open(file).convert("RGB")
    return picture


def _colour(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(hue, saturation, value))
    return red, green, blue


def _within(rng: random.Random, band: tuple[float, float], held_out: bool) -> float:
    """Return a share in the band, or one outside of it."""
    low, high = band
    if held_out:
        return rng.uniform(low, high)
    share = rng.random() * (1 - (high - low))
    return share if share < low else share + high - low


def _page(grid: str, style: Style, rng: random.Random) -> Image.Image:
    """Return the grid as it is printed: digits, then lines."""
    cell, cells = style.cell, math.isqrt(len(grid))
    side = cells * cell
    left, top, right, bottom = (round(side * margin) for margin in style.margins)
    page = Image.new("RGB", (left + side + right, top + side + bottom), style.paper)
    height = max(8, round(cell * style.height))
    for place, digit in enumerate(grid):
        if digit == "0":
            continue
        if style.written:
            mask = written(digit, height, style.bold, rng)
        else:
            mask = typed(digit, height, style.bold, style.font)
        if style.jitter:
            angle, slant = rng.gauss(0, 5) * style.jitter, rng.gauss(0, 0.08) * style.jitter
            mask = turned(mask, angle, slant, 1 + 0.1 * style.jitter * rng.uniform(-1, 1))
        row, column = divmod(place, cells)
        free = 0.5 * (cell - height) * 0.5 * style.jitter
        x = left + column * cell + cell // 2 - height + round(rng.uniform(-free, free))
        y = top + row * cell + cell // 2 - height + round(rng.uniform(-free, free))
        page.paste(style.ink, (x, y), mask)
    draw = ImageDraw.Draw(page)
    for line in sorted(range(cells + 1), key=lambda line: line % 3 == 0):
        width = style.thick if line % 3 == 0 else style.thin
        x, y = left + line * cell, top + line * cell
        draw.line([(x, top), (x, top + side)], style.lines, width)
        draw.line([(left, y), (left + side, y)], style.lines, width)
    return page


def _photographed(page: Image.Image, style: Style) -> Image.Image:
    """Return the page turned and seen from an angle, with paper around it."""
    width, height = page.size
    wide = round(width * style.stretch)
    edges = [(0, 0), (wide, 0), (wide, height), (0, height)]
    shifts = list(zip(style.corners[::2], style.corners[1::2], strict=True))
    shown = [(x + dx * wide, y + dy * height) for (x, y), (dx, dy) in zip(edges, shifts, strict=True)]
    # Keep all of the grid in the picture: scale the shown page to fit.
    low_x, low_y = (min(point[axis] for point in shown) for axis in (0, 1))
    high_x, high_y = (max(point[axis] for point in shown) for axis in (0, 1))
    shown = [((x - low_x) * wide / (high_x - low_x), (y - low_y) * height / (high_y - low_y)) for x, y in shown]
    original = [(0, 0), (width, 0), (width, height), (0, height)]
    return page.transform(
        (wide, height), Transform.PERSPECTIVE, _homography(shown, original), Resampling.BILINEAR,
        fillcolor=style.paper,
    )  # fmt: skip


def _homography(source: Sequence[Point], target: Sequence[Point]) -> list[float]:
    """Return the eight numbers of the perspective transform that maps four points to four others."""
    rows, values = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    found: list[float] = np.linalg.solve(np.array(rows, float), np.array(values, float)).tolist()
    return found


def _lit(pixels: NDArray[np.uint8], style: Style, rng: random.Random) -> NDArray[np.uint8]:
    """Return the pixels under uneven light and with noise."""
    height, width, _ = pixels.shape
    across, down = (np.linspace(-1, 1, count, dtype=np.float32) for count in (width, height))
    light = 1 + style.shade[0] * across[None, :] + style.shade[1] * down[:, None]
    lit = pixels.astype(np.float32) * np.minimum(light, np.float32(1.15))[..., None]
    if style.noise:
        grain = np.frombuffer(rng.randbytes(height * width), np.uint8).reshape(height, width)
        lit += ((grain.astype(np.float32) - 127.5) * (style.noise / 74))[..., None]  # 74: deviation of the bytes
    return lit.clip(0, 255).astype(np.uint8)
