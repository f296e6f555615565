"""Measure a large model on a CPU, where a canvas of 256 tokens may take half a minute per step.

Token by token, a pass reads the weights that one token uses and is memory-bound. The figures are therefore the bytes
per token and the share of the read bandwidth that was measured in the same run.
"""

import time
from collections.abc import Mapping
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gesso.bench.requests import requests
from gesso.engine.events import Draft
from gesso.engine.writing import STEPS
from gesso.memory.device import resident_bytes
from gesso.memory.weights import loaded_bytes, loaded_sizes, token_bytes

TOKENS, PREFILL = 32, 512
WARM = 4  # tokens that are not timed
PASSES = 2  # timed steps of a canvas


def measure(
    g: Any, seconds_to_load: float, bandwidth: float, *, prompt: int, new: int, rules: Mapping[str, Any]
) -> dict[str, Any]:
    """Measure a loaded model on a machine that reads `bandwidth` bytes per second.

    Prompts have `prompt` tokens. At most TOKENS of the `new` ones are written, one by one.
    """
    size = token_bytes(loaded_sizes(g.model), g.config)
    rate = _tokens_per_second(g, prompt, min(new, TOKENS))
    read = _prefill_seconds(g, PREFILL)
    lengths = [length for length in STEPS if length <= g.config.canvas_length]
    figures = {
        "device": f"cpu, {torch.get_num_threads()} threads",
        "dtype": str(g.model.dtype).removeprefix("torch."),
        "quantized": g.config.quantization,
        "seconds_to_load": seconds_to_load,
        "weights_GB": loaded_bytes(g.model) / 1e9,
        "read_GBps": bandwidth / 1e9,
        "GB_per_token": size / 1e9,
        "autoregressive_tokens_per_second": rate,
        "share_of_bandwidth": rate * size / bandwidth,
        "prefill": [{"tokens": PREFILL, "tokens_per_second": PREFILL / read}],
        "canvases": [
            {"canvas": length, "ms_per_step": 1e3 * _step_seconds(g, prompt, length, rules)} for length in lengths
        ],
    }
    resident, peak = resident_bytes()
    return figures | {"resident_GB": resident / 1e9, "peak_resident_GB": peak / 1e9}


def render(figures: dict[str, Any], console: Console) -> None:
    rate = figures["autoregressive_tokens_per_second"]
    console.print(
        f"{figures['device']}, {figures['quantized'] or figures['dtype']}: {figures['weights_GB']:.2f} GB of weights, "
        f"loaded in {figures['seconds_to_load']:.1f} s; {figures['resident_GB']:.2f} GB resident, at most "
        f"{figures['peak_resident_GB']:.2f} GB"
    )
    console.print(
        f"token by token: {rate:.2f} tokens/s; {figures['GB_per_token']:.2f} GB read per token, "
        f"{figures['share_of_bandwidth']:.0%} of the {figures['read_GBps']:.1f} GB/s of this memory"
    )
    for row in figures["prefill"]:
        console.print(f"prompt of {row['tokens']:,}: {row['tokens_per_second']:,.1f} tokens/s")
    table = Table("canvas", "ms per step")
    for row in figures["canvases"]:
        table.add_row(str(row["canvas"]), f"{row['ms_per_step']:,.0f}")
    console.print(table)


def _tokens_per_second(g: Any, prompt: int, tokens: int) -> float:
    times = _passes(g, prompt, tokens + WARM, write="tokens")[1 + WARM :]
    return len(times) / sum(times)


def _prefill_seconds(g: Any, tokens: int) -> float:
    """Return the time to read a prompt, with the first token after it."""
    return _passes(g, tokens, 1, write="tokens")[0]


def _step_seconds(g: Any, prompt: int, length: int, rules: Mapping[str, Any]) -> float:
    options = {"steps": 1 + PASSES, "canvas_length": length, **rules}
    return min(_passes(g, prompt, length, **options)[1:])  # the first reads the prompt and has no self-conditioning


def _passes(g: Any, prompt: int, new: int, **options: Any) -> list[float]:
    """Return the seconds until each draft of a request, the first one with its prompt."""
    (request,) = requests(g, 1, prompt, new, **options)
    g.engine.submit(request)
    times, before = [], time.perf_counter()
    while g.engine.busy:
        if any(isinstance(event, Draft) for event in g.engine.step()):
            now = time.perf_counter()
            times.append(now - before)
            before = now
    return times
