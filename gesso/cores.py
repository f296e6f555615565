"""The cores that this process may use, and how many threads it should run.

Products of matrices gain nothing from a second thread on a core, and lose if there are more threads than cores: each
product then waits for the thread that was interrupted.
"""

import math
import os
from collections.abc import Iterable
from pathlib import Path

from gesso.errors import InputError


def wait_without_spinning() -> None:
    """Let the threads of OpenMP sleep while they wait for each other, unless the environment says otherwise.

    A spinning thread occupies a core that other programs, or the thread it waits for, could use: on a busy machine, an
    answer of a small model takes many times as long. OpenMP reads this once, when torch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def usable_cores(
    system: Path = Path("/sys/devices/system/cpu"),
    cgroup: Path = Path("/sys/fs/cgroup"),
    processors: Iterable[int] | None = None,
) -> int:
    """Return the number of physical cores that this process may run on, or of processors where that is unknown.

    The limit of a container counts, too. `processors` are those that the process may use; by default, as the system
    says.
    """
    processors = _allowed() if processors is None else processors
    cores = {_core(system / f"cpu{number}" / "topology", number) for number in processors}
    return int(max(1, min(len(cores), _quota(cgroup / "cpu.max"))))


def threads_for(given: int | None, present: int, cores: int | None = None) -> int:
    """Return how many threads to run: as given, or one per core, but no more than `present`, which the user may have
    lowered. `cores`: by default, those of this process."""
    if given is not None and given < 1:
        raise InputError(f"threads must be at least 1, got {given}")
    return given or min(present, usable_cores() if cores is None else cores)


def _allowed() -> Iterable[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _core(topology: Path, number: int) -> str:
    """Return the processors that share a core, which identifies it."""
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is that of older kernels
        try:
            return (topology / name).read_text().strip()
        except OSError:
            continue
    return str(number)


def _quota(limit: Path) -> float:
    """Return the processors that a container may use at a time, rounded up; infinite without a limit."""
    try:
        time, period = limit.read_text().split()
    except (OSError, ValueError):
        return math.inf
    return math.inf if time == "max" else math.ceil(int(time) / int(period))
