"""Measure a denoising step of `transformers` with the same shape, on the same machine, in the same run.

The step is that of its own generation loop: the decoder with the previous logits for self-conditioning, then sampling,
entropies and acceptance. The experts run in the implementation it recommends for the device.
"""

import statistics
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from gesso.bench.device import wait
from gesso.errors import InputError
from gesso.model.config import Config


def measure(
    shape: Config | None, directory: Path | None, device: torch.device, dtype: torch.dtype, prompt: int
) -> float:
    """Return the seconds per step, for random weights in a shape or for the checkpoint in a directory."""
    config = shape or Config.from_directory(directory or Path())
    try:
        transformers: Any = import_module("transformers")
    except ImportError:
        raise InputError("this benchmark needs transformers: pip install 'transformers>=5.12'") from None
    model = _load(transformers, config, None if shape else directory, device, dtype)
    generator = torch.Generator(device).manual_seed(0)
    ids = torch.randint(3, config.vocab_size, (1, prompt), device=device, generator=generator)
    canvas = torch.randint(3, config.vocab_size, (1, config.canvas_length), device=device, generator=generator)
    times = []
    with torch.no_grad():
        cache = transformers.DynamicCache(config=model.config.text_config)
        model.model.encoder(input_ids=ids, past_key_values=cache)
        logits = model(decoder_input_ids=canvas, past_key_values=cache).logits
        for _ in range(7):
            wait(device)
            began = time.perf_counter()
            logits = model(decoder_input_ids=canvas, past_key_values=cache, self_conditioning_logits=logits).logits
            logits = logits.float() / 0.7
            distribution = torch.distributions.Categorical(logits=logits)
            candidate, entropy = distribution.sample(), distribution.entropy()
            ascending, order = entropy.sort(-1)
            accepted = torch.zeros_like(entropy, dtype=torch.bool).scatter(-1, order, ascending.cumsum(-1) <= 0.1)
            noise = torch.randint_like(canvas, config.vocab_size)
            canvas = torch.where(accepted, candidate, noise)
            logits.argmax(-1).tolist()
            times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


def _load(transformers: Any, config: Config, directory: Path | None, device: torch.device, dtype: torch.dtype) -> Any:
    kind = transformers.DiffusionGemmaForBlockDiffusion
    if directory is not None:
        model = kind.from_pretrained(directory, dtype=dtype).to(device)
    else:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with device:
                model = kind(transformers.DiffusionGemmaConfig.from_dict(_without_tower(config.raw)))
        finally:
            torch.set_default_dtype(before)
        model.tie_weights()
    if device.type == "cuda":
        model.set_experts_implementation("grouped_mm")
    return model.eval()


def _without_tower(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with one layer of the vision tower, which a step does not use, to save its weights."""
    tower = raw.get("vision_config")
    return {**raw, "vision_config": {**tower, "num_hidden_layers": 1}} if tower else dict(raw)
