"""Measure every sampler and every stopping rule on every task, with the bundled models.

    python -m examples.samplers.table --out runs/samplers --count 500 --batch 256 --device cuda

writes runs/samplers/table.md and table.json after every task. A cell is a file that `gesso eval --json` could have
written, such as runs/samplers/structured/argmax.json, for `gesso eval --against`. If it exists, it is not measured
again: the same command continues an interrupted run. `--prepare` makes the puzzles and stops, since that takes a CPU
longer than the answers take a GPU.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import gesso
from examples.samplers import rules
from gesso.errors import InputError
from gesso.eval import Item, PythonInfill, Structured, Sudoku, Task
from gesso.eval.estimate import Estimate, estimate
from gesso.eval.evaluate import evaluate, fingerprint
from gesso.eval.paired import ComparedRun, Comparison, compare, read_runs
from gesso.eval.sudoku.puzzles import SEVENTEEN
from gesso.settings import BY_TOKEN, SAMPLERS, STOPPINGS, choose

TOLERANCE = 0.02  # by which a score may fall if the passes fall beyond noise
DEFAULT = "default"


@dataclass(frozen=True)
class Column:
    """A task with the model that is measured on it."""

    name: str
    task: Task
    model: str


COLUMNS = (
    Column("sudoku, 22 to 24 clues", Sudoku(clues=(22, 24)), "gesso-sudoku"),
    Column("sudoku, 17 clues", Sudoku(data=(SEVENTEEN,)), "gesso-sudoku"),
    Column("structured", Structured(), "gesso-mini"),
    Column("python_infill", PythonInfill(), "gesso-mini"),
)
# All settings that a row does not name are the checkpoint's.
ROWS: Mapping[str, Mapping[str, Any]] = {
    DEFAULT: {},
    **{name: {"sampler": name} for name in SAMPLERS},
    **{name: {"sampler": rule} for name, rule in rules.SAMPLERS.items()},
    **{write: {"write": write} for write in BY_TOKEN},
    **{f"{write}, greedy": {"write": write, "greed": 1.0} for write in BY_TOKEN},
    **{f"stopping {name}": {"stopping": name} for name in STOPPINGS},
    **{f"stopping {name}": {"stopping": rule} for name, rule in rules.STOPPINGS.items()},
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the results")
    parser.add_argument("--count", type=int, default=500, help="items per cell")
    parser.add_argument("--batch", type=int, default=8, help="items that run at once")
    parser.add_argument("--seed", type=int, default=0, help="of the items and of the answers")
    parser.add_argument("--device", help="cpu or cuda; by default the first GPU, or else the CPU")
    parser.add_argument("--task", action="append", help="part of the name of a task; may be repeated; default: all")
    parser.add_argument("--row", action="append", help="row beside the default; may be repeated; default: all")
    parser.add_argument("--prepare", action="store_true", help="make the puzzles and stop")
    given = parser.parse_args(arguments)
    wanted = [one for one in COLUMNS if not given.task or any(part in one.name for part in given.task)]
    rows = {name: ROWS[name] for name in ROWS if not given.row or name in (DEFAULT, *given.row)}
    items = {one.name: stored_items(one, given.out, given.count, given.seed) for one in wanted}
    for model, columns in groupby([] if given.prepare else wanted, key=lambda one: one.model):
        g = gesso.load(model, device=given.device, max_batch=given.batch, write="canvas")
        for column in columns:
            try:
                for name, settings in rows.items():
                    measure(g, column, items[column.name], given.out, name, settings, given.seed)
            finally:  # also after Ctrl-C
                write(given.out, wanted, rows)


# --- measure ----------------------------------------------------------------------------------------------------------


def stored_items(column: Column, out: Path, count: int, seed: int) -> list[Item]:
    """Return the items of a task. Generated puzzles are kept in a file: they take a tenth of a second and more each."""
    if not (isinstance(column.task, Sudoku) and not column.task.data):
        return list(column.task.items("test", count, seed))
    path = out / f"{_slug(column.name)}-{count}-{seed}.json"
    if not path.exists():
        made = [asdict(item) for item in column.task.items("test", count, seed)]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made), encoding="utf-8")
    return [Item(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def measure(
    g: gesso.Gesso, column: Column, items: Sequence[Item], out: Path, name: str, settings: Mapping[str, Any], seed: int
) -> None:
    """Measure one cell, unless its file has the same items already.

    Left out are rows that a sampler rejects, and rows that are the default under another name.
    """
    path, default = cell(out, column, name), g.defaults.diffusion
    if path.exists() and read_runs(path)[0].fingerprint == fingerprint(items):
        return
    try:
        if settings and choose(default, **settings) == default:
            return
        found = evaluate(g, column.task, items, seed=seed, **settings)
    except InputError as error:
        print(f"{column.name}: {name} left out: {error}", file=sys.stderr)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([found.to_dict()]) + "\n", encoding="utf-8")
    score = next(iter(found.scores.values())).mean
    print(
        f"{column.name}: {name}: {100 * score:.1f} %, {found.denoising_steps.mean:.1f} passes, {found.seconds:.0f} s",
        file=sys.stderr,
    )


def cell(out: Path, column: Column, row: str) -> Path:
    return out / _slug(column.name) / f"{_slug(row)}.json"


def _slug(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    settings: str  # sampler and stopping rule
    scores: Mapping[str, Estimate]
    passes: Estimate
    failures: int
    change: Comparison  # to the default

    @property
    def is_better(self) -> bool:
        """Whether the score is higher beyond noise without more passes, or the passes fewer without a lower score."""
        score, passes = next(iter(self.change.scores.values())), self.change.passes
        if score.low is None or passes.low is None or passes.high is None:
            return False
        return (score.low > 0 and passes.low <= 0) or (passes.high < 0 and score.low >= -TOLERANCE)


def read(out: Path, columns: Sequence[Column], rows: Mapping[str, Any]) -> dict[str, dict[str, Cell]]:
    """Return all cells that have been measured on the items of the default, by task and row."""
    found: dict[str, dict[str, Cell]] = {}
    for column in columns:
        if not cell(out, column, DEFAULT).exists():
            continue
        (base,) = read_runs(cell(out, column, DEFAULT))
        for name in rows:
            path = cell(out, column, name)
            raw = json.loads(path.read_text(encoding="utf-8"))[0] if path.exists() else {}
            if raw.get("fingerprint") == base.fingerprint:
                found.setdefault(column.name, {})[name] = _cell(base, raw)
    return found


def _cell(base: ComparedRun, raw: Mapping[str, Any]) -> Cell:
    run, settings = ComparedRun.from_dict(raw), raw["settings"]
    ran = [value for value in run.passes if value is not None]
    scores = {name: Estimate(**score) for name, score in raw["scores"].items()}
    named = f"{settings['sampler']}, {settings['stopping']}"
    return Cell(named, scores, estimate(ran), len(run.passes) - len(ran), compare(base, run))


def write(out: Path, columns: Sequence[Column], rows: Mapping[str, Any]) -> None:
    """Write table.json and table.md."""
    cells = read(out, columns, rows)
    document = {
        task: {name: {**asdict(one), "is_better": one.is_better} for name, one in found.items()}
        for task, found in cells.items()
    }
    (out / "table.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (out / "table.md").write_text("\n".join(_markdown(cells)) + "\n", encoding="utf-8")


def _markdown(cells: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    lines = ["# Samplers", "", "Intervals are 95 %. Differences to the default are paired, item by item.", ""]
    for task, found in cells.items():
        base = found[DEFAULT]
        lines += [f"## {task}, {base.change.count} items", ""]
        first = next(iter(base.scores))
        lines.append(f"| | {' | '.join(base.scores)} | passes | {first} against default | passes against default | |")
        lines.append("|---" * (len(base.scores) + 5) + "|")
        for name, one in found.items():
            scores = " | ".join(f"{score.shown(100)} %" for score in one.scores.values())
            change = one.change.scores[first].shown(100, "+"), one.change.passes.shown(1, "+")
            mark = f"{one.failures} failed" if one.failures else "better" if one.is_better else ""
            shown = f"`{name}` ({one.settings})" if name == DEFAULT else f"`{name}`"
            lines.append(f"| {shown} | {scores} | {one.passes.shown()} | {change[0]} | {change[1]} | {mark} |")
        best = max(found, key=lambda name: (found[name].scores[first].mean, -found[name].passes.mean))
        low = found[best].change.scores[first].low
        noise = "" if best == DEFAULT or (low is not None and low > 0) else ", within the noise of the default"
        lines += ["", f"Highest {first}: `{best}`{noise}.", ""]
    everywhere = [name for name in ROWS if all(name in found and found[name].is_better for found in cells.values())]
    lines.append(f"Better than the default on every task: {', '.join(f'`{name}`' for name in everywhere) or 'none'}.")
    return lines


if __name__ == "__main__":
    main()
