"""Measure training steps on random weights: tokens per second, model FLOPs utilization (MFU), peak memory."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from gesso import adapters
from gesso.adapters import LoraSettings
from gesso.bench.device import wait
from gesso.checkpoint import random_weights
from gesso.errors import InputError
from gesso.model.config import Config
from gesso.model.init import begin
from gesso.model.transformer import DiffusionGemma
from gesso.train.batch import collate, corrupt
from gesso.train.data import Example
from gesso.train.objective import Objective
from gesso.train.recipe import ObjectiveSettings

PEAK_FLOPS = 989e12  # dense bfloat16 of an H100 or H200, by the datasheet


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A training setup: all weights from scratch, or an adapter on frozen weights."""

    lora: bool
    dtype: torch.dtype
    batch: int
    prompt: int
    response: int
    checkpoint_activations: bool


SHAPES = {
    "mini": Shape(
        lora=False, dtype=torch.float32, batch=64, prompt=256, response=256, checkpoint_activations=False,
    ),
    "26b-a4b": Shape(
        lora=True, dtype=torch.bfloat16, batch=1, prompt=512, response=256, checkpoint_activations=True,
    ),
}  # fmt: skip


def measure(name: str, steps: int, device: torch.device, compiled: bool = False) -> dict[str, Any]:
    """Time optimizer steps on one synthetic batch of full length, after two warm-up steps.

    As in training, every second example gets the first pass of self-conditioning. With one example per batch, that is
    every second step, so the number of timed steps is rounded up to an even one.
    """
    if name not in SHAPES:
        raise InputError(f"unknown shape {name!r}; expected {', '.join(SHAPES)}")
    shape = SHAPES[name]
    objective, settings = _objective(name, shape, device)
    model, config = objective.model, objective.model.config
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=device.type == "cuda")
    rows = [_example(config, shape, i) for i in range(shape.batch)]
    batch = collate(
        rows, canvas_length=config.canvas_length, per_example=settings.per_example, eos=1, pad=0, learn_text="response",
        seed=0, first=0,
    )  # fmt: skip
    batch = batch.to(device)
    noise, other = (
        corrupt(batch.clean_BKC, config.vocab_size, conditioning=settings.self_conditioning, seed=0, first=first)
        for first in (0, shape.batch)
    )
    noises = (noise, replace(noise, conditioned_R=other.conditioned_R))  # the losses of all steps are comparable
    if compiled:
        objective.compile_parts()
    times: tuple[list[float], list[float]] = ([], [])  # of the steps with either noise
    losses = []
    for step in range(2 + steps + steps % 2):
        wait(device)
        began = time.perf_counter()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = objective(batch, noises[step % 2]).total_B.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        wait(device)
        if step >= 2:
            times[step % 2].append(time.perf_counter() - began)
    seconds = sum(sorted(each)[len(each) // 2] for each in times) / 2
    conditioned = sum(len(each.conditioned_R) for each in noises) / 2 / shape.batch
    tokens = batch.text_BS.numel() + batch.clean_BKC.numel()
    active, head = _active(model), config.vocab_size * config.hidden_size
    # Per weight and token, forward takes 2 operations and backward 4, or 2 for frozen weights, which need no gradient.
    # The head is applied to the targets only. The first pass is forward only; its prediction then averages embeddings,
    # at the cost of the head again. Recomputed activations and the products of queries and keys are not counted.
    canvas, targets = batch.clean_BKC.numel(), batch.clean_BKC.numel() + int(batch.target_BS.sum())
    first_pass = conditioned * ((active - head) * tokens + 2 * head * canvas)
    flops = (4 if shape.lora else 6) * ((active - head) * tokens + head * targets) + 2 * first_pass
    return {
        "shape": name,
        "compiled": compiled,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained": sum(p.numel() for p in parameters),
        "active": active,
        "tokens_a_step": tokens,
        "conditioned": conditioned,  # share of the examples with a first pass
        "seconds_a_step": seconds,
        "tokens_per_second": tokens / seconds,
        "mfu": flops / seconds / PEAK_FLOPS if device.type == "cuda" else None,
        "peak_memory_GB": torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None,
        "loss_first": losses[0],
        "loss_last": losses[-1],
    }


def _objective(name: str, shape: Shape, device: torch.device) -> tuple[Objective, ObjectiveSettings]:
    config = random_weights.config_of(name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(shape.dtype)
    try:
        with device:
            model = DiffusionGemma(config)
    finally:
        torch.set_default_dtype(before)
    begin(model, seed=0)
    if shape.lora:
        adapters.add(model, LoraSettings(rank=8, targets=tuple(adapters.TARGETS)))
    else:
        for path, parameter in model.named_parameters():
            parameter.requires_grad_("layer_scalars" not in path)
    settings = ObjectiveSettings(balance_weight=0.0 if shape.lora else 0.01)
    return Objective(model, settings, shape.checkpoint_activations), settings


def _example(config: Config, shape: Shape, i: int) -> Example:
    generator = torch.Generator().manual_seed(i)
    length = shape.prompt + shape.response
    tokens = torch.randint(3, config.vocab_size, (length,), generator=generator).tolist()
    return Example(tuple(tokens), ((shape.prompt, length),), "synthetic", i)


def _active(model: DiffusionGemma) -> int:
    """Return the number of weights per token: all except the experts that are not selected."""
    config = model.config
    experts = sum(p.numel() for n, p in model.named_parameters() if n.endswith(("gate_up_proj", "experts.down_proj")))
    rest = sum(p.numel() for p in model.parameters()) - experts
    return rest + experts * config.top_k_experts // config.num_experts
