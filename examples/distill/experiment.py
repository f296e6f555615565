"""Does distillation save steps? Record, train, train the control, and evaluate all three on held-out items.

    python -m examples.distill.experiment --out runs/distill
    python -m examples.distill.experiment --out runs/distill --phase evaluate --count 1000

The model is gesso-mini, the recipe mini.toml. The control takes as many steps with the same batches, in which the
recorded texts have random noise. All three models answer the same items of the test split at every setting.

Everything is written as it goes, and a second call continues: `trajectories`, `distilled` and `control` are recordings
and runs of gesso, `eval/` has one complete evaluation per file, and `results.jsonl` one line for each of them. The line
has the scores, the mean steps, and their paired differences from the base model at its own settings.
"""

import argparse
import gc
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import gesso
from gesso.cli.main import main as command
from gesso.eval import task
from gesso.eval.estimate import estimate
from gesso.eval.evaluate import evaluate
from gesso.train.recipe import Recipe, load
from gesso.train.recipe_file import write_recipe

RECIPE = Path(__file__).parent / "mini.toml"
TASKS = {"structured": "fields", "python_infill": "parses"}  # with the score that is shown first
PHASES = ("record", "train", "evaluate")
# From the checkpoint's own settings to faster ones; the most important first, in case time runs out.
SETTINGS: dict[str, dict[str, Any]] = {
    "own": {},
    "bound 0.1": {"entropy_bound": 0.1},
    "6 steps": {"steps": 6},
    "bound 0.3, confidence 0.05": {"entropy_bound": 0.3, "confidence": 0.05},
    "12 steps": {"steps": 12},
    "bound 1, confidence 0.1": {"entropy_bound": 1.0, "confidence": 0.1},
    "4 steps": {"steps": 4},
}


def recordings(out: Path) -> dict[str, Path]:
    return {name: out / "trajectories" / name for name in TASKS}


def recipe_for(out: Path, name: str, steps: int, batch_size: int, certainty: float | None = None) -> Recipe:
    """Return the recipe of the distilled model or of the control, in this directory."""
    recipe, places = load(RECIPE), list(recordings(out).values())
    assert recipe.distill is not None
    return replace(
        recipe,
        data=replace(recipe.data, files=tuple(str(place / "rows.jsonl") for place in places)),
        distill=replace(
            recipe.distill,
            trajectories=tuple(map(str, places)),
            objective="trajectory" if name == "distilled" else "ordinary",
            certainty=recipe.distill.certainty if certainty is None else certainty,
        ),
        run=replace(
            recipe.run, out=str(out / name), steps=steps, batch_size=batch_size, save_every=steps,
            workers=recipe.run.workers if torch.cuda.is_available() else 0,
            autocast=recipe.run.autocast if torch.cuda.is_available() else "none",
        ),
        optimizer=replace(recipe.optimizer, warmup=min(recipe.optimizer.warmup, steps // 10)),
    )  # fmt: skip


def run(*arguments: str) -> None:
    began = time.perf_counter()
    if (code := command(arguments)) != 0:
        raise SystemExit(code)
    print(f"{time.perf_counter() - began:.0f} s: gesso {' '.join(arguments)}", flush=True)


def record(out: Path, runs: int, batch: int) -> None:
    for name, place in recordings(out).items():
        options = ["--count", str(runs), "--batch", str(batch), "--trajectories", str(place), "--record-only"]
        run("distill", "--task", name, *options)


def train(out: Path, steps: int, batch_size: int, certainty: float | None) -> None:
    for name in ("distilled", "control"):
        path = out / f"{name}.toml"
        recipe = recipe_for(out, name, steps, batch_size, certainty)
        write_recipe(recipe, path, "Written by examples/distill/experiment.py.")
        run("distill", str(path))


def evaluations(out: Path, count: int, batch: int) -> Iterator[dict[str, Any]]:
    """Yield a line for each evaluation: every model at a setting before the next setting."""
    items = {name: list(task(name).items("test", count, seed=0)) for name in TASKS}
    paths = {"base": None, "distilled": out / "distilled/model", "control": out / "control/model"}
    folder = out / "eval"
    folder.mkdir(exist_ok=True)
    models = {name: gesso.load(path, max_batch=batch, write="canvas") for name, path in paths.items()}
    for label, settings in SETTINGS.items():
        for name, first in TASKS.items():
            for which, g in models.items():
                file = folder / f"{name}, {label}, {which}.json"
                if not file.exists():
                    found = evaluate(g, task(name), items[name], data={"split": "test", "count": count}, **settings)
                    file.write_text(json.dumps(found.to_dict()), encoding="utf-8")
                yield _line(folder, name, label, which, first)
    models.clear()
    gc.collect()


def _line(folder: Path, name: str, label: str, which: str, first: str) -> dict[str, Any]:
    """Return the figures of an evaluation, with paired differences from the base model at its own settings."""
    found, base = (
        json.loads((folder / f"{name}, {one}.json").read_text(encoding="utf-8"))
        for one in (f"{label}, {which}", "own, base")
    )
    pairs = list(zip(found["items"], base["items"], strict=True))
    changes = {
        score: asdict(estimate([now["scores"][score] - before["scores"][score] for now, before in pairs]))
        for score in found["scores"]
    }
    steps = found["denoising_steps"]["mean"]
    return {
        "task": name, "settings": label, "model": which, "count": found["count"], "score": first,
        "scores": {score: value["mean"] for score, value in found["scores"].items()},
        "steps": steps, "steps_of_base": steps / base["denoising_steps"]["mean"], "differences": changes,
        "seconds": found["seconds"],
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory for everything")
    parser.add_argument("--phase", choices=PHASES, action="append", help="only this phase; may be repeated")
    parser.add_argument("--runs", type=int, default=3072, help="recorded runs per task")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps of each model")
    parser.add_argument("--batch-size", type=int, default=256, help="examples per step")
    parser.add_argument("--certainty", type=float, help="weight of the certainty term; default: the recipe's")
    parser.add_argument("--count", type=int, default=500, help="items per evaluation")
    parser.add_argument("--batch", type=int, default=128, help="texts that are written at once")
    asked = parser.parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    phases = asked.phase or PHASES
    if "record" in phases:
        record(asked.out, asked.runs, asked.batch)
    if "train" in phases:
        train(asked.out, asked.steps, asked.batch_size, asked.certainty)
    if "evaluate" in phases:
        with (asked.out / "results.jsonl").open("w", encoding="utf-8") as file:
            for line in evaluations(asked.out, asked.count, asked.batch):
                print(json.dumps(line), file=file, flush=True)
                change = line["differences"][line["score"]]
                low = "" if change["low"] is None else f" ({100 * change['low']:+.1f} to {100 * change['high']:+.1f})"
                print(
                    f"{line['task']}, {line['settings']}, {line['model']}: {line['score']} "
                    f"{100 * line['scores'][line['score']]:.1f} %, {100 * change['mean']:+.1f}{low}; steps "
                    f"{line['steps']:.2f}, {line['steps_of_base']:.2f} of base; {line['seconds']:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
