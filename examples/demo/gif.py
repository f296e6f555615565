"""Write docs/images/canvas.gif: three runs of the bundled models, one frame per denoising step.

    python -m examples.demo.gif docs/images/canvas.gif

It needs the font DejaVu Sans Mono.
"""

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from PIL import Image, ImageDraw, ImageFont

import gesso
from gesso.demo import EXAMPLES, FILES
from gesso.engine.events import Done, Draft
from gesso.engine.request import Request
from gesso.engine.running import Running
from gesso.eval.sudoku.puzzles import SEVENTEEN
from gesso.eval.sudoku.task import Sudoku, spaced

ROW = 13  # of the file of puzzles with 17 clues
SUDOKU_SEED = JSON_SEED = 1
REQUEST = "Book a table at Luigi for 4 people on 2026-12-24 at 19:30, on the terrace."
SCHEMA = Path(__file__).parent / "table.json"
WIDTH, HEIGHT, MARGIN = 880, 470, 28
CELL, LINE, CHARACTER, SIZE = 36, 21, 9, 15  # pixels: a cell of the grid, a row of text, a character, a letter
RIGHT = MARGIN + 9 * CELL + 44  # left edge of the text
FIRST, STEP, LAST = 900, 600, 4500  # milliseconds per frame
PAPER, RULE, INK, GIVEN, HIGHLIGHT = "#fffefb", "#cfc8ba", "#211e19", "#5d564b", "#dff1e8"
COLOURS = {"noise": "#b9b2a5", "predicted": "#b0620a", "settled": "#0a5c46"}  # by the state of a token


# --- runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Token:
    text: str
    state: str  # a key of COLOURS


@dataclass(frozen=True)
class Run:
    frames: list[list[Token]]  # the canvas before the first step, and after each
    final: list[str]  # the tokens of the text

    def at(self, step: int) -> list[Token]:
        return self.frames[min(step, len(self.frames) - 1)]


def record(model: gesso.Gesso, request: Request) -> Run:
    """Run a request whose text fits on one canvas, and return what the canvas held."""
    engine, frames = model.engine, []
    running = engine.running[engine.submit(request)]
    assert isinstance(running, Running)
    frames.append([Token(text, "noise") for text in model.tokenizer.pieces(running.canvas.tokens_C.tolist())])
    while True:
        for event in engine.step():
            if isinstance(event, Draft):
                frames.append(_tokens(model, event))
            elif isinstance(event, Done):
                final = model.tokenizer.pieces(event.result.tokens)
                return Run([*frames[:-1], [Token(text, "settled") for text in final]], final)


def _tokens(model: gesso.Gesso, draft: Draft) -> list[Token]:
    predicted = model.tokenizer.pieces(draft.tokens)
    noise = model.tokenizer.pieces(draft.canvas.tokens_C.tolist())
    return [
        Token(noise[i], "noise") if state == "." else Token(predicted[i], "predicted" if state == "a" else "settled")
        for i, state in enumerate(draft.states)
    ]


# --- drawing --------------------------------------------------------------------------------------------------------


def _fitted(text: str, width: int) -> str:
    """Return the text of a token in `width` printable ASCII characters."""
    shown = "".join(c if c.isascii() and c.isprintable() else "·" for c in text)
    return shown[:width].ljust(width)


class Page:
    """An image, and the fonts to write on it."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
        self.pen = ImageDraw.Draw(self.image)
        self.plain = ImageFont.truetype("DejaVuSansMono.ttf", SIZE)
        self.bold = ImageFont.truetype("DejaVuSansMono-Bold.ttf", SIZE)
        self.large = ImageFont.truetype("DejaVuSansMono.ttf", 19)
        self.large_bold = ImageFont.truetype("DejaVuSansMono-Bold.ttf", 19)
        self.pen.rectangle([0, 0, WIDTH - 1, HEIGHT - 1], outline=RULE)

    def write(self, x: int, y: int, text: str, colour: str, font: Any = None) -> None:
        self.pen.text((x, y), text, fill=colour, font=font or self.plain)

    def token(self, x: int, y: int, token: Token, width: int) -> None:
        if token.state == "settled":
            self.pen.rectangle([x, y - 1, x + CHARACTER * width - 1, y + LINE - 4], fill=HIGHLIGHT)
        self.write(x, y, _fitted(token.text, width), COLOURS[token.state])


def draw_sudoku(page: Page, puzzle: str, tokens: Sequence[Token], places: Sequence[int]) -> None:
    left, top = MARGIN, 62
    for cell, place in enumerate(places):
        x, y = left + CELL * (cell % 9), top + CELL * (cell // 9)
        text, colour, font = puzzle[cell], INK, page.large_bold
        if text == "0":
            text, colour, font = tokens[place].text, COLOURS[tokens[place].state], page.large
            if tokens[place].state == "settled":
                page.pen.rectangle([x, y, x + CELL, y + CELL], fill=HIGHLIGHT)
        page.pen.text((x + CELL / 2, y + CELL / 2), _fitted(text.strip(), 1), fill=colour, font=font, anchor="mm")
    for line in range(10):
        colour, width = (INK, 2) if line % 3 == 0 else (RULE, 1)
        page.pen.line([left, top + CELL * line, left + 9 * CELL, top + CELL * line], fill=colour, width=width)
        page.pen.line([left + CELL * line, top, left + CELL * line, top + 9 * CELL], fill=colour, width=width)


def draw_tokens(page: Page, run: Run, step: int, x: int, y: int) -> None:
    """Write a canvas, with a line break after every comma. A token has the width of the final one: nothing moves."""
    column = 0
    for token, final in zip(run.at(step), run.final, strict=False):
        end = final.find(",") + 1 or len(final)
        if final.strip():
            page.token(x + CHARACTER * column, y, Token(token.text[:end], token.state), end)
        column += end
        if final[end - 1] == ",":
            column, y = 1, y + LINE
        if rest := len(final) - end:
            page.token(x + CHARACTER * column, y, Token(token.text[end:], token.state), rest)
            column += rest


def draw_code(page: Page, code: str, run: Run, step: int, y: int) -> None:
    for text in code.splitlines():
        if "<FILL>" in text:
            given = "".join(run.final)  # the canvas may repeat the end of the text before the hole
            repeated = len(given) - len(given.lstrip())
            draw_tokens(page, run, step, RIGHT + CHARACTER * (text.index("<FILL>") - repeated), y)
        else:
            page.write(RIGHT, y, text, GIVEN)
        y += LINE


def draw_caption(page: Page, step: int, steps: int) -> None:
    y = HEIGHT - 42
    page.write(MARGIN, y, f"step {step}", INK, page.bold)
    for i in range(steps):
        x = MARGIN + 78 + 15 * i
        page.pen.ellipse([x, y + 4, x + 9, y + 13], fill=COLOURS["settled"] if i < step else None, outline=RULE)
    x = RIGHT
    for state in COLOURS:
        page.token(x, y, Token(state, state), len(state))
        x += CHARACTER * (len(state) + 2)


def frame(runs: Sequence[Run], puzzle: str, code: str, step: int, steps: int) -> Image.Image:
    page = Page()
    sudoku, line, booking = runs
    page.write(MARGIN, 26, "A Sudoku with 17 clues", INK, page.bold)
    places = [i for i, text in enumerate(sudoku.final) if text.strip()]
    draw_sudoku(page, puzzle, sudoku.at(step), places)
    page.write(RIGHT, 26, "A missing line of code", INK, page.bold)
    draw_code(page, code, line, step, 62)
    page.write(RIGHT, 228, "A sentence as JSON", INK, page.bold)
    page.write(RIGHT, 260, textwrap.fill(REQUEST, 52), GIVEN)
    draw_tokens(page, booking, step, RIGHT, 306)
    draw_caption(page, step, steps)
    return page.image


def write(path: Path) -> None:
    """Run the models and write the animation."""
    puzzle = [row.split()[0] for row in SEVENTEEN.read_text(encoding="utf-8").splitlines() if row[:1].isdigit()][ROW]
    solver, mini = gesso.load("gesso-sudoku"), gesso.load()
    code = (FILES / "point.txt").read_text(encoding="utf-8")
    before, after = code.split("<FILL>")
    (infill,) = next(mini.infill_plan(before, after, method="prompt", max_new_tokens=6, seed=EXAMPLES[2].seed))
    assert isinstance(infill, Request)
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    chat = mini.chat_request([{"role": "user", "content": REQUEST}], json_schema=schema, seed=JSON_SEED)
    runs = [
        record(solver, solver.request(spaced(puzzle), seed=SUDOKU_SEED, **Sudoku.options)),
        record(mini, infill),
        record(mini, chat),
    ]
    steps = max(len(run.frames) for run in runs) - 1
    frames = [frame(runs, puzzle, code, step, steps) for step in range(steps + 1)]
    palette = Image.fromarray(numpy.vstack([numpy.asarray(image) for image in frames])).quantize(64)
    first, *rest = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in frames)
    times = [FIRST, *[STEP] * (steps - 1), LAST]
    first.save(path, save_all=True, append_images=rest, duration=times, loop=0, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.demo.gif")
    parser.add_argument("output", type=Path)
    write(parser.parse_args().output)
