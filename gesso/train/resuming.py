"""What may change between the parts of a run."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gesso.errors import InputError
from gesso.train.inputs import Fingerprints, changed_input
from gesso.train.optimizers import learning_rate
from gesso.train.recipe import Recipe

# Settings that leave the run the same: where it writes, how often, and how long it lasts.
FREE = {
    "run.steps", "run.save_every", "run.keep", "run.log_every", "run.log", "run.out", "run.workers",
    "run.export_dtype", "run.export_shard",
}  # fmt: skip
# Settings that a run may need to get past a loss that is not finite. Their changes are reported.
REPORTED = {
    "optimizer.lr", "optimizer.min_lr", "optimizer.warmup", "optimizer.clip", "held_out.every", "held_out.patience",
    "held_out.samples",
}  # fmt: skip


def note_of(recipe: Recipe, inputs: Fingerprints) -> dict[str, Any]:
    """Return the part of a checkpoint that `check` compares."""
    return {"recipe": json.loads(json.dumps(asdict(recipe))), "inputs": inputs}


def check(out: Path, note: Mapping[str, Any], recipe: Recipe, inputs: Fingerprints) -> list[str]:
    """Reject changes that would make this a different run, and return a line about each change to report."""
    before, now = note["recipe"], note_of(recipe, inputs)["recipe"]
    changed = _changed_settings(before, now)
    if other := [name for name in changed if name not in FREE | REPORTED]:
        raise InputError(
            f"{out} contains a run with other settings ({', '.join(other)}); choose another run.out, "
            "or delete the directory to start over"
        )
    if file := changed_input(note.get("inputs", inputs), inputs):  # runs of older versions have no fingerprints
        raise InputError(
            f"{file} has changed since the run in {out} was started; restore the file, choose another run.out, or "
            "delete the directory to start over"
        )
    lines = [f"{name} was {old}, and is {new} from here on" for name, (old, new) in changed.items() if name in REPORTED]
    step = note["step"]
    if step < recipe.run.steps and _rate(before, step) != _rate(now, step):
        lines.append(
            f"the learning rate changes from {_rate(before, step - 1):.3g} (step {step}) to {_rate(now, step):.3g} "
            f"(step {step + 1})"
        )
    return [f"resuming {out} after step {step}: {line}" for line in lines]


def _changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the old and new value of each setting that differs, by section and name."""
    changed = {}
    for section in sorted(before.keys() | now.keys()):
        old, new = before.get(section) or {}, now.get(section) or {}
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                changed[f"{section}.{name}"] = old.get(name), new.get(name)
    return changed


def _rate(recipe: Mapping[str, Any], step: int) -> float:
    peak, least, warmup = (recipe["optimizer"][name] for name in ("lr", "min_lr", "warmup"))
    return learning_rate(peak, least, warmup, step, recipe["run"]["steps"])
