"""Load a model: choose the device, dtype and precision, read the checkpoint, and attach adapters."""

import logging
import math
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from gesso import adapters
from gesso.api import Gesso
from gesso.backends.cpu import is_installed
from gesso.backends.cpu.formats import for_cpu
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint import aliases
from gesso.checkpoint.find import find_directory
from gesso.checkpoint.generation import GenerationDefaults
from gesso.checkpoint.identity import identity
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.parameters import parameters
from gesso.checkpoint.source import CheckpointSource, locate
from gesso.cores import threads_for
from gesso.engine.engine import Engine
from gesso.engine.prefix_files import PrefixFiles
from gesso.engine.writing import choose_writing
from gesso.errors import InputError
from gesso.memory.budget import Placement, choose_placement, streaming_cost
from gesso.memory.device import DeviceMemory, allocated_bytes, keep_within, memory_of, read_memory
from gesso.memory.weights import unpacks
from gesso.settings import SETTINGS, WriteName

logger = logging.getLogger("gesso")

LARGE = 2 * 10**9  # parameters
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(
    name: str | Path | None,
    *,
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
    quantize: str | None,
    adapter: str | Path | Mapping[str, str | Path] | None,
    max_batch: int,
    max_length: int | None,
    memory: float | str,
    write: WriteName | None = None,
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    text_only: bool = False,
    placement: Placement | None = None,
) -> Gesso:
    """Load a model, as `gesso.load` describes. The server gives the placement that it has chosen."""
    if write is not None:
        SETTINGS["write"].check(write)
    where = find_device(device)
    value_dtype = find_dtype(dtype, where)
    if cache_dir is not None and where.type != "cpu":
        raise InputError("cache_dir is for models on a CPU: a GPU reads a prompt as fast as a file; leave it out")
    if where.type == "cpu":
        torch.set_num_threads(threads_for(threads, torch.get_num_threads()))
    if where.index is not None and where.type == "cuda":
        torch.cuda.set_device(where)  # kernels, streams and graphs use the current device
    if aliases.is_automatic(name):
        choice = choose_checkpoint(where, memory, quantize)
        name, quantize = choice.name, choice.quantize or quantize
    source = locate(name)
    device_memory = memory_for(where, value_dtype)
    placed = placement or choose_placement(
        source,
        device_memory,
        memory,
        value_dtype.itemsize,
        quantize,
        max_batch=max_batch,
        max_length=max_length,
        text_only=text_only,
    )
    if isinstance(read_memory(memory), int):
        keep_within(where, allocated_bytes(where) + device_memory.budget(memory))  # in addition to models loaded before
    if placed.layers:
        logger.warning("%s", streaming_cost(placed, len(source.config.layers)))
    packs = None if placed.quantize == "none" else placed.quantize
    on_cpu = where.type == "cpu"
    unpack = on_cpu and unpacks(source, value_dtype.itemsize, device_memory.budget(memory))
    large_on_cpu = on_cpu and is_large(source)
    if large_on_cpu and not is_installed():
        logger.warning("without numba, every product unpacks its weights, which is slow: pip install 'gesso-lm[cpu]'")
    convert = for_cpu if large_on_cpu and is_installed() and not unpack else None
    model = load_weights(
        source,
        where,
        value_dtype,
        packs,
        placed.layers,
        unpack=unpack,
        on_cpu=on_cpu,
        convert=convert,
        text_only=text_only,
    )
    defaults = GenerationDefaults.from_directory(source.directory, source.config)
    tokenizer = Tokenizer.from_directory(source.directory)
    named: Mapping[str, str | Path] = {}
    if isinstance(adapter, Mapping):
        named = adapter
    elif adapter is not None:
        named = {"default": adapter}
    for adapter_name, path in named.items():
        adapters.load(model, find_directory(path), adapter_name)
    loaded = Gesso(model, tokenizer, defaults, source.directory, max_batch=max_batch, max_length=max_length)
    if cache_dir is not None:
        loaded.engine.store_prefixes(_prefix_files(Path(cache_dir), source, name, loaded.engine))
    loaded.use_adapter(next(iter(named), None))
    backend = loaded.engine.runner.backend
    loaded.writing = choose_writing(write, defaults.diffusion, backend, loaded.config.canvas_length)
    return loaded


def is_large(source: CheckpointSource) -> bool:
    """Return whether the model is so large that products with unpacked weights would take too long on a CPU."""
    return sum(math.prod(shape) for shape in parameters(source.config).values()) >= LARGE


def _prefix_files(directory: Path, source: CheckpointSource, name: str | Path | None, engine: Engine) -> PrefixFiles:
    """Return the stored prompts of a model, under a name for everything that the bits of its keys depend on."""
    parts = (
        torch.__version__,
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        str(torch.get_num_threads()),
        type(engine.runner.backend).__name__,
        str(engine.model.dtype),
        str(engine.model.config.quantization),
        str(name) if source.path is None else identity(source),
    )
    return PrefixFiles(directory.expanduser(), "\n".join(parts))


def choose_checkpoint(device: torch.device, memory: float | str, quantize: str | None) -> aliases.CheckpointChoice:
    """Return the checkpoint that the alias diffusiongemma stands for on a device."""
    device_memory = memory_of(device)
    return aliases.choose(device_memory.device, device_memory.budget(memory), quantize)


def find_device(device: str | torch.device | None) -> torch.device:
    """Return the named device. Without a name, return the first GPU, or the CPU if there is none."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"unknown device {device!r}: {str(error).splitlines()[0]}") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' is not available: torch finds no GPU; use device='cpu' or install a CUDA build")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        last = f"cuda:{torch.cuda.device_count() - 1}"
        raise InputError(f"device {str(chosen)!r} does not exist: the last GPU that torch finds is {last!r}")
    return chosen


def memory_for(device: torch.device, dtype: torch.dtype) -> DeviceMemory:
    """Return the memory of a device. Without host memory for experts if the kernels do not support the dtype."""
    device_memory = memory_of(device)
    return replace(device_memory, host=0) if dtype == torch.float16 else device_memory


def find_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the named dtype. Without a name, return the default of the device."""
    if dtype is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    chosen = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if chosen is None or chosen not in DTYPES.values():
        raise InputError(f"unknown dtype {dtype!r}; known are {', '.join(DTYPES)}")
    return chosen
