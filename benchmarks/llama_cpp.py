"""Measure llama.cpp token by token: `python -m benchmarks.llama_cpp FILE THREADS TOKENS` prints JSON.

A process of its own, so that the memory of one engine is free when the other begins.
"""

import ctypes
import json
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gesso.errors import InputError

WARM = 4  # tokens that are not timed


def check_installed() -> None:
    if find_spec("llama_cpp") is None:
        raise InputError("llama.cpp needs llama-cpp-python: pip install llama-cpp-python (it needs a compiler)")


def measure(file: Path, threads: int, tokens: int) -> dict[str, Any]:
    """Measure a file in another process."""
    command = [sys.executable, "-m", __name__, str(file), str(threads), str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InputError(f"llama.cpp failed: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _run(file: str, threads: int, tokens: int) -> dict[str, Any]:
    api: Any = import_module("llama_cpp")
    api.llama_backend_init()
    began = time.perf_counter()
    model = api.llama_model_load_from_file(file.encode(), api.llama_model_default_params())
    if not model:
        raise InputError(f"llama.cpp cannot load {file}")
    settings = api.llama_context_default_params()
    settings.n_ctx, settings.n_threads, settings.n_threads_batch = 512, threads, threads
    context = api.llama_init_from_model(model, settings)
    loaded = time.perf_counter() - began
    times = []
    for number in range(WARM + tokens):
        token = (ctypes.c_int32 * 1)((number * 7919 + 11) % 262_144)
        began = time.perf_counter()
        if api.llama_decode(context, api.llama_batch_get_one(token, 1)) != 0:
            raise InputError("llama.cpp could not decode a token")
        api.llama_synchronize(context)
        times.append(time.perf_counter() - began)
    return {
        "peer": f"llama-cpp-python {api.__version__}",
        "seconds_to_load": loaded,
        "tokens_per_second": tokens / sum(times[WARM:]),
    }


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
