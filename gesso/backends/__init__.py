"""Backends run the network for the engine. `base.py` is the interface; `for_model` picks a backend."""

from gesso.backends.base import Backend
from gesso.backends.malloc import keep_freed_memory
from gesso.checkpoint.streamed import check_resident
from gesso.model.transformer import DiffusionGemma

__all__ = ["Backend", "for_model"]


def for_model(model: DiffusionGemma) -> Backend:
    """Return the fastest backend for the model's device, dtype and shape."""
    if model.device.type == "cuda":
        from gesso.backends import cuda

        if cuda.supports(model):
            return cuda.CudaBackend(model)
    if model.device.type == "cpu":
        from gesso.backends import cpu

        keep_freed_memory()
        if cpu.supports(model):
            return cpu.CpuBackend(model)
    from gesso.backends.torch import TorchBackend

    check_resident(model, f"run the model in {str(model.dtype).removeprefix('torch.')} without the CUDA kernels")
    return TorchBackend(model)
