"""The log of a training run and its loss curves, of one run or of several that went on from each other.

    python recipes/mini/curves.py runs/mini runs/mini-more --out docs/images/mini-loss --top 4

writes docs/images/mini-loss.csv, the means over every 50 steps, and docs/images/mini-loss.svg.
"""

import argparse
import csv
import json
from pathlib import Path
from statistics import fmean

from gesso.eval.plot import Point, Series, svg

EVERY = 50
COLUMNS = ("decoder", "encoder", "lr", "gradient", "tokens_per_second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="directories with a metrics.jsonl, in the order they ran")
    parser.add_argument("--out", type=Path, required=True, help="what to write, without .csv and .svg")
    parser.add_argument("--top", type=float, required=True, help="where the axis of the losses ends")
    given = parser.parse_args()
    rows = [row for run in given.runs for row in log(run)]
    with given.out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("run", "step", *COLUMNS))
        writer.writerows((name, step, *(f"{value:.4g}" for value in values)) for name, step, values in rows)
    given.out.with_suffix(".svg").write_text(picture(rows, given.top), encoding="utf-8")


def log(run: Path) -> list[tuple[str, int, list[float]]]:
    """The name of the run, the last step of every fifty, and the means over them."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    steps = [line for line in lines if "decoder" in line]
    parts = [steps[i : i + EVERY] for i in range(0, len(steps), EVERY)]
    return [(run.name, part[-1]["step"], [fmean(line[name] for line in part) for name in COLUMNS]) for part in parts]


def picture(rows: list[tuple[str, int, list[float]]], top: float) -> str:
    """Means over 200 steps; the steps of a run are counted on from those of the run before."""
    lines = []
    for n, name in enumerate(COLUMNS[:2]):
        points = [
            Point((first + 4) * EVERY, fmean(values[n] for _, _, values in rows[first : first + 4]))
            for first in range(0, len(rows) - 3, 4)
        ]
        if any(point.y for point in points):
            lines.append(Series(f"{name} loss", points))
    return svg(lines, title=" and ".join(dict.fromkeys(name for name, _, _ in rows)), x_label="training step",
               y_label="loss (nats a token)", top=top)  # fmt: skip


if __name__ == "__main__":
    main()
