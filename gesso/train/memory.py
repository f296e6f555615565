"""The GPU memory of training: forecast it, limit it, and report what to change when it runs out."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from gesso.adapters import LoraSettings, factor_values
from gesso.checkpoint.parameters import empty_model
from gesso.checkpoint.source import CheckpointSource
from gesso.errors import GessoError
from gesso.memory.budget import budget_of
from gesso.memory.device import DeviceMemory, keep_within, memory_of
from gesso.memory.units import gigabytes
from gesso.memory.weights import NOT_PACKED

logger = logging.getLogger("gesso")

ADVICE = (
    "Quantize the frozen weights (model.quantize, or quantize=int4), recompute activations "
    "(run.checkpoint_activations = true), lower data.max_length or run.batch_size, or train an adapter of lower rank "
    "or on fewer weights (lora.rank, lora.targets)."
)

VALUE_BYTES = 16  # of a trained value in float32, its gradient and AdamW's two moments
STEP_BYTES = 1_500_000_000  # one layer's activations, the inputs of all layers and the CUDA context, at the 26B shape


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The expected bytes on a GPU that trains an adapter and recomputes activations."""

    weights: int
    adapter: int  # with gradients and the optimizer's moments
    step: int = STEP_BYTES

    @property
    def total(self) -> int:
        return self.weights + self.adapter + self.step

    def check(self, usable: int) -> None:
        """Reject a run whose weights and adapter alone exceed the usable bytes, before anything is loaded."""
        if self.weights + self.adapter > usable:
            raise GessoError(
                f"training does not fit: weights ({gigabytes(self.weights)}) and the adapter with gradients and "
                f"moments ({gigabytes(self.adapter)}) exceed the {gigabytes(usable)} that may be used. {ADVICE}"
            )


def forecast(source: CheckpointSource, dtype: torch.dtype, quantize: str | None, lora: LoraSettings) -> Forecast:
    gpu = DeviceMemory(total=0, free=0, device="cuda")  # only its kind matters: sizes are independent of the memory
    budget = budget_of(source, gpu, 1.0, dtype.itemsize, None)
    return Forecast(
        weights=budget.weights(quantize or NOT_PACKED),
        adapter=VALUE_BYTES * factor_values(empty_model(source.config), lora),
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
