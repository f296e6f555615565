"""Load a model: choose the device, dtype and precision, read the checkpoint, and attach adapters."""

from collections.abc import Mapping
from pathlib import Path

import torch

from gesso import adapters
from gesso.api import Gesso
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.find import find
from gesso.checkpoint.generation import GenerationDefaults
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.source import locate
from gesso.errors import InputError
from gesso.info.budget import choose_precision
from gesso.info.device import memory_of

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
    memory: float,
) -> Gesso:
    """Load a model, as `gesso.load` describes."""
    where = find_device(device)
    number = find_dtype(dtype, where)
    source = locate(name)
    quantize = choose_precision(
        source.config, memory_of(where), memory, number.itemsize, quantize, max_batch=max_batch, max_length=max_length
    )
    model = load_weights(source, where, number, quantize)
    defaults = GenerationDefaults.from_directory(source.directory, source.config)
    tokenizer = Tokenizer.from_directory(source.directory)
    named = adapter if isinstance(adapter, Mapping) else {} if adapter is None else {"default": adapter}
    for adapter_name, path in named.items():
        adapters.load(model, find(path), adapter_name)
    adapters.activate(model, next(iter(named), None))
    return Gesso(model, tokenizer, defaults, source.directory, max_batch=max_batch, max_length=max_length)


def find_device(device: str | torch.device | None) -> torch.device:
    """Return the named device, or else the first GPU or the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"unknown device {device!r}: {str(error).splitlines()[0]}") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' is not available: torch finds no GPU; use device='cpu' or install a CUDA build")
    return found


def find_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the named dtype, or else the default of the device."""
    if dtype is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise InputError(f"unknown dtype {dtype!r}; known are {', '.join(DTYPES)}")
    return found
