"""`python -m examples.sudoku_images.train --out DIR`: train the vision tower of gesso-sudoku and write the model.

Pictures are drawn by processes while the tower trains. On a GPU the tower is faster than they are, so each picture is
kept in a pool and shown several times. The text model is not trained, and not run: see `tower`.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from examples.sudoku_images.bundle import write_bundle
from examples.sudoku_images.fonts import fonts_in
from examples.sudoku_images.stream import PILLOW, Pictures, Stream, batch, loader
from examples.sudoku_images.tower import Targets, new_tower, see, trained
from gesso.bundled import SOLVER
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.find import find_directory
from gesso.checkpoint.load import load
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from gesso.model.vision import Vision

WARMUP, EMA, CLIP, DECAY = 200, 0.998, 1.0, 0.01
GROWTH = 0.35  # share of the time until pictures have their full difficulty
SLOWEST = 0.02  # learning rate at the end, as a share of its peak
HELD_OUT_SEED = 10**6


class Pool:
    """The latest pictures, on the device. Each is drawn once and shown several times."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity, self.device = capacity, device
        self.pixels: Tensor | None = None
        self.digits: Tensor | None = None
        self.added = 0

    def add(self, pictures: Pictures) -> None:
        """Add pictures in place of the oldest."""
        if self.pixels is None or self.digits is None:
            self.pixels, self.digits = (
                torch.empty((self.capacity, *part.shape[1:]), dtype=part.dtype, device=self.device) for part in pictures
            )
        place = torch.arange(self.added, self.added + len(pictures[0]), device=self.device) % self.capacity
        self.pixels[place], self.digits[place] = (part.to(self.device) for part in pictures)
        self.added += len(pictures[0])

    def draw(self, count: int) -> Pictures:
        assert self.pixels is not None and self.digits is not None
        chosen = torch.randint(0, min(self.added, self.capacity), (count,), device=self.device)
        return self.pixels[chosen], self.digits[chosen]


def learning_rate(peak: float, step: int, done: float) -> float:
    """Return the rate: linear at the beginning, then a cosine over the share of the run that is `done`."""
    return peak * min(1, (step + 1) / WARMUP) * (SLOWEST + (1 - SLOWEST) * (1 + math.cos(math.pi * min(done, 1))) / 2)


class Trainer:
    """The tower, its averaged weights, and the pictures that it is trained and tested on."""

    def __init__(self, vision: Vision, targets: Targets, options: argparse.Namespace, device: torch.device) -> None:
        self.vision, self.targets, self.options = vision, targets, options
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.parameters = trained(vision)
        self.average = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        self.best = (-1.0, -1.0, -1.0)
        self.kept: dict[str, Tensor] = {}
        matrices, others = (
            [one for one in self.parameters.values() if (one.ndim > 1) == wanted] for wanted in (True, False)
        )
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=device.type == "cuda")
        fonts = (*fonts_in(options.fonts), *PILLOW) if options.fonts else PILLOW
        self.stream = Stream(options.drawn, options.seed, options.side, fonts)
        self.pictures = loader(self.stream, options.workers)
        self.pool = Pool(options.pool, device)
        self.held_out = [
            batch(range(at, min(at + 64, options.held_out)), HELD_OUT_SEED, options.side, options.hardest, True, fonts)
            for at in range(0, options.held_out, 64)
        ]

    def run(self) -> None:
        """Train. The tower ends with the averaged weights that read most held-out grids right, in bfloat16."""
        options, began = self.options, time.monotonic()
        evaluated, step, loss = began, 0, torch.zeros(())
        options.out.mkdir(parents=True, exist_ok=True)
        with (options.out / "metrics.jsonl").open("w", encoding="utf-8") as log:
            while True:
                done = (time.monotonic() - began) / (60 * options.minutes)
                is_last = done >= 1 or step == options.steps
                if is_last or (step and time.monotonic() - evaluated > options.every):
                    grids, clues, cells = self.evaluate()
                    line = {
                        "step": step, "seconds": round(time.monotonic() - began, 1), "pictures": self.pool.added,
                        "difficulty": round(self.stream.difficulty.value, 3), "loss": round(loss.item(), 5),
                        "cells": round(cells, 5), "clues": round(clues, 5), "grids": round(grids, 5),
                    }  # fmt: skip
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    print(json.dumps(line), flush=True)
                    evaluated = time.monotonic()
                if is_last:
                    break
                self.stream.difficulty.value = options.hardest * (1.0 if options.start else min(1.0, done / GROWTH))
                loss = self.step(step, done)
                step += 1
        exchange(self.parameters, {name: value.bfloat16().float() for name, value in self.kept.items()})

    def step(self, step: int, done: float) -> Tensor:
        options, pool = self.options, self.pool
        while pool.added < min(options.first, options.pool) or pool.added * options.shown < step * options.batch:
            pool.add(next(self.pictures))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(options.lr, step, done)
        pixels, digits = pool.draw(options.batch)
        loss = self.targets.loss(see(self.vision, pixels, self.dtype), digits)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        current = [parameter.detach() for parameter in self.parameters.values()]
        torch._foreach_lerp_(list(self.average.values()), current, 1 - min(EMA, step / (step + 10)))
        return loss.detach()

    def evaluate(self) -> tuple[float, float, float]:
        """Return `accuracy` of the averaged weights, and keep them if they are the best."""
        current = exchange(self.parameters, self.average)
        found = accuracy(self.vision, self.targets, self.held_out, self.dtype)
        if found > self.best:
            self.best, self.kept = found, exchange(self.parameters, {})
        exchange(self.parameters, current)
        return found


@torch.no_grad()
def accuracy(
    vision: Vision, targets: Targets, held_out: list[Pictures], dtype: torch.dtype
) -> tuple[float, float, float]:
    """Return the shares of grids, of clues, and of all cells that are read right. About half of the cells are empty."""
    device = targets.rest_DH.device
    read = torch.cat([
        targets.distances(see(vision, pixels.to(device), dtype)).argmin(-1).cpu() for pixels, _ in held_out
    ])  # fmt: skip
    digits = torch.cat([digits for _, digits in held_out])
    right = read == digits
    grids, clues, cells = (part.float().mean().item() for part in (right.all(-1), right[digits > 0], right))
    return grids, clues, cells


@torch.no_grad()
def exchange(parameters: dict[str, torch.nn.Parameter], others: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy other values into the parameters, and return those that they had."""
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    for name, value in others.items():
        parameters[name].copy_(value)
    return before


def read_tower(name: str, device: torch.device) -> Vision:
    """Return the tower of a model, in float32 and ready to train."""
    found = load(open_source(find_directory(name)), device, torch.float32).vision
    if found is None:
        raise InputError(f"{name} has no vision tower to start from; give {SOLVER}, or leave out --start")
    for parameter in trained(found).values():
        parameter.requires_grad_(True)
    return found


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    directory = find_directory(SOLVER)
    model = load(open_source(directory), device, torch.float32, text_only=True)
    targets = Targets(model, Tokenizer.from_directory(directory))
    if options.start:
        vision = read_tower(options.start, device)
    else:
        vision = new_tower(options.side, model.config.hidden_size, options.seed, device)
    trainer = Trainer(vision, targets, options, device)
    trainer.run()
    grids, clues, cells = accuracy(vision, targets, trainer.held_out, torch.float32)
    shares = f"{cells:.2%} of cells, {clues:.2%} of clues, {grids:.1%} of grids"
    print(f"{trainer.pool.added:,} pictures drawn; read right of held-out pictures: {shares}", flush=True)
    if options.side == 9:
        write_bundle(vision, options.out / SOLVER, directory)
        print(f"The model is in {options.out / SOLVER}", flush=True)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description="Train the tower of gesso-sudoku.")
    add = parser.add_argument
    add("--out", type=Path, required=True, help="directory for metrics.jsonl and the model")
    add("--minutes", type=float, default=8.0, help="time to train")
    add("--steps", type=int, default=10**9, help="most steps")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--batch", type=int, default=256, help="pictures per step")
    add("--drawn", type=int, default=32, help="pictures that a process draws at a time")
    add("--shown", type=float, default=12.0, help="how often a picture is shown, at most")
    add("--first", type=int, default=2048, help="pictures to draw before the first step")
    add("--pool", type=int, default=24_576, help="pictures kept on the device, of 0.56 MB each")
    add("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="processes that draw pictures")
    add("--lr", type=float, default=2e-3)
    add("--seed", type=int, default=0)
    add("--side", type=int, default=9, help="cells of a side; 3 is a small problem that a CPU learns in minutes")
    add("--hardest", type=float, default=1.0, help="difficulty of the pictures, from 0 to 1; see gesso.eval.sudoku")
    add("--held-out", type=int, default=512, help="held-out pictures")
    add("--every", type=float, default=20.0, help="seconds between evaluations")
    add("--fonts", type=Path, help="directory of fonts, besides the one that comes with Pillow; see `fonts`")
    add("--start", help="model whose tower to train further, such as gesso-sudoku; then all pictures are difficult")
    options = parser.parse_args(words)
    if options.start and options.side != 9:
        parser.error("--start needs --side 9: the towers of models read grids of 9 x 9 cells")
    return options


if __name__ == "__main__":
    main()
