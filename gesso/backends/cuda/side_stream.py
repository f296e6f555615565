"""A second CUDA stream for work that runs beside the main stream."""

from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from gesso.backends.cuda.activations import Rows


class SideStream:
    """Run the operations of a `with` block at the same time as those that follow it, until `join`.

    Use it for work that leaves most of the GPU idle, beside memory-bound work. `enabled`: whether the other work is so.
    """

    def __init__(self, inputs: Rows, enabled: bool = True) -> None:
        # Keep the inputs alive: memory freed before `join` would be given to the main stream while the side stream
        # reads it.
        self.inputs, self.enabled = inputs, enabled
        self.streams: list[Any] = []

    def __enter__(self) -> Self:
        tensor = self.inputs if isinstance(self.inputs, Tensor) else self.inputs[0]
        if self.enabled and tensor.is_cuda:
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
        """Make the main stream wait for the side stream."""
        if self.streams:
            main, side = self.streams
            main.wait_stream(side)


@lru_cache
def _side(device: torch.device) -> Any:
    return torch.cuda.Stream(device)
