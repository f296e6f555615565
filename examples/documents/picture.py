"""Draw a repair: the damaged document, drafts of the patch, and the repaired document. Changed characters are marked.

    python -m examples.documents.picture -m runs/documents/model --out examples/documents/repair.svg

Without a model, the right patch is drawn.
"""

import argparse
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from html import escape
from pathlib import Path

import gesso
from examples.documents import patch
from examples.documents.repair import Repair, repair

ORIGINAL = """\
# Paper planes

Fold **twice**, then fly.

| Plane | Flies    |
|-------|----------|
| Dart  | far      |
| Glide | a while  |

```sh
pip install planes
```

## Wind

- See [the guide](wind.md).
- Wait for a calm day."""
DAMAGED = ORIGINAL.replace("twice**", "twice*").replace("planes\n```", "planes").replace("wind.md)", "wind.md")
CELL, LINE, MARGIN, GAP = 7.2, 17, 16, 26  # pixels of a character, a line, the border, and between columns
DRAFTS, DRAFT = 3, 46  # drafts, and most characters of their lines
STYLE = (
    "svg{color-scheme:light dark;color:#222}.page{fill:#fff}"
    "text{font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:currentColor;white-space:pre}"
    ".title{font:600 13px system-ui,sans-serif}.number{opacity:.45}.new{fill:#0072b2;fill-opacity:.22}"
    ".lost{fill:#d55e00;fill-opacity:.25}.draft{opacity:.85}"
    "@media(prefers-color-scheme:dark){svg{color:#ddd}.page{fill:#16181c}}"
)


def svg(damaged: str, found: Repair) -> str:
    """Return the picture in three columns."""
    drafts = ["\n".join(line[:DRAFT] for line in draft.split("\n")) for draft in _chosen(found.drafts)]
    columns = [damaged.split("\n"), *(draft.split("\n") for draft in drafts), found.text.split("\n")]
    widths = [max(max(map(len, column)), 12) + 4 for column in columns]
    middle = max(widths[1:-1])
    right = MARGIN + CELL * widths[0] + GAP + CELL * middle + GAP
    stacked = sum(len(column) + 2 for column in columns[1:-1])
    height = 2 * MARGIN + LINE * (max(len(columns[0]), len(columns[-1]), stacked) + 2)
    width = right + CELL * widths[-1] + MARGIN
    body = [*_document("damaged", MARGIN, damaged, found.text, "lost")]
    row = 0
    for name, draft in zip(_names(len(found.drafts), len(drafts)), drafts, strict=True):
        x = MARGIN + CELL * widths[0] + GAP
        body.append(_text(x, row, name, "title"))
        body += [_text(x, row + 1 + n, line.replace("\t", "  "), "draft") for n, line in enumerate(draft.split("\n"))]
        row += len(draft.split("\n")) + 2
    body += _document("repaired", right, found.text, damaged, "new")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" role="img"><title>A document is repaired by a patch</title><style>{STYLE}</style>'
        f'<rect class="page" width="100%" height="100%"/>{"".join(body)}</svg>\n'
    )


def _chosen(drafts: Sequence[str]) -> list[str]:
    """Return the first draft, the last, and some between them, evenly."""
    count = min(DRAFTS, len(drafts))
    return [drafts[n * (len(drafts) - 1) // max(count - 1, 1)] for n in range(count)]


def _names(total: int, count: int) -> Iterator[str]:
    for n in range(count):
        yield f"patch, step {1 + n * (total - 1) // max(count - 1, 1)} of {total}" if total > 1 else "patch"


def _document(title: str, x: float, text: str, other: str, mark: str) -> Iterator[str]:
    """Yield the numbered lines of a text, and a mark on every character that the other text does not have."""
    yield _text(x, 0, title, "title")
    for row, column in _differences(text.split("\n"), other.split("\n")):
        left, top = x + CELL * (column + 3), MARGIN + LINE * (row + 1) + 1
        yield f'<rect class="{mark}" x="{left:.1f}" y="{top}" width="{CELL}" height="{LINE - 2}"/>'
    for number, line in enumerate(text.split("\n"), 1):
        yield _text(x, number, f"{number:2}", "number")
        yield _text(x + 3 * CELL, number, line)


def _differences(lines: list[str], others: list[str]) -> Iterator[tuple[int, int]]:
    """Yield row and column of the characters that differ: line by line, then inside the lines that correspond."""
    for _, start, end, from_, to in _changes(lines, others):
        for row in range(start, end):
            line = lines[row]
            other = others[from_ + row - start] if end - start == to - from_ else ""
            for _, left, right, _, _ in _changes(line, other):
                yield from ((row, column) for column in range(left, right))


def _changes(one: Sequence[str], other: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    found = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return [change for change in found if change[0] != "equal"]


def _text(x: float, row: int, text: str, name: str = "") -> str:
    shown = escape("".join(character if character.isprintable() else "·" for character in text))
    return f'<text x="{x:.1f}" y="{MARGIN + LINE * row + 13}" class="{name}">{shown}</text>' if text else ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the repair of a document.")
    parser.add_argument("-m", "--model", help="such as runs/documents/model")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("repair.svg"))
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.model:
        found = repair(gesso.load(asked.model), "markdown", DAMAGED, seed=asked.seed)
    else:
        right = patch.make(DAMAGED, ORIGINAL)
        found = Repair(ORIGINAL, right, (right,))
    asked.out.write_text(svg(DAMAGED, found), encoding="utf-8")


if __name__ == "__main__":
    main()
