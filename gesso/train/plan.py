"""Derive a recipe from data: `gesso train --data`.

The recipe is a function of the rows, the model's shape, the kind of device and the given options. So the same command
gives the same recipe, and the recipe alone repeats the run.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gesso.adapters import LoraSettings
from gesso.bundled import BASE
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.find import find_directory
from gesso.checkpoint.generation import GenerationDefaults
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from gesso.memory.units import gigabytes
from gesso.model.config import Config
from gesso.train import held_out
from gesso.train.data import Dataset, Example, Rejected
from gesso.train.defaults import (
    LARGE,
    Defaults,
    adapter_rate,
    defaults_of,
    epochs_of,
    learns_by_heart,
    parameter_count,
)
from gesso.train.files import SUFFIXES
from gesso.train.image_rows import RowImageReader
from gesso.train.learned import has_prompt
from gesso.train.memory import Forecast, forecast
from gesso.train.reading import TOO_LONG
from gesso.train.recipe import (
    DataSettings,
    HeldOutSettings,
    ModelSettings,
    ObjectiveSettings,
    OptimizerSettings,
    Recipe,
    RunSettings,
)

LIMIT = 2048  # tokens of a row, unless max_length is given
NONE = "none"  # in place of a file of held-out rows: hold out none

BATCHES = 3  # steps of an epoch at least: few rows have small batches
TOKENS = {"cuda": 8192, "cpu": 4096}  # of a batch, canvases included; a step of more rows has several batches
EVALUATIONS = 8  # of the held-out rows during a run
CANVASES = 4  # of an example at most, drawn anew each time
CANVAS_MULTIPLE = 4  # tokens
BEFORE = 8  # tokens before a canvas in a section of a text, at least

WARMUP = 0.1  # share of the steps
MOST_WARMUP = 100  # steps
LARGE_ON_CPU = 4 * 10**9  # parameters from which on a CPU keeps bfloat16 weights: 8 GB
LISTED = 5  # rejected rows that are named


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of the command. None: derive the value."""

    data: tuple[str, ...]
    held_out: tuple[str, ...] = ()  # files, or NONE
    model: str | None = None
    quantize: str | None = None
    out: str | None = None
    steps: int | None = None
    epochs: int | None = None
    lr: float | None = None
    rank: int | None = None
    targets: tuple[str, ...] = ()  # empty: derive them
    max_length: int | None = None
    batch_size: int | None = None
    eval_every: int | None = None
    patience: int = 3
    seed: int = 0
    log: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    recipe: Recipe
    rows: int  # trained on
    held_out: int
    longest: int
    rejected: tuple[Rejected, ...]
    cut: int  # texts shown in sections because they are longer than max_length
    memory: Forecast | None  # on a GPU; None on a CPU

    @property
    def epochs(self) -> float:
        run = self.recipe.run
        return run.steps * run.batch_size * run.accumulate / self.rows

    def lines(self) -> list[str]:
        """Return the choices, in a few lines."""
        recipe, run = self.recipe, self.recipe.run
        lora = recipe.lora
        assert isinstance(lora, LoraSettings)
        held_out = f"{self.held_out or 'none'} held out"
        weights = recipe.model.quantize or recipe.model.dtype
        recomputed = ", activations recomputed" if run.checkpoint_activations else ""
        accumulated = f" in {run.accumulate} batches" if run.accumulate > 1 else ""
        canvas = recipe.objective.canvas_lengths[0]
        lines = [
            f"data     {self.rows:,} rows to train on, {held_out}; longest {self.longest:,} tokens",
            f"model    {recipe.model.path or BASE}, {weights}{recomputed}",
            f"adapter  rank {lora.rank}, alpha {lora.alpha:g}, on {', '.join(lora.targets)}",
            f"steps    {run.steps:,} of {run.batch_size * run.accumulate} rows{accumulated}, {self.epochs:.3g} epochs, "
            f"canvases of {canvas}",
            f"rate     {recipe.optimizer.lr:.2g}, cosine to 10 %, after {recipe.optimizer.warmup} steps of warm-up",
        ]
        if self.memory:
            lines.append(
                f"memory   about {gigabytes(self.memory.total)} on the GPU: weights {gigabytes(self.memory.weights)}, "
                f"adapter with gradients and moments {gigabytes(self.memory.adapter)}, "
                f"a step {gigabytes(self.memory.step)}"
            )
        if self.cut:
            lines.append(
                f"cut      {self.cut:,} texts are longer than {recipe.data.max_length:,} tokens: shown in sections"
            )
        if self.rejected:
            lines.append(f"skipped  {len(self.rejected):,} rows:")
            lines += [f"         {row}" for row in self.rejected[:LISTED]]
            more = len(self.rejected) - LISTED
            lines += [f"         … and {more:,} more; --check lists all"] if more > 0 else []
        return lines


def make_plan(given: TrainOptions, device: str, *, check: bool = False) -> TrainingPlan:
    """Read the data and return a recipe for it. `device` is cuda or cpu.

    Data that are mostly unusable are rejected, unless the recipe is only to `check` them.
    """
    directory = find_directory(given.model)
    config = Config.from_directory(directory)
    generation = GenerationDefaults.from_directory(directory, config)
    tokenizer = Tokenizer.from_directory(directory)
    eos = generation.eos_token_ids[0]
    limit = given.max_length or min(LIMIT, config.max_position_embeddings)
    # Texts may be longer: they are cut. Other rows that are longer are rejected, and skipped.
    sections = tokenizer.bos_id is not None
    settings = DataSettings(
        files=given.data, max_length=limit, on_bad_row="skip", seed=given.seed, cut=sections, pack=True
    )
    dataset = Dataset(settings, tokenizer, eos, RowImageReader.of(open_source(directory), tokenizer))
    if not (check and dataset.good):
        _check_usable(dataset)
    longest = max(dataset.lengths)
    cut = sum(length > limit for length in dataset.lengths)
    count = parameter_count(config)
    defaults = defaults_of(count)
    held_out_files = () if given.held_out == (NONE,) else given.held_out
    held_out_examples: list[Example] = []
    by_heart = learns_by_heart(count, dataset.entries) and all(map(has_prompt, _examples(dataset)))
    chooses_rows = not given.held_out and not by_heart
    if held_out_files or (chooses_rows and held_out.choose(dataset)):
        held_out_settings = HeldOutSettings(every=1, files=held_out_files)
        held_out_examples = held_out.split(dataset, held_out_settings, tokenizer, eos)
    longest = max(longest, *(len(example.tokens) for example in held_out_examples), 2)
    too_long = cut or any(row.reason.startswith(TOO_LONG) for row in dataset.rejected)
    settings = replace(settings, max_length=limit if too_long else longest, cut=cut > 0)
    rows = dataset.entries
    response = max(end - start for example in _examples(dataset) for start, end in example.spans)
    canvas = _canvas(response, min(config.canvas_length, generation.max_new_tokens), device)
    if cut:
        canvas = min(canvas, max(2, settings.max_length - BEFORE))
    shown_tokens = settings.max_length + CANVASES * defaults.draws * canvas
    batch_size, accumulate = _batches(given, defaults, rows, shown_tokens, device)
    epochs = given.epochs or epochs_of(count, rows, response)
    steps = given.steps or math.ceil(rows * epochs / (batch_size * accumulate))
    every = given.eval_every or math.ceil(steps / EVALUATIONS)
    if not given.steps:
        steps = math.ceil(steps / every) * every  # the last step is evaluated too
    lr = given.lr or adapter_rate(config, defaults.rate)
    rank = given.rank or defaults.rank
    lora = LoraSettings(rank=rank, alpha=2.0 * rank, targets=given.targets or defaults.targets)
    dtype = frozen_dtype(config, device)
    memory = None
    if device != "cpu" and not check:
        memory = forecast(open_source(directory), getattr(torch, dtype), given.quantize, lora)
    recipe = Recipe(
        model=ModelSettings(path=given.model, dtype=dtype, quantize=given.quantize),
        data=settings,
        objective=ObjectiveSettings(
            canvases_per_example=CANVASES,
            canvas_lengths=(canvas,),
            draws=(defaults.draws,),
            encoder_weight=defaults.encoder_weight,
        ),
        optimizer=OptimizerSettings(lr=lr, min_lr=lr / 10, warmup=max(1, min(round(WARMUP * steps), MOST_WARMUP))),
        run=RunSettings(
            out=given.out or f"runs/{_name(given.data[0])}",
            steps=steps,
            batch_size=batch_size,
            accumulate=accumulate,
            seed=given.seed,
            save_every=every,
            checkpoint_activations=count >= LARGE,
            log=given.log,
        ),
        lora=lora,
        held_out=(
            HeldOutSettings(every=every, files=held_out_files, patience=given.patience) if held_out_examples else None
        ),
    )
    return TrainingPlan(
        recipe=recipe,
        rows=rows,
        held_out=len(held_out_examples),
        longest=longest,
        rejected=tuple(dataset.rejected),
        cut=cut,
        memory=memory,
    )


def frozen_dtype(config: Config, device: str) -> str:
    """Return the dtype of the weights under an adapter."""
    return "float32" if device == "cpu" and parameter_count(config) < LARGE_ON_CPU else "bfloat16"


def _check_usable(dataset: Dataset) -> None:
    if not dataset.rows:
        raise InputError(f"there are no rows in {', '.join(dataset.settings.files)}")
    if 2 * len(dataset.rejected) <= dataset.rows:
        return
    first = "\n".join(f"  {row}" for row in dataset.rejected[:LISTED])
    raise InputError(
        f"{len(dataset.rejected):,} of {dataset.rows:,} rows cannot be used:\n{first}\n"
        "Correct them, or write a recipe; see docs/guides/fine-tuning.md for the formats."
    )


def _examples(dataset: Dataset) -> Iterator[Example]:
    return (row for row in dataset.read() if isinstance(row, Example))


def _canvas(response: int, longest: int, device: str) -> int:
    """Return the length of the canvases: on a GPU as at generation, on a CPU as short as the responses allow.

    An adapter that is trained on shorter canvases works on longer ones, and the time on a CPU grows with their length.
    """
    if device != "cpu":
        return longest
    return min(longest, -(-response // CANVAS_MULTIPLE) * CANVAS_MULTIPLE)


def _batches(given: TrainOptions, defaults: Defaults, rows: int, tokens: int, device: str) -> tuple[int, int]:
    """Return the rows of a batch and the batches of a step, so that a batch fits into memory."""
    wanted = given.batch_size or max(1, min(defaults.batch_size, rows // BATCHES))
    fits = max(1, TOKENS[device] // tokens)
    accumulate = math.ceil(wanted / fits)
    while wanted % accumulate:  # batches of one size; a divisor exists: the number of rows
        accumulate += 1
    return wanted // accumulate, accumulate


def _name(data: str) -> str:
    """Return a name for the run: that of the data file or dataset."""
    name = Path(data.partition(":")[0]).name
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
