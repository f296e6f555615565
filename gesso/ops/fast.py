"""Whether an operation runs as a Triton kernel, and where that is; and what may run at the same time."""

from functools import lru_cache
from importlib import import_module
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from gesso.ops.weight import Rows


def kernels(x: Tensor) -> bool:
    """On a GPU, where nothing is to be learnt: kernels have no backward pass. They are not made for float16, nor for
    weights that are to be multiplied in another dtype than they have, as a trainer's are in the passes it learns
    nothing from."""
    learning = torch.is_grad_enabled() or torch.is_autocast_enabled("cuda")
    return x.is_cuda and x.dtype != torch.float16 and not learning


def rows_fit(x_TI: Tensor) -> bool:
    """Whether the copy engine can fetch rows of this width: multiples of 16 bytes, in any precision."""
    return x_TI.shape[1] % 16 == 0


def send(values: Tensor, device: torch.device) -> Tensor:
    """Host to device. From memory that is not pinned, a copy to a GPU would first wait for all that runs there."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def load(name: str) -> Any:
    """A room of `gesso.ops.kernels`. Triton is imported here and nowhere else: without a GPU it need not be there."""
    return import_module(f"gesso.ops.kernels.{name}")


class Beside:
    """Operations that a GPU runs at the same time as those that follow, until `join`. Elsewhere, just operations.

    For work that leaves most of the GPU waiting beside work that keeps its memory busy; `worth`: whether that does.
    """

    def __init__(self, given: Rows, worth: bool = True) -> None:
        # Kept: were its memory free before `join`, the operations beside would be given it.
        self.given, self.worth = given, worth
        self.streams: list[Any] = []

    def __enter__(self) -> Self:
        tensor = self.given if isinstance(self.given, Tensor) else self.given[0]
        if self.worth and tensor.is_cuda and kernels(tensor):
            main = torch.cuda.current_stream()
            side = _side(main.device)
            side.wait_stream(main)
            torch.cuda.set_stream(side)
            self.streams = [main, side]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.streams:
            torch.cuda.set_stream(self.streams[0])

    def join(self) -> None:
        if self.streams:
            main, side = self.streams
            main.wait_stream(side)


@lru_cache
def _side(device: torch.device) -> Any:
    return torch.cuda.Stream(device)
