"""Measure training steps on random weights: tokens per second, model FLOPs utilization (MFU), memory."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gesso import adapters
from gesso.adapters import LoraSettings
from gesso.bench.device import wait
from gesso.checkpoint import random_weights
from gesso.checkpoint.quantize.packed import Packed
from gesso.errors import InputError
from gesso.memory.device import keep_within, process_memory
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from gesso.train.batch import collate, corrupt
from gesso.train.data import Example
from gesso.train.objective import Objective
from gesso.train.prepare import prepare
from gesso.train.recipe import ObjectiveSettings

PEAK_FLOPS = 989e12  # dense bfloat16 of an H100 or H200, by the datasheet
WARM_UP = 2  # steps


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A training setup: all weights from scratch, or an adapter on frozen weights."""

    lora: LoraSettings | None
    dtype: torch.dtype
    examples: int  # per step
    prompt: int  # tokens of an example before its response
    response: int
    quantize: str | None = None
    checkpoint_activations: bool = False


SHAPES = {
    "mini": Shape(lora=None, dtype=torch.float32, examples=64, prompt=256, response=256),
    # With the canvas of each response, 4,096 tokens per step.
    "26b-a4b": Shape(
        lora=LoraSettings(rank=16, alpha=32, targets=("attention", "mlp", "experts")),
        dtype=torch.bfloat16, examples=2, prompt=1536, response=256, checkpoint_activations=True,
    ),
}  # fmt: skip


def shape_of(
    name: str,
    *,
    quantize: str | None = None,
    rank: int | None = None,
    targets: Sequence[str] | None = None,
    examples: int | None = None,
    prompt: int | None = None,
    response: int | None = None,
) -> Shape:
    """Return the setup of this name with some of its parts changed."""
    if name not in SHAPES:
        raise InputError(f"unknown shape {name!r}; expected {', '.join(SHAPES)}")
    shape = SHAPES[name]
    if shape.lora is None:
        if quantize or rank or targets:
            raise InputError(f"{name} trains all weights: --quantize, --rank and --targets need an adapter")
    else:
        lora = shape.lora if rank is None else replace(shape.lora, rank=rank)
        shape = replace(shape, lora=lora if targets is None else replace(lora, targets=tuple(targets)))
    return replace(
        shape,
        quantize=quantize,
        examples=examples or shape.examples,
        prompt=prompt or shape.prompt,
        response=response or shape.response,
    )


def measure(
    name: str, shape: Shape, steps: int, device: torch.device, memory: int, *, compiled: bool = False
) -> dict[str, Any]:
    """Time optimizer steps on synthetic examples of full length, in a process of at most `memory` bytes of a GPU.

    Half of the examples are conditioned on a first pass, in turn, so the mean is over an even number of steps. Every
    other step has the same noise, so that their losses can be compared.
    """
    steps += steps % 2
    keep_within(device, memory)
    objective, settings = _objective(name, shape, device)
    model, config = objective.model, objective.model.config
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=device.type == "cuda")
    rows = [_example(config, shape, i) for i in range(shape.examples)]
    batch = collate(
        rows, canvas_length=config.canvas_length, per_example=settings.per_example, eos=1, pad=0, learn_text="response",
        seed=0, first=0,
    )  # fmt: skip
    batch = batch.to(device)
    if compiled:
        objective.compile_parts()
    losses, mixed = [], shape.dtype == torch.float32 and device.type == "cuda"
    began = 0.0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            wait(device)
            keep_within(device, memory)  # now that all kernels are loaded
            began = time.perf_counter()
        noise = corrupt(
            batch, config.vocab_size, conditioning=settings.self_conditioning, seed=0,
            first=step % 2 * shape.examples,
        )  # fmt: skip
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
            loss = objective(batch, noise).total_B.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    wait(device)
    seconds = (time.perf_counter() - began) / steps
    tokens = batch.layout.tokens
    active, head, is_gpu = _active(model), config.vocab_size * config.hidden_size, device.type == "cuda"
    # Per weight and token, forward takes 2 operations and backward 4, or 2 for frozen weights, which need no gradient.
    # The head is applied to the targets only. The first pass is forward only; its prediction then averages embeddings,
    # at the cost of the head again. Recomputed activations and the products of queries and keys are not counted.
    canvas = batch.clean_KC.numel()
    first_pass = settings.self_conditioning * ((active - head) * tokens + 2 * head * canvas)
    per_step = (active - head) * tokens + head * (canvas + len(batch.target_R))
    flops = (4 if shape.lora else 6) * per_step + 2 * first_pass
    return {
        "shape": name,
        "quantize": shape.quantize,
        "rank": shape.lora.rank if shape.lora else None,
        "targets": list(shape.lora.targets) if shape.lora else None,
        "compiled": compiled,
        "trained": sum(p.numel() for p in parameters),
        "active": active,
        "tokens_a_step": tokens,
        "seconds_a_step": seconds,
        "tokens_per_second": tokens / seconds,
        "mfu": flops / seconds / PEAK_FLOPS if is_gpu else None,
        "peak_memory_GB": torch.cuda.max_memory_allocated() / 1e9 if is_gpu else None,
        "memory_of_card_GB": process_memory(device) / 1e9 if is_gpu else None,
        "loss_first": losses[1].item(),
        "loss_last": losses[-1].item(),
    }


def _objective(name: str, shape: Shape, device: torch.device) -> tuple[Objective, ObjectiveSettings]:
    model = random_weights.make(random_weights.config_of(name), device, shape.dtype, shape.quantize)
    if shape.lora:
        adapters.add(model, shape.lora)
    else:
        for path, parameter in model.named_parameters():
            parameter.requires_grad_("layer_scalars" not in path)
    prepare(model)
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
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    sizes |= {name: torch.Size(p.shape).numel() for name, p in model.named_modules() if isinstance(p, Packed)}
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    return sum(sizes.values()) - experts + experts * config.top_k_experts // config.num_experts
