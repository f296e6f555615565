"""The layout of an animated run: the cell of each position, and its text over time.

A cell is as wide as the final text of its position, and earlier text is cut to that width. The layout therefore does
not move while the text changes. Positions after the end of the text are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gesso.trace.run import TracedRun

COLUMNS = 88
# Entropy in nats at which the next colour level begins, as in the studio's recording.js.
LEVELS = (0.005, 0.05, 0.2, 0.5, 1, 2, 3.5, 5)


@dataclass(frozen=True)
class Span:
    """The text of one cell, from the frame `start` up to the frame `end`."""

    row: int
    column: int
    width: int
    text: str
    level: int  # index of the colour for its entropy
    settled: bool
    start: int
    end: int


@dataclass(frozen=True)
class Picture:
    prompt: list[tuple[int, int, str]]  # row, column and text
    spans: list[Span]
    frames: int
    rows: int


def picture(run: TracedRun) -> Picture:
    pieces = {int(token): piece for draft in run.drafts for token, piece in draft["pieces"].items()}
    count = len(run.result.tokens)
    prompt = []
    row, column = 0, 0
    for n, line in enumerate(run.prompt.split("\n")):
        if n > 0:
            row += 1
            column = 0
        for at in range(0, len(line), COLUMNS):
            if at > 0:
                row += 1
            column = 0
            prompt.append((row, column, line[at : at + COLUMNS]))
            column = len(line[at : at + COLUMNS])
    cells, row = _cells([pieces.get(token, "") for token in run.result.tokens], row, column)
    spans = [
        span
        for position, (line, start, width) in enumerate(cells[:count])
        for span in _over_time(run, pieces, position, line, start, width)
    ]
    return Picture(prompt=prompt, spans=spans, frames=len(run.drafts), rows=row + 1)


def _cells(texts: Sequence[str], row: int, column: int) -> tuple[list[tuple[int, int, int]], int]:
    """Return the row, column and width of each text, and the last row."""
    cells = []
    for text in texts:
        first, *lines = text.split("\n")
        width = max(1, len(first) + bool(lines))  # a line break is shown as a character
        if column + width > COLUMNS:
            row, column = row + 1, 0
        cells.append((row, column, width))
        column += width
        if lines:
            row, column = row + len(lines), len(lines[-1])
    return cells, row


def _over_time(run: TracedRun, pieces: dict[int, str], position: int, row: int, column: int, width: int) -> list[Span]:
    """Return the texts of a position over time. Equal neighbouring frames are one span."""
    spans: list[Span] = []
    for frame, draft in enumerate(run.drafts):
        at = position - draft["start"]
        if at >= len(draft["tokens"]):
            continue  # the position belongs to a later canvas
        if at < 0:  # the position belongs to an earlier, committed canvas
            spans[-1] = _until(spans[-1], frame + 1)
            continue
        text = shown(pieces.get(draft["tokens"][at], ""))[:width]
        level = sum(draft["entropy"][at] >= bound for bound in LEVELS)
        settled = draft["states"][at] in "sfp"
        last = spans[-1] if spans else None
        if last and (last.text, last.level, last.settled, last.end) == (text, level, settled, frame):
            spans[-1] = _until(last, frame + 1)
        else:
            span = Span(
                row=row,
                column=column,
                width=width,
                text=text,
                level=level,
                settled=settled,
                start=frame,
                end=frame + 1,
            )
            spans.append(span)
    return spans


def _until(span: Span, end: int) -> Span:
    return replace(span, end=end)


def shown(piece: str) -> str:
    """Return the text of a token on one line."""
    return piece.split("\n")[0] + "↵" if "\n" in piece else piece.replace("\t", " ")
