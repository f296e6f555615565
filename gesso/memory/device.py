"""The memory of the device that a model runs on."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gesso.cards.running import card_of
from gesso.errors import InputError

if TYPE_CHECKING:
    import torch

SHARE = 0.9  # of a device's memory that may be used, unless --memory gives another
UNITS = {
    f"{letter}{infix}b": base**power
    for power, letter in enumerate("kmgt", start=1)
    for infix, base in (("", 1000), ("i", 1024))
}


@dataclass(frozen=True)
class DeviceMemory:
    """Memory in bytes."""

    total: int
    free: int
    device: str  # cpu or cuda
    host: int = 0  # free memory of the host of a GPU, for experts that do not fit on the GPU

    def budget(self, memory: float | str) -> int:
        """Return the bytes that may be used: a share of the total or a size, and no more than is free."""
        limit = read_memory(memory)
        return min(limit if isinstance(limit, int) else round(limit * self.total), self.free)


def read_memory(memory: float | str) -> float | int:
    """Return a share of memory between 0 and 1 as a float, or a size such as "12GB" as an integer number of bytes."""
    text = str(memory).strip()
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]i?b)", text.lower())
    if size and (count := round(float(size[1]) * UNITS[size[2]])):
        return count
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InputError(
            f"memory={memory} is not usable: give a share above 0 and at most 1, or a size such as 12GB or 11.5GiB"
        )
    return share


def shown_memory(memory: float | str) -> str:
    """Return the limit of memory for a message."""
    limit = read_memory(memory)
    return str(memory) if isinstance(limit, int) else f"{limit:g}"


def keep_within(device: "torch.device", size: int) -> None:
    """Limit this process to `size` bytes of a GPU, as the driver counts them.

    At the limit, torch's allocator frees cached memory, and then fails. It counts neither the CUDA context nor loaded
    kernels, so they are measured and subtracted. Kernels are loaded when they are first used: call this again after the
    first step of training to count them.
    """
    if device.type != "cuda":
        return
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    _, total = torch.cuda.mem_get_info(index)  # creates the context, so that it can be measured
    limit = max(0, size - unmanaged_bytes(device))
    if torch.cuda.memory_reserved(device) > limit:
        torch.cuda.empty_cache()  # cached memory above the limit would stay
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), index)


def allocated_bytes(device: "torch.device") -> int:
    """Return the GPU memory that this process has allocated with torch; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    import torch

    return torch.cuda.memory_allocated(device)


def unmanaged_bytes(device: "torch.device") -> int:
    """Return the GPU memory of this process outside of torch's allocator: the CUDA context and loaded kernels.

    If the driver does not count per process, return an estimate.
    """
    import torch

    from gesso.memory.workspace import CONTEXT_BYTES

    counted = _counted_by_driver(device)
    return CONTEXT_BYTES if counted is None else max(0, counted - torch.cuda.memory_reserved(device))


def restart_peak(device: "torch.device") -> None:
    """Return unused memory of a GPU to the driver, and measure the peak from now on."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: "torch.device") -> int:
    """Return the most GPU memory that this process had since `restart_peak`, with CUDA context and loaded kernels."""
    import torch

    return torch.cuda.max_memory_reserved(device) + unmanaged_bytes(device)


def memory_of(device: "torch.device", *, ours: bool = False) -> DeviceMemory:
    """Return the memory of a device. With `ours`, memory that this process has allocated counts as free."""
    if device.type != "cuda":
        total, free = host_memory()
        return DeviceMemory(total, total if ours else free, "cpu")
    import torch

    free, total = torch.cuda.mem_get_info(device)
    reclaimable = torch.cuda.memory_reserved(device) if ours else _unused_bytes(device)
    if card_of(device).integrated:
        # CPU and GPU share one memory. The driver counts the page cache as used: after a download, the files that were
        # written. The system frees those when it needs to. Experts on the host would take the same memory.
        host_total, host_free = host_memory()
        return DeviceMemory(min(total, host_total), host_free + reclaimable, "cuda")
    return DeviceMemory(total, free + reclaimable, "cuda", host_memory()[1])


def _unused_bytes(device: "torch.device") -> int:
    """Return the GPU memory of freed tensors, which torch's allocator keeps for the next ones."""
    import torch

    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def process_memory(device: "torch.device") -> int:
    """Return the GPU memory of this process as the driver counts it: torch's allocator, the CUDA context and kernels.

    If the driver does not count per process, as in some containers, return all memory in use on the GPU.
    """
    import torch

    counted = _counted_by_driver(device)
    if counted is not None:
        return counted
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def _counted_by_driver(device: "torch.device") -> int | None:
    """Return the memory of this process on a GPU, or None if the driver does not count per process."""
    import torch

    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    for line in listed.splitlines():
        gpu, *process = (field.strip() for field in line.split(","))
        if gpu == uuid and process[:1] == [str(os.getpid())] and process[1].isdecimal():
            return int(process[1]) << 20
    return None


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


def used_bytes(device: "torch.device") -> int:
    """Return the GPU memory that torch's allocator has taken, or on a CPU the resident memory of this process."""
    if device.type != "cuda":
        return resident_bytes()[0]
    import torch

    return torch.cuda.memory_reserved(device)


def resident_bytes(status: Path = Path("/proc/self/status")) -> tuple[int, int]:
    """Return the memory of this process that is resident now, and the most that was.

    Outside of Linux only the latter is known, and stands for both; on Windows, both are 0.
    """
    try:
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    except OSError:
        most = _most_resident()
        return most, most
    now, most = (1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    return now, most


def _most_resident() -> int:
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:  # Windows
        return 0
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _physical_memory() -> int:
    if not hasattr(os, "sysconf"):  # Windows: unknown, so no model is rejected
        return sys.maxsize
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
