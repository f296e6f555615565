"""Draw how the drafts of a hidden stretch settle: one sequence logo per denoising step, and the true residues below.

    python -m examples.proteins.picture -m runs/proteins/model --out examples/proteins/drafts.svg

In a logo, the height of a letter is the probability of the residue at that position.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

import gesso
from examples.proteins import task as tasks
from gesso.errors import InputError
from gesso.eval import Item

# Colours by chemistry: acidic, basic, polar, hydrophobic, and the special cases C, G and P.
GROUPS = {"DE": "#c0392b", "KRH": "#2563a8", "NQST": "#2a8a4a", "AVLIMFWY": "#333333", "CGP": "#b7791f"}
COLOURS = {residue: colour for residues, colour in GROUPS.items() for residue in residues}
CELL, HEIGHT, GAP, LEFT, TOP = 20, 34, 12, 92, 64
LETTERS = 3  # per position
LEAST = 0.08  # probability of a letter that is drawn
SHOWN = 6  # steps
SCALE = HEIGHT / 13.1  # of capital letters at 18 px, so that a probability of 1 fills the height

Column = list[tuple[str, float]]  # residues with their probabilities, the likeliest first


def drafts(g: gesso.Gesso, item: Item, seed: int) -> list[list[Column]]:
    """Return the probabilities at the hidden positions after each denoising step."""
    assert isinstance(item.prompt, str)
    found = []
    options = dict(tasks.Proteins.options)
    for event in g.stream(item.prompt, seed=seed, draft_logprobs=LETTERS, **options):
        if event.kind == "draft":
            places = event.likely[: len(item.expected)]
            found.append([[(g.decode([i]), math.exp(value)) for i, value in place.top] for place in places])
    return found


def draw(steps: Sequence[Sequence[Column]], item: Item) -> str:
    """Return the drawing as SVG."""
    count = len(item.expected)
    chosen = sorted({round(i * (len(steps) - 1) / (SHOWN - 1)) for i in range(SHOWN)})
    width, height = LEFT + count * CELL + 24, TOP + (len(chosen) + 1) * (HEIGHT + GAP) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        "<style>.l{font:bold 18px monospace;text-anchor:middle}.s{font-size:12px;fill:#555}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text class="s" x="{LEFT}" y="22">{escape(item.name)}: {count} residues between</text>',
        f'<text class="s" x="{LEFT}" y="42">…{item.meta["before"][-12:]} and {item.meta["after"][:12]}…</text>',
    ]
    for row, step in enumerate(chosen):
        bottom = TOP + row * (HEIGHT + GAP) + HEIGHT
        lines.append(f'<text class="s" x="12" y="{bottom - 10}">step {step + 1}</text>')
        for place, column in enumerate(steps[step]):
            lines += _letters(column, LEFT + place * CELL + CELL // 2, bottom)
    bottom = TOP + len(chosen) * (HEIGHT + GAP) + HEIGHT
    lines.append(f'<text class="s" x="12" y="{bottom - 10}">true</text>')
    last = [column[0][0] if column else "" for column in steps[chosen[-1]]]
    for place, residue in enumerate(item.expected):
        x = LEFT + place * CELL
        if place < len(last) and last[place] == residue:
            lines.append(f'<rect x="{x}" y="{bottom - HEIGHT}" width="{CELL}" height="{HEIGHT}" fill="#e4f2e7"/>')
        lines += _letters([(residue, 0.6)], x + CELL // 2, bottom - 6)
    return "\n".join([*lines, "</svg>", ""])


def _letters(column: Column, x: int, bottom: int) -> list[str]:
    """Return one stack of letters, the likeliest on top."""
    drawn = [(residue, share) for residue, share in column if residue in COLOURS and share >= LEAST]
    found, y = [], float(bottom)
    for residue, share in reversed(drawn):
        place = f"translate({x} {y:.0f})scale(1 {SCALE * share:.2f})"
        found.append(f'<text class="l" transform="{place}" fill="{COLOURS[residue]}">{residue}</text>')
        y -= HEIGHT * share
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="runs/proteins/model")
    parser.add_argument("--task", choices=("Proteins", "Known", "Motifs", "Relatives"), default="Relatives")
    parser.add_argument("--data", type=Path, default=tasks.FOLDER, help="the folder of examples.proteins.data")
    parser.add_argument("--item", type=int, default=0, help="number of the test item")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("examples/proteins/drafts.svg"))
    asked = parser.parse_args(arguments)
    try:
        items = list(getattr(tasks, asked.task)(data=(asked.data,)).items("test", asked.item + 1, 0))
        g = gesso.load(asked.model)
        asked.out.write_text(draw(drafts(g, items[-1], asked.seed), items[-1]), encoding="utf-8")
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
