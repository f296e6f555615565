"""What a checkpoint of the 26B costs: time to load, memory of host and GPU, and time per step."""

import json
import resource
import time
import urllib.request
from typing import Any

import torch

import gesso
from gesso.api import Gesso
from gesso.bench import model as bench
from gesso.bench.device import wait
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.generation import GenerationDefaults
from gesso.checkpoint.parameters import assign, checkpoint_name, empty_model
from gesso.checkpoint.quantize.formats import FORMATS, clear
from gesso.checkpoint.source import locate
from gesso.model.init import begin_one
from tools.load.processes import running_server

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float32
PROMPT, NEW = 512, 512  # tokens


def loaded(path: str, quantize: str | None) -> dict[str, Any]:
    """Load a checkpoint, and measure that and its steps."""
    began = time.perf_counter()
    g = gesso.load(path, device=str(DEVICE), dtype=str(DTYPE).removeprefix("torch."), quantize=quantize)
    wait(DEVICE)
    seconds = time.perf_counter() - began
    files = locate(path).files
    return {
        "model": path,
        "quantize": quantize,
        "file_GB": sum(file.stat().st_size for file in files) / 1e9,
        "seconds_to_load": seconds,
        "peak_host_GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        **_steps(g),
    }


def native(path: str) -> dict[str, Any]:
    """Measure random weights, packed by gesso itself, in the formats that a checkpoint's matrices become on a GPU."""
    source = locate(path)
    model = empty_model(source.config)
    generator = torch.Generator(DEVICE).manual_seed(0)
    for name, parameter in list(model.named_parameters()):
        weight = torch.empty(parameter.shape, device=DEVICE, dtype=DTYPE)
        begin_one(name, weight, len(source.config.layers), generator)
        format = FORMATS.get(source.recipes[checkpoint_name(name)].native)
        if format is None:
            assign(model, name, weight)
            continue
        packed = format.quantize(name, weight)
        packed.dtype = DTYPE
        assign(model, name, packed)
        clear(DEVICE, parameter.shape)
    defaults = GenerationDefaults.from_directory(source.directory, source.config)
    tokenizer = Tokenizer.from_directory(source.directory)
    g = Gesso(model.eval(), tokenizer, defaults, source.directory, max_batch=1, max_length=None)
    return {"model": f"own packing of {path}", **_steps(g)}


def _steps(g: Gesso) -> dict[str, Any]:
    row = bench.measure_batch(g, 1, PROMPT, NEW, bench.RULES)
    found: dict[str, Any] = {
        "weights_GB": sum(t.nbytes for t in bench._tensors(g.model)) / 1e9,
        "ms_per_step": row["ms_per_step"],
        "tokens_per_second": row["tokens_per_second"],
    }
    if DEVICE.type == "cuda":
        found["peak_gpu_GB"] = torch.cuda.max_memory_allocated() / 1e9
    return found


def first_token(path: str) -> dict[str, Any]:
    """Start a server on a checkpoint, and return the seconds from there to the first token of an answer.

    Twice: the first start may compile kernels, the second finds them on disk.
    """
    return {"model": path, "seconds": [_first_token(path) for _ in range(2)]}


def _first_token(path: str) -> float:
    began = time.perf_counter()
    with running_server("--model", path, "--max-batch", "1", "--max-length", "8192") as server:
        body = {"prompt": "Once upon a time", "max_tokens": 64, "stream": True, "seed": 1}
        request = urllib.request.Request(
            f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    return time.perf_counter() - began
    raise AssertionError("the server sent no token")
