"""Plot the loss curves of a training run, or of several that continue each other.

    python -m examples.mini.curves runs/mini runs/mini-more --out docs/images/mini-loss --top 4

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
    parser.add_argument("runs", nargs="+", type=Path, help="directories with a metrics.jsonl, in the order of the runs")
    parser.add_argument("--out", type=Path, required=True, help="output path without .csv and .svg")
    parser.add_argument("--top", type=float, required=True, help="upper end of the loss axis")
    given = parser.parse_args()
    rows = [row for run in given.runs for row in log(run)]
    with given.out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("run", "step", *COLUMNS))
        writer.writerows((name, step, *(f"{value:.4g}" for value in values)) for name, step, values in rows)
    given.out.with_suffix(".svg").write_text(picture(rows, given.top), encoding="utf-8")


def log(run: Path) -> list[tuple[str, int, list[float]]]:
    """Return the run's name, last step and means for every 50 steps."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    steps = [line for line in lines if "decoder" in line]
    parts = [steps[i : i + EVERY] for i in range(0, len(steps), EVERY)]
    return [(run.name, part[-1]["step"], [fmean(line[name] for line in part) for name in COLUMNS]) for part in parts]


def picture(rows: list[tuple[str, int, list[float]]], top: float) -> str:
    """Return a plot of means over 200 steps. Runs are joined end to end."""
    lines = []
    for n, name in enumerate(COLUMNS[:2]):
        points = [
            Point((first + 4) * EVERY, fmean(values[n] for _, _, values in rows[first : first + 4]))
            for first in range(0, len(rows) - 3, 4)
        ]
        if any(point.y for point in points):
            lines.append(Series(f"{name} loss", points))
    return svg(lines, title=" and ".join(dict.fromkeys(name for name, _, _ in rows)), x_label="training step",
               y_label="loss (nats per token)", top=top)  # fmt: skip


if __name__ == "__main__":
    main()
