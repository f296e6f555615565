"""Compare canvases with writing token by token: the same weights, the same prompts, the same number of passes.

    python -m examples.comparison.run sudoku --out runs/comparison --count 500 --batch 128 --device cuda

measures one task in every way of WAYS, or in those of --way. It writes table.md and comparison.svg with all tasks
that have been measured. A measurement is a file that `gesso eval --json` could have written. If it exists, it is not
measured again.

The plots show a score against the passes through the network that an answer took. A canvas is limited to 1, 2, 4, …
steps, so that it can be compared with any other way at the same number of passes.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gesso
from gesso.eval import Item, Task, task
from gesso.eval.estimate import Estimate
from gesso.eval.evaluate import evaluate, fingerprint
from gesso.eval.paired import compare, read_runs
from gesso.eval.plot import HEIGHT, WIDTH, Point, Series, svg

CANVAS, TOKENS, VERIFIED = "canvas", "token by token", "verified"
COLUMNS = 2  # of the plots
LIMITS = (1, 2, 4, 8, 16)
# All settings that a way does not name are the checkpoint's.
WAYS: Mapping[str, Mapping[str, Any]] = {
    CANVAS: {},
    TOKENS: {"write": "tokens", "greed": 1.0},
    f"{TOKENS}, sampled": {"write": "tokens"},
    VERIFIED: {"write": "verified", "greed": 1.0},
    f"{CANVAS}, greedy": {"greed": 1.0},
    **{f"{CANVAS}, {limit} step{'s' * (limit > 1)}": {"steps": limit} for limit in LIMITS},
}


@dataclass(frozen=True)
class Subject:
    """A task, the model that was trained for it, and the score to show: by default the first."""

    task: str
    model: str
    score: str | None = None

    def load(self) -> Task:
        return task(self.task)


SUBJECTS = {
    "sudoku": Subject("sudoku", "gesso-sudoku"),  # which was not trained to write token by token
    "sudoku-both": Subject("sudoku", "runs/sudoku-both/model", "cells"),
    "python_infill": Subject("python_infill", "gesso-mini"),
    "structured": Subject("structured", "gesso-mini"),
    "proteins": Subject("examples.proteins.task:Proteins", "runs/proteins/model"),
    "relatives": Subject("examples.proteins.task:Relatives", "runs/proteins/model"),
    "graphs": Subject("examples.graphs.task:Graphs", "runs/graphs/model"),
    "documents": Subject("examples.documents.task:Documents", "runs/documents/model"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=SUBJECTS)
    parser.add_argument("--out", type=Path, required=True, help="directory of the results")
    parser.add_argument("--model", help="checkpoint; by default the bundled one, or the one that the recipe writes")
    parser.add_argument("--count", type=int, default=500, help="items per way")
    parser.add_argument("--batch", type=int, default=8, help="items that run at once")
    parser.add_argument("--seed", type=int, default=0, help="of the items and of the answers")
    parser.add_argument("--device", help="cpu or cuda; by default the first GPU, or else the CPU")
    parser.add_argument("--way", action="append", choices=WAYS, help="may be repeated; default: all")
    given = parser.parse_args(arguments)
    subject = SUBJECTS[given.task]
    scored = subject.load()
    items = list(scored.items("test", given.count, given.seed))
    g = gesso.load(given.model or subject.model, device=given.device, max_batch=given.batch, write="canvas")
    try:
        for way in given.way or WAYS:
            measure(g, scored, items, given.out / given.task, way, given.seed)
    finally:  # also after Ctrl-C
        write(given.out)


def measure(g: gesso.Gesso, scored: Task, items: Sequence[Item], out: Path, way: str, seed: int) -> None:
    """Measure one way, unless its file has the same items already."""
    path = out / f"{_slug(way)}.json"
    if path.exists() and read_runs(path)[0].fingerprint == fingerprint(items):
        return
    found = evaluate(g, scored, items, seed=seed, **WAYS[way])
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([found.to_dict()]) + "\n", encoding="utf-8")
    print(f"{scored.name}, {way}: {found.seconds:.0f} s", file=sys.stderr)


def _slug(way: str) -> str:
    return way.replace(",", "").replace(" ", "-")


# --- table and plots --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A score, its difference to writing token by token, and the passes of an answer."""

    score: Estimate
    passes: Estimate
    change: Estimate | None
    items: int


def read(out: Path, name: str) -> tuple[str, dict[str, Measured]]:
    """Return the name of the score of a task, and what was measured on the same items, by way."""
    paths = {way: path for way in WAYS if (path := out / name / f"{_slug(way)}.json").exists()}
    runs = {way: read_runs(path)[0] for way, path in paths.items()}
    found, shown = {}, ""
    for way, path in paths.items():
        raw = json.loads(path.read_text(encoding="utf-8"))[0]
        shown = SUBJECTS[name].score or next(iter(raw["scores"]))
        same = TOKENS in runs and runs[TOKENS].fingerprint == runs[way].fingerprint
        change = compare(runs[TOKENS], runs[way]).scores[shown] if same and way != TOKENS else None
        score, passes = Estimate(**raw["scores"][shown]), Estimate(**raw["denoising_steps"])
        found[way] = Measured(score, passes, change, raw["count"])
    return shown, found


def write(out: Path) -> None:
    """Write table.md and comparison.svg with all tasks that have been measured."""
    lines = ["| task | way | score | against token by token | passes per answer |", "|---|---|---|---|---|"]
    plots = []
    for name in SUBJECTS:
        shown, found = read(out, name)
        for way, one in found.items():
            change = "" if one.change is None else one.change.shown(100, "+")
            score = f"{shown} {one.score.shown(100)} %"
            lines.append(f"| {name}, {one.items} | {way} | {score} | {change} | {one.passes.shown()} |")
        if found:
            plots.append(plot(name, shown, found))
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "comparison.svg").write_text(sheet(plots), encoding="utf-8")


def plot(name: str, shown: str, found: Mapping[str, Measured]) -> str:
    """Return the plot of one task. The series are the same for every task, so that their colours are, too."""
    canvas = [_point(way, one) for way, one in found.items() if WAYS[way].keys() <= {"steps"}]
    lines = [Series(CANVAS, canvas)]
    for way in (TOKENS, VERIFIED):
        lines.append(Series(way, [_point(way, found[way])] if way in found else [], connected=False))
    return svg(lines, title=f"{name}: {shown}", x_label="passes per answer", y_label=shown)


def sheet(plots: Sequence[str]) -> str:
    """Return several plots as one, in rows of COLUMNS."""
    width, height = WIDTH * COLUMNS, HEIGHT * -(-len(plots) // COLUMNS)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">']
    for n, part in enumerate(plots):
        for name in (' aria-labelledby="title desc"', ' id="title"', ' id="desc"'):  # no name may occur twice
            part = part.replace(name, "", 1)
        row, column = divmod(n, COLUMNS)
        parts.append(part.replace("<svg", f'<svg x="{column * WIDTH}" y="{row * HEIGHT}"', 1))
    return "\n".join([*parts, "</svg>", ""])


def _point(way: str, one: Measured) -> Point:
    return Point(one.passes.mean, one.score.mean, one.score.low, one.score.high, way)


if __name__ == "__main__":
    main()
