"""A run as a GIF, drawn with Pillow."""

from pathlib import Path
from typing import Any

from gesso.trace.layout import COLUMNS, Picture, picture
from gesso.trace.run import TracedRun
from gesso.trace.svg import COLOURS

# In pixels.
CELL = 8
LINE = 20
MARGIN = 14
SIZE = 13
FRAME, REST = 150, 3000  # milliseconds per step, and for the finished text
FONTS = ("DejaVuSansMono.ttf", "Menlo.ttc", "consola.ttf", "LiberationMono-Regular.ttf")
PAPER = "#fffefb"
INK = "#211e19"
UNSETTLED = "#6a6358"
PROMPT = "#8a8276"


def write(run: TracedRun, path: Path) -> None:
    """Write an animation with one frame per denoising step."""
    from PIL import Image, ImageDraw

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
    for row, column, text in drawn.prompt:
        _write(pen, row, column, text, PROMPT, font)
    for span in drawn.spans:
        if not span.start <= frame < span.end:
            continue
        if span.level:
            x, y = MARGIN + CELL * span.column, MARGIN + LINE * span.row
            corner = (x + CELL * span.width, y + LINE - 3)
            pen.rectangle([(x, y), corner], fill=COLOURS[span.level])
        _write(pen, span.row, span.column, span.text, INK if span.settled else UNSETTLED, font)


def _write(pen: Any, row: int, column: int, text: str, colour: str, font: Any) -> None:
    """Draw each character in its own cell, so that columns align in any font."""
    for i, character in enumerate(text):
        if not character.isspace():
            pen.text((MARGIN + CELL * (column + i), MARGIN + LINE * row), character, fill=colour, font=font)


def _font() -> Any:
    from PIL import ImageFont

    for name in FONTS:
        try:
            return ImageFont.truetype(name, SIZE)
        except OSError:
            continue
    return ImageFont.load_default(SIZE)
