"""Pictures of Sudokus: a page in a style, as a scan, a screenshot or a photo may show it."""

import io
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from PIL.Image import Resampling, Transform

from examples.sudoku_images.appearance import Style
from examples.sudoku_images.page import draw_page

Point = tuple[float, float]


def draw_picture(grid: str, style: Style, rng: random.Random) -> Image.Image:
    """Return a picture of a square grid: a character per cell, row by row, with 0 for an empty cell."""
    picture = draw_page(grid, style, rng)
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
        fillcolor=style.around or style.paper,
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
    return np.clip(lit, 0, 255, out=lit).astype(np.uint8)
