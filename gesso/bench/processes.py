"""A server process to measure: how it is started and ended, and its figures as /proc has them."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gesso.bench.wire import ask
from gesso.errors import InputError

ENGINE = "gesso.serve.worker"
START_SECONDS = 120.0


# --- /proc --------------------------------------------------------------------------------------------------------


def command_line(pid: int) -> str:
    """Return the command line, empty for a process that is gone or is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def children(pid: int) -> list[int]:
    """Return the child processes, whichever thread started them."""
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
    """Return the engine process of a server, or None while there is none."""
    return next((child for child in children(pid) if ENGINE in command_line(child)), None)


def wait_until_gone(pids: Sequence[int], seconds: float) -> list[int]:
    """Return those of the processes that still run after `seconds`."""
    until = time.monotonic() + seconds
    while (left := [pid for pid in pids if command_line(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


# --- a server -----------------------------------------------------------------------------------------------------


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        until = time.monotonic() + seconds
        while ask(self.url, None, "/ready", timeout=5).status != 200:
            if time.monotonic() > until or self.process.poll() is not None:
                raise InputError(f"the server did not get ready: {tail(self.log)}")
            time.sleep(0.1)


def tail(log: Path, characters: int = 500) -> str:
    return log.read_text(errors="replace")[-characters:].strip()


@contextlib.contextmanager
def running_server(
    *arguments: str,
    keys: Sequence[str] = (),
    threads: int | None = None,
    frame_bytes: int | None = None,
    files: int | None = None,
) -> Iterator[Server]:
    """Start a server on a free port of this machine; kill it and all its processes in the end.

    `frame_bytes` lowers the longest message between its processes, and `files` how many files it may open.
    """
    environment = {**os.environ, "GESSO_API_KEYS": ",".join(keys)}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    limited = [] if files is None else ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(files)]
    with tempfile.TemporaryDirectory(prefix="gesso-") as directory:
        log = Path(directory) / "log"
        if frame_bytes is not None:
            Path(directory, "sitecustomize.py").write_text(LOWERED.format(frame_bytes=frame_bytes))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (directory, os.environ.get("PYTHONPATH"))))
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [*limited, sys.executable, "-m", "gesso", "serve", "--port", "0", *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
            )
        assert process.stdout is not None
        try:
            words = process.stdout.readline().split()
            if len(words) < 4:
                raise InputError(f"the server did not start: {tail(log)}")
            yield Server(process, words[3], log)
        finally:
            end(process)
            process.stdout.close()


# Python runs `sitecustomize.py` at the start of each process.
LOWERED = """\
import gesso.serve.protocol
gesso.serve.protocol.FRAME_BYTES = {frame_bytes}
"""


def end(process: subprocess.Popen[str], seconds: float = 3) -> None:
    """Stop a server, with SIGKILL if SIGTERM is not enough, and kill the processes it leaves behind."""
    started = descendants(process.pid)
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        started += [pid for pid in descendants(process.pid) if pid not in started]
        process.kill()
        process.wait()
    for pid in wait_until_gone(started, 2):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
