"""The optimizers of a run, and their learning rate."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gesso.train.muon import Muon
from gesso.train.recipe import OptimizerSettings


def make_optimizers(
    parameters: Mapping[str, Tensor], settings: OptimizerSettings, fused: bool
) -> list[torch.optim.Optimizer]:
    """Return AdamW for all parameters, or with "muon" for all but the matrices, and Muon for those.

    Embeddings stay with AdamW: they are tables, not linear maps, so Muon has nothing to orthogonalize.
    """
    use_muon = settings.kind == "muon"
    for_muon: list[Tensor] = []
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in parameters.items():
        table = "embed_tokens" in name or name == "lm_head"
        kind = others if parameter.ndim < 2 else for_muon if use_muon and not table else matrices
        kind.append(parameter)
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=settings.lr, betas=settings.betas, eps=settings.eps,
        fused=fused or None,
    )  # fmt: skip
    if not use_muon:
        return [adamw]
    return [adamw, Muon(for_muon, settings.lr, settings.momentum, settings.weight_decay)]


def learning_rate(peak: float, least: float, warmup: int, step: int, steps: int) -> float:
    """Return the rate of a step: linear warm-up, then half a cosine down."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return least + (peak - least) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
