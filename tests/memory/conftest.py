"""A GPU for tests of memory, without one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@dataclass
class Driver:
    """What `torch.cuda` reports about a GPU, in bytes, and what it was asked to do."""

    free: int
    total: int
    reserved: int = 0  # by torch's allocator
    allocated: int = 0  # to tensors
    peak: int = 0  # of `reserved`
    uuid: str = ""
    calls: list[Any] = field(default_factory=list)

    def mem_get_info(self, gpu: Any) -> tuple[int, int]:
        return self.free, self.total

    def get_device_properties(self, gpu: Any) -> SimpleNamespace:
        return SimpleNamespace(uuid=self.uuid)

    def memory_reserved(self, gpu: Any) -> int:
        return self.reserved

    def memory_allocated(self, gpu: Any) -> int:
        return self.allocated

    def max_memory_reserved(self, gpu: Any) -> int:
        return self.peak

    def set_per_process_memory_fraction(self, fraction: float, gpu: Any) -> None:
        self.calls.append((fraction, gpu))

    def empty_cache(self) -> None:
        self.calls.append("cache")

    def reset_peak_memory_stats(self, gpu: Any) -> None:
        self.calls.append(gpu)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Driver]:
    """Return a function that replaces the driver by one that reports these sizes."""

    def install(**sizes: Any) -> Driver:
        replaced = Driver(**sizes)
        monkeypatch.setattr(torch, "cuda", replaced)  # the tests must pass without a GPU, and on any
        return replaced

    return install
