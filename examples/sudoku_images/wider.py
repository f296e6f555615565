"""The styles of training: those of `appearance.draw_style`, in many fonts, half of them with wider ranges.

Half of the pictures stay simple. The others have larger angles and margins, dark paper, ink of every hue, highlighted
cells, two inks, other lines, and pencil marks, which must be read as empty cells.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from examples.sudoku_images.appearance import Colour, Style, colour, rotation
from examples.sudoku_images.page import HIGHLIGHTS

WIDER = 0.5  # share of the pictures with wider ranges
ANGLE, MARGIN = 12.0, 0.2  # the largest, in degrees and as a share of the grid's side
# Least contrast with the paper (WCAG 2.2, from 1 to 21), whose guideline is 3 for large text and 4.5 for small text.
DIGITS, MARKS, LINES, BOXES = 3.5, 1.8, 1.3, 1.6
IN_NOISE = 5.5  # of digits under noise, blur or uneven light
BLACK, WHITE = (0, 0, 0), (255, 255, 255)


def widen(style: Style, rng: random.Random, difficulty: float, fonts: Sequence[str | None]) -> Style:
    """Return a style for training. A `difficulty` below 1 makes wide ranges rarer and narrower.

    fonts: files to draw the font from. None is the one that comes with Pillow.
    """
    hard = difficulty
    changes: dict[str, Any] = {}

    def often(share: float) -> bool:
        return rng.random() < share

    least = IN_NOISE if style.noise or style.blur or any(style.shade) else DIGITS
    font = rng.choice(fonts)
    if font is not None:
        # Wider strokes would fill the holes of small or bold digits.
        changes |= {"font": font, "bold": int(often(0.15) and style.cell * style.height >= 20)}
    if not often(WIDER * hard):
        return replace(style, ink=readable(style.ink, style.paper, least), **changes)
    if often(0.6):
        changes |= _colours(rng, hard)
    paper = changes.get("paper", style.paper)
    ink = readable(changes.get("ink", style.ink), paper, least)
    lines = readable(changes.get("lines", style.lines), paper, LINES)
    changes |= {"ink": ink, "lines": lines, "wide": rng.choice((0.7, 0.8, 0.9, 1.0, 1.0, 1.1))}
    if not style.written and often(0.6):
        changes["jitter"] = 0.0  # a screenshot
    if often(0.4):
        skew = [rng.uniform(-0.03, 0.03) * hard for _ in range(8)] if often(0.5) else [0.0] * 8
        turned = rotation(rng.uniform(-ANGLE, ANGLE) * hard)
        changes["corners"] = tuple(a + b for a, b in zip(turned, skew, strict=True))
    if often(0.5):
        changes |= _margins(rng, paper, hard)
    if often(0.4):
        thin = rng.randint(1, 3)
        changes |= {"thin": thin, "thick": thin + rng.randint(0, 4)}
    if often(0.4):
        changes["boxes"] = readable(colour(rng.random(), rng.uniform(0, 1), rng.random()), paper, BOXES)
    if often(0.12):
        changes["border"] = False
    if often(0.3):
        changes["filled"] = readable(colour(rng.random(), rng.uniform(0.4, 1), rng.random()), paper, least)
    if often(0.4):
        changes |= _highlight(rng, paper, {name: changes[name] for name in ("ink", "filled") if name in changes}, least)
    if often(0.2):
        changes["marks"] = readable(mixed(ink, paper, rng.uniform(0, 0.6)), paper, MARKS)
    return replace(style, **changes)


def _colours(rng: random.Random, hard: float) -> dict[str, Colour]:
    """Return paper, ink and lines of any hue."""
    is_dark = rng.random() < 0.4
    paper = colour(rng.random(), rng.uniform(0, 0.35) * hard, rng.uniform(0, 0.3) if is_dark else rng.uniform(0.8, 1))
    value = rng.uniform(0.6, 1) if is_dark else rng.uniform(0, 0.9)
    lines = mixed(colour(rng.random(), rng.random(), rng.random()), WHITE if is_dark else BLACK, rng.random())
    return {"paper": paper, "ink": colour(rng.random(), rng.random() ** 0.5, value), "lines": lines}


def _margins(rng: random.Random, paper: Colour, hard: float) -> dict[str, Any]:
    """Return uneven margins, some of another colour, and some with a bar above the grid."""
    widest = 0.015 + (MARGIN - 0.015) * hard
    left, top, right, bottom = (rng.uniform(0.005, widest) for _ in range(4))
    found: dict[str, Any] = {"margins": (left, top, right, bottom)}
    if rng.random() < 0.4:
        found["around"] = mixed(paper, colour(rng.random(), rng.random(), rng.random()), rng.uniform(0.05, 0.4))
    if top > 0.08 and rng.random() < 0.5:
        found["bar"] = mixed(paper, colour(rng.random(), rng.random(), rng.random()), rng.uniform(0, 0.8))
    return found


def _highlight(rng: random.Random, paper: Colour, inks: dict[str, Colour], least: float) -> dict[str, Any]:
    """Return a light blue, grey, yellow or other paper for some cells, and inks that are readable on both papers."""
    hue, saturation = rng.choice(((0.58, 0.6), (0.0, 0.0), (0.14, 0.7), (rng.random(), 0.5)))
    other = mixed(paper, colour(hue, saturation, rng.uniform(0.4, 1.0)), rng.uniform(0.2, 0.6))
    inks = {name: readable(ink, other, least) for name, ink in inks.items()}
    if min(contrast(ink, paper) for ink in inks.values()) < least:
        return {}
    return {"highlight": (rng.choice(sorted(HIGHLIGHTS)), other), **inks}


def mixed(one: Colour, other: Colour, share: float) -> Colour:
    """Return a colour between two: `share` is that of the other one."""
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(one, other, strict=True))
    return red, green, blue


def luminance(rgb: Colour) -> float:
    """Return the relative luminance of a colour, from 0 to 1 (WCAG 2.2)."""
    linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2)."""
    low, high = sorted(luminance(rgb) + 0.05 for rgb in (one, other))
    return high / low


def readable(ink: Colour, paper: Colour, least: float) -> Colour:
    """Return the ink, mixed with black or white until its contrast with the paper is at least `least`."""
    far = max((BLACK, WHITE), key=lambda end: contrast(end, paper))
    steps = (mixed(ink, far, share / 8) for share in range(9))
    return next((found for found in steps if contrast(found, paper) >= least), far)
