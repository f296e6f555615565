"""Where each token stands in a picture of a run, and what stands there over time.

A place is as wide as the text that fills it in the end, and earlier guesses are cut to it: the picture does not move
while the text comes out. What only fills a canvas after the end of its text is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gesso.trace.run import Run

COLUMNS = 88
# Entropy in nats at which the next level of colour begins, as in the studio's recording.js.
LEVELS = (0.005, 0.05, 0.2, 0.5, 1, 2, 3.5, 5)


@dataclass(frozen=True)
class Glimpse:
    """A token in its place, from one frame up to another."""

    row: int
    column: int
    width: int
    text: str
    level: int  # of its entropy
    settled: bool
    start: int
    end: int


@dataclass(frozen=True)
class Picture:
    given: list[tuple[int, int, str]]  # row, column and text of the prompt
    glimpses: list[Glimpse]
    frames: int
    rows: int


def picture(run: Run) -> Picture:
    pieces = {int(token): piece for draft in run.drafts for token, piece in draft["pieces"].items()}
    count = len(run.result.tokens)
    given, row, column = [], 0, 0
    for n, line in enumerate(run.prompt.split("\n")):
        row, column = row + (n > 0), 0 if n else column
        for at in range(0, len(line), COLUMNS):
            row, column = row + (at > 0), 0
            given.append((row, column, line[at : at + COLUMNS]))
            column = len(line[at : at + COLUMNS])
    places, row = _places([pieces.get(token, "") for token in run.result.tokens], row, column)
    glimpses = [
        glimpse
        for position, (line, start, width) in enumerate(places[:count])
        for glimpse in _over_time(run, pieces, position, line, start, width)
    ]
    return Picture(given, glimpses, len(run.drafts), row + 1)


def _places(texts: Sequence[str], row: int, column: int) -> tuple[list[tuple[int, int, int]], int]:
    """Row, column and width of each text; and the last row."""
    places = []
    for text in texts:
        first, *lines = text.split("\n")
        width = max(1, len(first) + bool(lines))  # a line break is shown by a sign of its own
        if column + width > COLUMNS:
            row, column = row + 1, 0
        places.append((row, column, width))
        column += width
        if lines:
            row, column = row + len(lines), len(lines[-1])
    return places, row


def _over_time(run: Run, pieces: dict[int, str], position: int, row: int, column: int, width: int) -> list[Glimpse]:
    found: list[Glimpse] = []
    for frame, draft in enumerate(run.drafts):
        at = position - draft["start"]
        if at >= len(draft["tokens"]):
            continue  # a later canvas holds it
        if at < 0:  # it was committed with an earlier canvas
            found[-1] = _until(found[-1], frame + 1)
            continue
        text = shown(pieces.get(draft["tokens"][at], ""))[:width]
        level = sum(draft["entropy"][at] >= bound for bound in LEVELS)
        settled = draft["states"][at] in "sfp"
        last = found[-1] if found else None
        if last and (last.text, last.level, last.settled, last.end) == (text, level, settled, frame):
            found[-1] = _until(last, frame + 1)
        else:
            found.append(Glimpse(row, column, width, text, level, settled, frame, frame + 1))
    return found


def _until(glimpse: Glimpse, end: int) -> Glimpse:
    return Glimpse(**{**vars(glimpse), "end": end})


def shown(piece: str) -> str:
    return piece.split("\n")[0] + "↵" if "\n" in piece else piece.replace("\t", " ")
