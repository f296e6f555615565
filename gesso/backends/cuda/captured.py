"""A unit of work that is captured as one CUDA graph, and counted."""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from gesso.backends.cuda.counts import COUNTS


@lru_cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream of all captures: the allocator keeps the free memory of streams apart.

    Its priority is high. Otherwise its kernels, on which all others depend, would queue behind those of the side
    stream.
    """
    return torch.cuda.Stream(device, priority=-1)


class Captured(ABC):
    """Operations that run one by one until they are captured, and are replayed from then on.

    On a CPU there are no graphs, and `replay` calls the operations one by one.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.replay: Callable[[], None] = self._pass
        self.is_captured = False

    @abstractmethod
    def _pass(self) -> None:
        """Run the operations: everything that is captured."""

    def capture(self, pool: Any) -> None:
        if self.device.type != "cuda":
            self.is_captured = True
            COUNTS.captures += 1
            return
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # the collector may free another graph, which would invalidate this capture
        try:
            with torch.cuda.graph(graph, pool=pool, stream=_capture_stream(self.device)):
                self._pass()
        finally:
            if collecting:
                gc.enable()
        self.replay, self.is_captured = graph.replay, True
        COUNTS.captures += 1
