"""Processes of a server: started with lowered limits, and their figures from /proc."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gesso.bench import server
from gesso.bench.server import ServerProcess

ENGINE = "gesso.serve.worker"


# --- /proc --------------------------------------------------------------------------------------------------------


def command_line(pid: int) -> str:
    """Return the command line, empty for an ended process or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def children(pid: int) -> list[int]:
    """Return the child processes of all threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def engine_pid(pid: int) -> int | None:
    """Return the engine process of a server, or None."""
    return next((child for child in children(pid) if ENGINE in command_line(child)), None)


def wait_until_gone(pids: Sequence[int], seconds: float) -> list[int]:
    """Wait up to `seconds`. Return the processes that are still running."""
    until = time.monotonic() + seconds
    while (left := [pid for pid in pids if command_line(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


# --- a server -----------------------------------------------------------------------------------------------------

# Python runs `sitecustomize.py` at the start of each process.
LOWER_LIMIT = """\
import gesso.serve.wire
gesso.serve.wire.FRAME_BYTES = {frame_bytes}
"""


@contextlib.contextmanager
def running_server(
    *arguments: str,
    keys: Sequence[str] = (),
    threads: int | None = None,
    frame_bytes: int | None = None,
    files: int | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[ServerProcess]:
    """Start a server, and kill it with all its processes in the end.

    `frame_bytes` lowers the limit on messages between its processes, and `files` the number of files it may open. The
    command follows `prefix`.
    """
    environment = {"GESSO_API_KEYS": ",".join(keys)}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    limited = () if files is None else ("sh", "-c", 'ulimit -n "$0" && exec "$@"', str(files))
    with tempfile.TemporaryDirectory(prefix="gesso-") as directory:
        if frame_bytes is not None:
            Path(directory, "sitecustomize.py").write_text(LOWER_LIMIT.format(frame_bytes=frame_bytes))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (directory, os.environ.get("PYTHONPATH"))))
        started: list[int] = []
        try:
            with server.running_server(*arguments, environment=environment, prefix=(*limited, *prefix)) as running:
                try:
                    yield running
                finally:
                    started = descendants(running.pid)
        finally:
            for pid in wait_until_gone(started, 2):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
