"""A run as a GIF, for places that show nothing better; drawn with Pillow (`pip install '.[trace]' in the clone`)."""

from pathlib import Path
from typing import Any

from gesso.errors import InputError
from gesso.trace.layout import COLUMNS, Picture, picture
from gesso.trace.run import Run
from gesso.trace.svg import COLOURS

CELL, LINE, MARGIN, SIZE = 8, 20, 14, 13  # pixels
FRAME, REST = 150, 3000  # milliseconds
FONTS = ("DejaVuSansMono.ttf", "Menlo.ttc", "consola.ttf", "LiberationMono-Regular.ttf")
PAPER, INK, OPEN, GIVEN = "#fffefb", "#211e19", "#6a6358", "#8a8276"


def write(run: Run, path: Path) -> None:
    try:
        from PIL import Image, ImageDraw
    except ModuleNotFoundError:
        raise InputError("a GIF needs Pillow: pip install '.[trace]' in the clone; run.svg needs nothing") from None
    drawn, font = picture(run), _font()
    size = (2 * MARGIN + CELL * COLUMNS, 2 * MARGIN + LINE * drawn.rows)
    frames = []
    for frame in range(drawn.frames):
        image = Image.new("RGB", size, PAPER)
        _draw(ImageDraw.Draw(image), drawn, frame, font)
        frames.append(image.convert("P", palette=Image.Palette.ADAPTIVE, colors=32))
    times = [FRAME] * (drawn.frames - 1) + [REST]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True)


def _draw(pen: Any, drawn: Picture, frame: int, font: Any) -> None:
    for row, column, text in drawn.given:
        _write(pen, row, column, text, GIVEN, font)
    for glimpse in drawn.glimpses:
        if not glimpse.start <= frame < glimpse.end:
            continue
        if glimpse.level:
            x, y = MARGIN + CELL * glimpse.column, MARGIN + LINE * glimpse.row
            corner = (x + CELL * glimpse.width, y + LINE - 3)
            pen.rectangle([(x, y), corner], fill=COLOURS[glimpse.level])
        _write(pen, glimpse.row, glimpse.column, glimpse.text, INK if glimpse.settled else OPEN, font)


def _write(pen: Any, row: int, column: int, text: str, colour: str, font: Any) -> None:
    """Sign by sign: columns stand whatever the font."""
    for i, sign in enumerate(text):
        if not sign.isspace():
            pen.text((MARGIN + CELL * (column + i), MARGIN + LINE * row), sign, fill=colour, font=font)


def _font() -> Any:
    from PIL import ImageFont

    for name in FONTS:
        try:
            return ImageFont.truetype(name, SIZE)
        except OSError:
            continue
    return ImageFont.load_default(SIZE)
