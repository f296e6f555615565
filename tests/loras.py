"""Adapters with random values, written to files."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import gesso
from gesso import adapters
from gesso.adapters.files import WEIGHTS
from gesso.adapters.sites import adapter_sites

SETTINGS = adapters.LoraSettings(rank=2, targets=tuple(adapters.TARGETS))


def write(model: Path | None, directory: Path, names: Sequence[str], size: float = 0.3) -> dict[str, Path]:
    """Write adapters of a checkpoint that change its texts, each in another way. Return their directories."""
    found, base = {}, gesso.load(model, device="cpu").model
    for seed, name in enumerate(names, 1):
        adapters.add(base, SETTINGS, name, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        for site in adapter_sites(base).values():
            lora = site.get(name)
            assert lora is not None
            lora.B.data.normal_(0, size, generator=generator)
        found[name] = directory / name
        adapters.save(base, found[name], SETTINGS, name)
        adapters.remove(base, name)
    return found


def negate(directory: Path, part: str) -> None:
    """Reverse the part of an adapter whose tensors have this in their names.

    With "encoder.language_model", the encoder's part differs from the decoder's, as in an adapter that peft trained.
    """
    tensors = load_file(directory / WEIGHTS)
    for name in tensors:
        if part in name and "lora_B" in name:
            tensors[name] = -tensors[name]
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
