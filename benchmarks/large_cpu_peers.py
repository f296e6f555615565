"""Measure other software beside a large model on a CPU: in the same shape, on the same machine, in the same run.

llama.cpp writes token by token with the autoregressive twin in Q4_0. transformers has no four-bit weights on a CPU, and
a whole model in bfloat16 needs twice the memory of most machines: some of its layers are measured, and the rest is
extrapolated.
"""

import gc
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gesso.bench import llama_cpp, peer
from gesso.bench.twin import write_twin
from gesso.model.config import Config

CUTS = 3, 6  # layers of transformers that are measured
TOKENS = 32
PROMPT = 64


def measure(name: str, config: Config, ours: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a peer beside `ours`."""
    gc.collect()  # the measured model: both do not fit in memory
    return _llama_cpp(config, ours) if name == "llama.cpp" else _transformers(config, ours)


def _llama_cpp(config: Config, ours: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="gesso-twin-") as directory:
        file = Path(directory) / "twin.gguf"
        write_twin(file, config)
        found = llama_cpp.measure(file, torch.get_num_threads(), TOKENS)
    rate = found["tokens_per_second"]
    return {
        "peer": f"{found['peer']}, Q4_0",
        "peer_figure": f"{rate:.2f} tokens/s token by token",
        "peer_tokens_per_second": rate,
        "times_the_peer": ours["autoregressive_tokens_per_second"] / rate,
    }


def _transformers(config: Config, ours: dict[str, Any]) -> dict[str, Any]:
    times = [
        peer.measure(_cut(config, layers), None, torch.device("cpu"), torch.bfloat16, PROMPT) * 1e3 for layers in CUTS
    ]
    each = (times[1] - times[0]) / (CUTS[1] - CUTS[0])
    whole = times[1] + each * (len(config.layers) - CUTS[1])
    step = next(row["ms_a_step"] for row in ours["canvases"] if row["canvas"] == config.canvas_length)
    return {
        "peer": "transformers, bfloat16",
        "peer_figure": f"{whole:,.0f} ms per step of {config.canvas_length}, extrapolated from {CUTS[0]} and {CUTS[1]} "
        f"of {len(config.layers)} layers ({times[0]:,.0f} and {times[1]:,.0f} ms)",
        "peer_ms_a_step": whole,
        "times_the_peer": whole / step,
    }


def _cut(config: Config, layers: int) -> Config:
    """Return the configuration with its last layers only, which end with a global one."""
    text = dict(config.raw["text_config"])
    kinds = text["layer_types"][-layers:]
    raw = {**config.raw, "text_config": {**text, "num_hidden_layers": layers, "layer_types": kinds}}
    return replace(config, layers=config.layers[-layers:], raw=raw)
