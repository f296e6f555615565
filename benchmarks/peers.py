"""Measure Gesso and other software in the same shape, on the same machine, in the same run.

    python -m benchmarks.peers transformers                                          # a denoising step
    python -m benchmarks.peers llama.cpp -m random:26b-a4b --quantize int4 --device cpu   # token by token

llama.cpp writes token by token with the autoregressive twin in Q4_0, so it is for large models on a CPU. transformers
has no four-bit weights on a CPU, and a whole model in bfloat16 needs twice the memory of most machines: some layers of
a large model are measured there, and the rest is extrapolated.
"""

import gc
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import llama_cpp, transformers_step
from benchmarks.arguments import add_model_options, model_options, parser_of, run
from benchmarks.twin import write_twin
from gesso import loading
from gesso.bench import model as generation
from gesso.checkpoint import random_weights
from gesso.checkpoint.find import find_directory
from gesso.cli.terminal import print_json, print_styled
from gesso.errors import InputError
from gesso.model.config import Config

CUTS = 3, 6  # layers of transformers that are measured
TOKENS = 32
PROMPT = 64


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("peers", __doc__)
    parser.add_argument("peer", choices=("transformers", "llama.cpp"))
    add_model_options(parser)
    parser.add_argument("--batches", metavar="N,N", help="batch sizes of ours")
    parser.add_argument("--prompt", type=int, help="tokens per prompt")
    parser.add_argument("--new", type=int, help="tokens to generate per request")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    asked = parser.parse_args(arguments)
    options = model_options(asked)
    if asked.peer == "llama.cpp":
        llama_cpp.check_installed()
    ours = generation.bench(asked.model, batches=asked.batches, prompt=asked.prompt, new=asked.new, **options)
    gc.collect()  # the measured model: both do not fit in memory
    found = ours | measure(asked.peer, asked.model, ours, options["device"], options["dtype"])
    print_json(found) if asked.json else print_styled(lambda console: render(found, console))


def measure(peer: str, name: str | None, ours: dict[str, Any], device: str | None, dtype: str | None) -> dict[str, Any]:
    """Return the figures of a peer for the model of this name, which took `ours`."""
    config, directory = None, None
    if name is not None and random_weights.is_random(name):
        config = random_weights.config_of(name.removeprefix(random_weights.PREFIX))
    else:
        directory = find_directory(name)
    if "canvases" in ours:  # a large model on a CPU
        shape = config or Config.from_directory(directory or Path())
        return _llama_cpp(shape, ours) if peer == "llama.cpp" else _some_layers(shape, ours)
    if peer == "llama.cpp":
        raise InputError("llama.cpp is for large models on a CPU, which also write token by token")
    where = loading.find_device(device)
    seconds = transformers_step.measure(config, directory, where, loading.find_dtype(dtype, where), ours["prompt"])
    step = ours["batches"][0]["ms_per_step"]
    return {
        "peer": "transformers",
        "peer_figure": f"{seconds * 1e3:.2f} ms per step",
        "peer_ms_per_step": seconds * 1e3,
        "times_the_peer": seconds * 1e3 / step,
    }


def render(found: dict[str, Any], console: Console) -> None:
    generation.render(found, console)
    console.print(f"{found['peer']}: {found['peer_figure']}; gesso is {found['times_the_peer']:.2f} times as fast")


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


def _some_layers(config: Config, ours: dict[str, Any]) -> dict[str, Any]:
    times = [
        transformers_step.measure(_cut(config, layers), None, torch.device("cpu"), torch.bfloat16, PROMPT) * 1e3
        for layers in CUTS
    ]
    each = (times[1] - times[0]) / (CUTS[1] - CUTS[0])
    whole = times[1] + each * (len(config.layers) - CUTS[1])
    step = next(row["ms_per_step"] for row in ours["canvases"] if row["canvas"] == config.canvas_length)
    return {
        "peer": "transformers, bfloat16",
        "peer_figure": f"{whole:,.0f} ms per step of {config.canvas_length}, extrapolated from {CUTS[0]} and {CUTS[1]} "
        f"of {len(config.layers)} layers ({times[0]:,.0f} and {times[1]:,.0f} ms)",
        "peer_ms_per_step": whole,
        "times_the_peer": whole / step,
    }


def _cut(config: Config, layers: int) -> Config:
    """Return the configuration with its last layers only, which end with a global one."""
    text = dict(config.raw["text_config"])
    kinds = text["layer_types"][-layers:]
    raw = {**config.raw, "text_config": {**text, "num_hidden_layers": layers, "layer_types": kinds}}
    return replace(config, layers=config.layers[-layers:], raw=raw)


if __name__ == "__main__":
    run(main)
