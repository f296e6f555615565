"""How a picture of a Sudoku looks: its size, colours, digits, lines, angle and light.

A style is drawn from ranges. Held-out pictures have a band of ink colours and a band of digit sizes of their own.
`wider.py` widens the ranges for training.
"""

import colorsys
import math
import random
from dataclasses import dataclass

Colour = tuple[int, int, int]
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
    # Held-out pictures have the defaults, so that results stay comparable. `wider.py` draws the rest for training.
    font: str | None = None  # file of the font of typed digits; None: the one that comes with Pillow
    wide: float = 1.0  # width of typed digits, relative to the font's
    filled: Colour | None = None  # ink of about half of the digits, as those that a player has filled in
    marks: Colour | None = None  # ink of pencil marks in empty cells
    highlight: tuple[str, Colour] | None = None  # one of `page.HIGHLIGHTS`, and the paper of those cells
    boxes: Colour | None = None  # colour of the thick lines; None: that of all lines
    border: bool = True  # whether there are lines around the grid
    around: Colour | None = None  # colour of the margins; None: that of the paper
    bar: Colour | None = None  # colour of a bar with small digits, as an app shows above the grid


def draw_style(rng: random.Random, difficulty: float = 1.0, held_out: bool = False) -> Style:
    """Return a random style. A `difficulty` below 1 narrows the ranges, to begin training with simple pictures."""
    hard = difficulty

    def often(share: float) -> bool:
        return rng.random() < share * hard

    dark_paper = often(0.12)
    tint = rng.uniform(0, 0.12 * hard)
    paper = colour(rng.random(), tint, rng.uniform(0.0, 0.25) if dark_paper else rng.uniform(1 - 0.25 * hard, 1))
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
        lines=colour(rng.random(), rng.uniform(0, 0.5 * hard), near),
        ink=colour(hue, rng.uniform(0.5, 1.0) if held_out or often(0.5) else 0.0, far),
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


def colour(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(hue, saturation, value))
    return red, green, blue


def _within(rng: random.Random, band: tuple[float, float], held_out: bool) -> float:
    """Return a share in the band, or one outside of it."""
    low, high = band
    if held_out:
        return rng.uniform(low, high)
    share = rng.random() * (1 - (high - low))
    return share if share < low else share + high - low
