"""Derive the recipe that trains on recorded runs: `gesso distill` without a recipe."""

import math
from dataclasses import dataclass
from pathlib import Path

from gesso.adapters import LoraSettings
from gesso.distill.record import NOTE, ROWS
from gesso.errors import InputError
from gesso.files import read_json
from gesso.model.config import Config
from gesso.train.defaults import LARGE, adapter_rate, parameter_count
from gesso.train.plan import LIMIT, MOST_WARMUP, WARMUP, frozen_dtype
from gesso.train.recipe import (
    DataSettings,
    DistillSettings,
    ModelSettings,
    ObjectiveSettings,
    OptimizerSettings,
    Recipe,
    RunSettings,
)
from gesso.train.trajectories import Trajectories

LATER = 0.75  # share of the recorded canvases that are not the first of their run
EPOCHS = 2  # passes over the accepted canvases
WHOLE = 0.1  # learning rate for training all weights, relative to that of an adapter
BATCH = {"cuda": 64, "cpu": 16}
TOKENS = {"cuda": 65_536, "cpu": 8192}  # of a batch; a step of more examples has several batches
LARGE_TOKENS = 8192  # of a batch of a large model
SAVES = 4  # checkpoints per run


@dataclass(frozen=True, kw_only=True)
class DistillOptions:
    """The options of the command. None: derive the value."""

    out: str
    trajectories: tuple[str, ...]
    data: tuple[str, ...] = ()  # ordinary rows; empty: the references of the recorded prompts
    model: str | None = None
    quantize: str | None = None
    lora: int | None = None  # rank; None: train all weights
    targets: tuple[str, ...] = ("attention", "mlp")
    objective: str = "trajectory"
    certainty: float = 1.0
    depth: int = 4
    rows: float = 0.25
    steps: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    seed: int = 0


def make_recipe(given: DistillOptions, config: Config, device: str) -> Recipe:
    """Return a recipe for complete recordings. `device` is cuda or cpu."""
    recorded = Trajectories([Path(name) for name in given.trajectories])
    files = given.data or tuple(file for name in given.trajectories for file in _reference_files(Path(name)))
    if not files:
        raise InputError("there are no ordinary rows for --rows: name files with --data, or give --rows 0")
    large = parameter_count(config) >= LARGE
    if given.lora is None and (large or given.quantize):
        raise InputError("all weights of a large or quantized model cannot be trained on one card; add --lora 8")
    longest = int(recorded.lengths.max()) + recorded.canvas_length
    batch_size, accumulate = _batches(
        given.batch_size or BATCH[device], longest, LARGE_TOKENS if large else TOKENS[device]
    )
    steps = given.steps or math.ceil(EPOCHS * len(recorded.entries) / (batch_size * accumulate * (1 - given.rows)))
    lr = given.lr or float(f"{adapter_rate(config) * (1 if given.lora else WHOLE):.2g}")
    lora = LoraSettings(rank=given.lora, alpha=2.0 * given.lora, targets=given.targets) if given.lora else None
    return Recipe(
        model=ModelSettings(
            path=given.model, dtype=frozen_dtype(config, device) if lora else "float32", quantize=given.quantize
        ),
        data=DataSettings(
            files=files,
            max_length=min(LIMIT, config.max_position_embeddings),
            on_bad_row="skip",
            seed=given.seed,
            pack=True,
        ),
        objective=ObjectiveSettings(self_conditioning=LATER, canvas_lengths=(recorded.canvas_length,)),
        optimizer=OptimizerSettings(lr=lr, min_lr=lr / 10, warmup=max(1, min(round(WARMUP * steps), MOST_WARMUP))),
        run=RunSettings(
            out=given.out,
            steps=steps,
            batch_size=batch_size,
            accumulate=accumulate,
            seed=given.seed,
            save_every=math.ceil(steps / SAVES),
            autocast="none" if device == "cpu" else "bfloat16",
            checkpoint_activations=large,
        ),
        lora=lora,
        distill=DistillSettings(
            trajectories=given.trajectories,
            objective=given.objective,
            certainty=given.certainty,
            depth=given.depth,
            rows=given.rows,
        ),
    )


def _reference_files(recording: Path) -> list[str]:
    """Return the files with the reference answers of recorded prompts."""
    rows = recording / ROWS
    if rows.is_file() and rows.stat().st_size:
        return [str(rows)]
    return list(read_json(recording / NOTE).get("data", {}))


def _batches(wanted: int, longest: int, tokens: int) -> tuple[int, int]:
    """Return the examples of a batch and the batches of a step, so that a batch fits into memory."""
    accumulate = math.ceil(wanted / max(2, tokens // longest))
    while wanted % accumulate:
        accumulate += 1
    return wanted // accumulate, accumulate
