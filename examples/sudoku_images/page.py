"""A Sudoku as it is printed, or shown on a screen."""

import math
import random
from collections.abc import Callable

from PIL import Image, ImageDraw

from examples.sudoku_images.appearance import Style
from examples.sudoku_images.digits import turned, typed, written

Place = tuple[int, int]  # row and column of a cell
# Cells with another paper, by kind: whether a cell is one of them, given the selected cell and the digit in the cell.
HIGHLIGHTS: dict[str, Callable[[Place, Place, str], bool]] = {
    "boxes": lambda cell, selected, digit: (cell[0] // 3 + cell[1] // 3) % 2 == 1,
    "digits": lambda cell, selected, digit: digit != "0",
    "selected": lambda cell, selected, digit: cell == selected,
    "seen": lambda cell, selected, digit: (
        cell[0] == selected[0]
        or cell[1] == selected[1]
        or (cell[0] // 3, cell[1] // 3) == (selected[0] // 3, selected[1] // 3)
    ),
}


def draw_page(grid: str, style: Style, rng: random.Random) -> Image.Image:
    """Return the page: margins, highlighted cells, digits, then lines."""
    cell, cells = style.cell, math.isqrt(len(grid))
    side = cells * cell
    left, top, right, bottom = (round(side * margin) for margin in style.margins)
    page = Image.new("RGB", (left + side + right, top + side + bottom), style.paper)
    if style.around is not None:
        page.paste(style.around, (0, 0, *page.size))
        page.paste(style.paper, (left, top, left + side, top + side))
    if style.bar is not None:
        _draw_bar(page, top, style, rng)
    if style.highlight is not None:
        _highlight(page, grid, (left, top), style, rng)
    height = max(8, round(cell * style.height))
    for place, digit in enumerate(grid):
        row, column = divmod(place, cells)
        middle = left + column * cell + cell // 2, top + row * cell + cell // 2
        if digit == "0":
            if style.marks is not None:
                _mark(page, middle, style, rng)
            continue
        if style.written:
            mask = written(digit, height, style.bold, rng)
        else:
            mask = typed(digit, height, style.bold, style.font, style.wide)
        if style.jitter:
            angle, slant = rng.gauss(0, 5) * style.jitter, rng.gauss(0, 0.08) * style.jitter
            mask = turned(mask, angle, slant, 1 + 0.1 * style.jitter * rng.uniform(-1, 1))
        free = 0.5 * (cell - height) * 0.5 * style.jitter
        x = middle[0] - height + round(rng.uniform(-free, free))
        y = middle[1] - height + round(rng.uniform(-free, free))
        ink = style.filled if style.filled is not None and rng.random() < 0.5 else style.ink
        page.paste(ink, (x, y), mask)
    _draw_lines(page, cells, (left, top), style)
    return page


def _draw_lines(page: Image.Image, cells: int, corner: tuple[int, int], style: Style) -> None:
    """Draw the lines between cells, then those between boxes and around the grid."""
    (left, top), cell, side = corner, style.cell, cells * style.cell
    draw = ImageDraw.Draw(page)
    inner = range(cells + 1) if style.border else range(1, cells)
    for line in sorted(inner, key=lambda line: line % 3 == 0):
        is_thick = line % 3 == 0
        width, colour = style.thick if is_thick else style.thin, style.lines
        if is_thick and style.boxes is not None:
            colour = style.boxes
        x, y = left + line * cell, top + line * cell
        draw.line([(x, top), (x, top + side)], colour, width)
        draw.line([(left, y), (left + side, y)], colour, width)


def _highlight(page: Image.Image, grid: str, corner: tuple[int, int], style: Style, rng: random.Random) -> None:
    assert style.highlight is not None
    (left, top), cell, cells = corner, style.cell, math.isqrt(len(grid))
    kind, paper = style.highlight
    selected = rng.randrange(cells), rng.randrange(cells)
    for place, digit in enumerate(grid):
        row, column = divmod(place, cells)
        if HIGHLIGHTS[kind]((row, column), selected, digit):
            x, y = left + column * cell, top + row * cell
            page.paste(paper, (x, y, x + cell, y + cell))


def _mark(page: Image.Image, middle: tuple[int, int], style: Style, rng: random.Random) -> None:
    """Draw up to five small digits in a cell, each in its place of a square of 3 x 3, or nothing."""
    assert style.marks is not None
    height = max(5, round(0.2 * style.cell))
    for digit in sorted(rng.sample("123456789", rng.choice((0, 0, 1, 2, 2, 3, 4, 5)))):
        row, column = divmod(int(digit) - 1, 3)
        x = middle[0] + round((column - 1) * 0.29 * style.cell) - height
        y = middle[1] + round((row - 1) * 0.29 * style.cell) - height
        page.paste(style.marks, (x, y), typed(digit, height, 0, style.font))


def _draw_bar(page: Image.Image, top: int, style: Style, rng: random.Random) -> None:
    """Draw a bar across the top of the page, with a time and a button as apps have them."""
    assert style.bar is not None
    deep = round(top * rng.uniform(0.45, 0.75))
    page.paste(style.bar, (0, 0, page.width, deep))
    height = max(6, round(0.45 * deep))
    at = rng.randint(0, page.width // 2)
    for digit in rng.choices("0123456789", k=rng.randint(2, 5)):
        page.paste(style.ink, (at, deep // 2 - height), typed(digit, height, 0, style.font))
        at += height
    button = rng.randint(page.width // 2, page.width - height)
    page.paste(style.lines, (button, deep // 4, button + 2 * height, deep - deep // 4))
