"""The GPU memory of training: limit it, and report what to change when it runs out."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gesso.errors import GessoError
from gesso.memory.device import keep_within, memory_of

logger = logging.getLogger("gesso")

ADVICE = (
    "Quantize the frozen weights (model.quantize or --quantize int4), recompute activations "
    "(run.checkpoint_activations = true), lower data.max_length or run.batch_size, or train an adapter of lower rank "
    "or on fewer weights (lora.rank, lora.targets)."
)


def limit_memory(device: torch.device, memory: float | str | None) -> int | None:
    """Limit this process to a share or a size of its GPU's memory. Return the limit in bytes, or None without one."""
    if memory is None:
        return None
    if device.type != "cuda":
        logger.warning("--memory limits the memory of a GPU; this run trains on a CPU, without a limit")
        return None
    limit = memory_of(device).budget(memory)
    keep_within(device, limit)
    return limit


@contextmanager
def explained() -> Iterator[None]:
    """Raise a GessoError with advice if the GPU runs out of memory in this block."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        needed = "; ".join(str(error).split(". ")[1:3])  # what was to be allocated, and what is free
        raise GessoError(f"training ran out of GPU memory{needed and f' ({needed})'}. {ADVICE}") from error
