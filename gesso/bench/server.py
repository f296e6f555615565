"""A server in its own process, to measure."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from gesso.errors import InputError

START_SECONDS = 120.0
END_SECONDS = 3.0  # between SIGTERM and SIGKILL


@dataclass
class ServerProcess:
    process: subprocess.Popen[str]
    url: str
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if time.monotonic() > until or self.process.poll() is not None:
                raise InputError(f"the server did not become ready: {_tail(self.log)}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        host, port = address(self.url)
        connection = HTTPConnection(host, port, timeout=5)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise InputError(f"the URL of a server must be like http://127.0.0.1:8000, got {url!r}")
    return parts.hostname, parts.port or 80


@contextmanager
def running_server(
    *arguments: str, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """Run `gesso serve` on a free port, and stop it at the end.

    `environment` is added to that of this process, and the command follows `prefix`.
    """
    with tempfile.TemporaryDirectory(prefix="gesso-") as directory:
        log = Path(directory) / "log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "gesso", "serve", "--port", "0", *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        assert process.stdout is not None
        try:
            words = process.stdout.readline().split()
            if len(words) < 4:
                raise InputError(f"the server did not start: {_tail(log)}")
            yield ServerProcess(process, words[3], log)
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-500:].strip()
