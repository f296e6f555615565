"""Whether an operation runs as a Triton kernel, and where that is."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor


def kernels(x: Tensor) -> bool:
    """On a GPU, where nothing is to be learnt: kernels have no backward pass."""
    return x.is_cuda and not torch.is_grad_enabled()


def load(name: str) -> Any:
    """A room of `gesso.ops.kernels`. Triton is imported here and nowhere else: without a GPU it need not be there."""
    return import_module(f"gesso.ops.kernels.{name}")
