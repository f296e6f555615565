"""Run a recipe: check its data, or load its model and data and train."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from gesso.adapters import LoraSettings
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.find import find_directory
from gesso.checkpoint.generation import GenerationDefaults
from gesso.checkpoint.load import load
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from gesso.memory.device import memory_of
from gesso.model.config import Config
from gesso.model.init import begin
from gesso.model.transformer import DiffusionGemma
from gesso.train import data_report
from gesso.train.data import Dataset, Example
from gesso.train.defaults import learns_by_heart, parameter_count
from gesso.train.distilled import Distilled
from gesso.train.held_out import Answer, HeldOut, split
from gesso.train.image_rows import RowImageReader
from gesso.train.learned import Learned, has_prompt, try_rows
from gesso.train.memory import explained, forecast, limit_memory
from gesso.train.processes import join_processes
from gesso.train.progress import TrainingProgress
from gesso.train.recipe import Recipe
from gesso.train.source import MakeSource, find_source
from gesso.train.trainer import Report, Score, Trainer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def directory_of(recipe: Recipe) -> Path:
    return find_directory(recipe.model.path)


def eos_of(directory: Path) -> int:
    """Return the token that ends a text and fills its last canvas: the first of the checkpoint's end tokens."""
    config = Config.from_directory(directory)
    return GenerationDefaults.from_directory(directory, config).eos_token_ids[0]


def check(recipe: Recipe) -> data_report.DataReport:
    """Read all the data and report on it. Bad rows are listed, even if the recipe has on_bad_row = "stop"."""
    if recipe.data.source:
        raise InputError(f"{recipe.data.source} generates examples during training: there are no rows to check")
    directory = directory_of(recipe)
    tokenizer = Tokenizer.from_directory(directory)
    images = _images(recipe, directory, tokenizer)
    dataset = Dataset(replace(recipe.data, on_bad_row="skip"), tokenizer, eos_of(directory), images)
    return data_report.inspect(dataset, tokenizer)


def train(
    recipe: Recipe,
    report: Report | None = None,
    score: Score | None = None,
    minutes: float | None = None,
    answer: Answer | None = None,
    memory: float | str | None = None,
) -> Learned | None:
    """Train the recipe's model for at most `minutes`; a later call resumes the run.

    `report` is called with the metrics of every step and replaces the progress line. `score` evaluates the model for
    `[eval]`. `answer` writes the samples of `[held_out]`. If a small model learns few rows by heart, it answers their
    questions at the end, and the result is returned. `memory` limits the GPU memory of this process: a share of it,
    or a size such as "18GB".
    """
    if recipe.model.dtype not in DTYPES:
        raise InputError(f"model.dtype must be one of {', '.join(DTYPES)}, got {recipe.model.dtype!r}")
    if recipe.model.quantize and (recipe.lora is None or recipe.model.scratch):
        raise InputError("model.quantize packs frozen weights, so an adapter has to be trained on them; add [lora]")
    if recipe.model.dtype != "float32" and recipe.lora is None:
        raise InputError(
            f"training all weights in {recipe.model.dtype} would lose most updates: they are smaller than its rounding "
            'errors. Set model.dtype = "float32" and run.autocast = "bfloat16", or train an adapter with [lora]'
        )
    device = join_processes()
    try:
        limit = limit_memory(device, memory)
        directory = directory_of(recipe)
        config = Config.from_directory(directory)
        tokenizer, eos = Tokenizer.from_directory(directory), eos_of(directory)
        _check_memory(recipe, directory, device, limit)
        data = _source(recipe, directory, tokenizer)(recipe.data, tokenizer, eos)
        visible = report is None and int(os.environ.get("RANK", 0)) == 0
        with explained(), TrainingProgress(recipe.run.steps, device, visible=visible) as line:
            held_out = None
            if recipe.held_out:
                if not isinstance(data, Dataset):
                    raise InputError(f"[held_out] needs rows, but {recipe.data.source} generates them; remove one")
                examples = split(data, recipe.held_out, tokenizer, eos)
                held_out = HeldOut(recipe, recipe.held_out, examples, tokenizer, eos, answer, line.samples)
            model = _model(recipe, directory, config, device)
            trainer = Trainer(recipe, model, data, directory, eos, score, held_out, limit)
            trainer.run(report or line.step, minutes)
            if answer is None or not isinstance(data, Dataset) or not _by_heart(recipe, config, data):
                return None
            rows = [row for row in data.read() if isinstance(row, Example) and has_prompt(row)]
            return try_rows(model, rows, tokenizer, answer) if rows else None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _check_memory(recipe: Recipe, directory: Path, device: torch.device, limit: int | None) -> None:
    """Reject a new adapter that cannot be trained in the memory of this process' GPU."""
    if device.type != "cuda" or dist.is_initialized():
        return  # several processes share the weights
    if not isinstance(recipe.lora, LoraSettings) or recipe.model.scratch:
        return
    usable = memory_of(device).free if limit is None else limit
    expected = forecast(open_source(directory), DTYPES[recipe.model.dtype], recipe.model.quantize, recipe.lora)
    expected.check(usable)


def _by_heart(recipe: Recipe, config: Config, data: Dataset) -> bool:
    """Return whether the rows are questions that an adapter was to learn by heart, in this process alone."""
    if recipe.lora is None or recipe.held_out or recipe.distill or recipe.data.infill or recipe.data.cut:
        return False
    return not dist.is_initialized() and learns_by_heart(parameter_count(config), data.entries)


def _source(recipe: Recipe, directory: Path, tokenizer: Tokenizer) -> MakeSource:
    """Return the source of the examples, before its settings are known to be right."""
    if recipe.data.source:
        return find_source(recipe.data.source)
    images = _images(recipe, directory, tokenizer)
    return partial(Distilled, recipe.distill, images=images) if recipe.distill else partial(Dataset, images=images)


def _images(recipe: Recipe, directory: Path, tokenizer: Tokenizer) -> RowImageReader | None:
    """Return the reader of images in rows; None without a tower, which a model from scratch does not have either."""
    return None if recipe.model.scratch else RowImageReader.of(open_source(directory), tokenizer)


def _model(recipe: Recipe, directory: Path, config: Config, device: torch.device) -> DiffusionGemma:
    if not recipe.model.scratch:
        return load(open_source(directory), device, DTYPES[recipe.model.dtype], recipe.model.quantize)
    with device:
        model = DiffusionGemma(config).to(DTYPES[recipe.model.dtype])
    begin(model, recipe.run.seed)
    return model
