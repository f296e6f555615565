"""Random adapters for a measurement: LoRA on attention, dense MLP and experts, which requests take in turn."""

from typing import Any

import torch

from gesso import adapters
from gesso.adapters import LoraSettings
from gesso.adapters.lora import adapter_sites

TARGETS = ("attention", "mlp", "experts")


def attach_random(g: Any, count: int, rank: int) -> list[str]:
    """Attach adapters with random factors to a model, and return their names."""
    names = [f"random-{number}" for number in range(count)]
    for seed, name in enumerate(names):
        adapters.add(g.model, LoraSettings(rank=rank, targets=TARGETS), name, seed=seed)
        with torch.no_grad():
            for site in set(adapter_sites(g.model).values()):
                if (lora := site.get(name)) is not None:
                    lora.requires_grad_(False)
                    lora.B.normal_(std=0.01)
        g.engine.add_adapter(name)
    adapters.activate(g.model, None)
    return names
