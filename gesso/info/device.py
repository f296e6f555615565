"""The memory of the device that a model runs on."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gesso.errors import InputError

if TYPE_CHECKING:
    import torch

SHARE = 0.9  # of a device's memory that may be used, unless --memory gives another


@dataclass(frozen=True)
class DeviceMemory:
    """Memory in bytes."""

    total: int
    free: int
    device: str  # cpu or cuda

    def budget(self, share: float) -> int:
        """Return the bytes that may be used: a share of the total, and no more than is free."""
        return min(round(check_share(share) * self.total), self.free)


def check_share(share: float) -> float:
    if not 0 < share <= 1:
        raise InputError(f"the share of memory must be above 0 and at most 1, got {share}; change --memory")
    return share


def memory_of(device: "torch.device", *, ours: bool = False) -> DeviceMemory:
    """Return the memory of a device. With `ours`, memory that this process has allocated counts as free."""
    if device.type != "cuda":
        total, free = host_memory()
        return DeviceMemory(total, total if ours else free, "cpu")
    import torch

    free, total = torch.cuda.mem_get_info(device)
    # Freed tensors stay reserved by torch's allocator, and the next model can use their memory.
    kept = 0 if ours else torch.cuda.memory_allocated(device)
    return DeviceMemory(total, free + torch.cuda.memory_reserved(device) - kept, "cuda")


def host_memory(proc: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """Return the total and free memory of this machine, or of the container if that is smaller."""
    try:
        lines = dict(line.split(":", 1) for line in proc.read_text().splitlines())
        total, free = (1024 * int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError):  # not Linux
        total = free = _physical_memory()
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return total, free
    if limit == "max":
        return total, free
    return min(total, int(limit)), min(free, max(0, int(limit) - int(used)))


def _physical_memory() -> int:
    if not hasattr(os, "sysconf"):  # Windows: unknown, so no model is rejected
        return sys.maxsize
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
