"""`python -m tools.load faults`: what clients and operators notice when parts of a server fail.

The engine is killed during six streams, and ten clients hang up during theirs. Then the reader of the log stops,
and then the process that reads requests is stopped, as by a hung library. The log of the server is a named pipe.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gesso.bench.serve import percentile
from gesso.bench.server import ServerProcess
from tools.load import mix, processes, wire
from tools.load.hangups import metrics

STREAMS, HANG_UPS = 6, 10
REQUESTS = 600  # whose log lines are more than the pipe holds
HEALTH_REQUESTS = 100
HEARTBEAT = 30.0  # seconds; the default
READER = "gesso.serve.prepare.process"
PATIENCE = 120.0  # seconds
SMALLEST_PIPE = 4096
WRITING = {"canvas_length": 4, "steps": 4, "stopping": "fixed"}  # a little text at a time
LETTERS = "[a-z ]{2000}"  # no stream ends before its fault


class LogReader(threading.Thread):
    """Read a server's log from a named pipe, and stop on request."""

    def __init__(self, pipe: Path) -> None:
        super().__init__(daemon=True)
        self.lines: list[dict[str, Any]] = []
        self.reads = threading.Event()
        self.reads.set()
        self.source = os.open(pipe, os.O_RDWR)  # so that the server need not wait for a reader
        fcntl.fcntl(self.source, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)

    def run(self) -> None:
        rest = b""
        while self.reads.wait():
            *lines, rest = (rest + os.read(self.source, 1024)).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    self.lines.append(json.loads(line))

    def ended(self, outcome: str) -> list[dict[str, Any]]:
        """Return the lines of answers that ended so."""
        return [line for line in self.lines if line.get("outcome") == outcome]

    def wait_for(self, outcome: str, count: int) -> list[dict[str, Any]]:
        until = time.monotonic() + PATIENCE
        while len(self.ended(outcome)) < count and time.monotonic() < until:
            time.sleep(0.05)
        return self.ended(outcome)


@contextlib.contextmanager
def logged_server(arguments: Sequence[str]) -> Iterator[tuple[ServerProcess, LogReader]]:
    with tempfile.TemporaryDirectory(prefix="gesso-") as directory:
        pipe = Path(directory) / "log"
        os.mkfifo(pipe)
        log = LogReader(pipe)
        log.start()
        options = (*arguments, "--heartbeat", f"{HEARTBEAT:g}", "--max-batch", str(STREAMS))
        to_pipe = ("sh", "-c", 'exec "$@" 2> "$0"', str(pipe))
        with processes.running_server(*options, threads=1, prefix=to_pipe) as server:
            server.wait_ready()
            yield server, log
        log.reads.set()


def measure(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure a new server, with these arguments of `gesso serve`."""
    with logged_server(arguments) as (server, log):
        report = {
            "killed_engine": killed_engine(server, log),
            "hang_ups": hang_ups(server, log),
            "stopped_log_reader": stopped_log_reader(server, log),
            "stopped_request_reader": stopped_request_reader(server),
        }
    return {**report, "passed": all(part["passed"] for part in report.values())}


# --- streams that end early -------------------------------------------------------------------------------------------


def killed_engine(server: ServerProcess, log: LogReader) -> dict[str, Any]:
    connections = [begin_stream(server.url, seed) for seed in range(STREAMS)]
    engine = processes.engine_pid(server.pid)
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    answers = [read_all(connection) for connection in connections]
    lines = log.wait_for("engine_died", STREAMS)
    errors = sum(b"engine_died" in answer for answer in answers)
    server.wait_ready()
    return {
        "streams": STREAMS,
        "ended_with_an_error_event": errors,
        **recorded(server, lines, "engine_died"),
        "passed": errors == len(lines) == counted(server, "engine_died") == STREAMS,
    }


def hang_ups(server: ServerProcess, log: LogReader) -> dict[str, Any]:
    for seed in range(HANG_UPS):
        wire.abandon(begin_stream(server.url, seed))
    lines = log.wait_for("client_left", HANG_UPS)
    return {
        "streams": HANG_UPS,
        **recorded(server, lines, "client_left"),
        "passed": len(lines) == counted(server, "client_left") == HANG_UPS,
    }


def recorded(server: ServerProcess, lines: Sequence[dict[str, Any]], outcome: str) -> dict[str, Any]:
    return {
        f"log_lines_with_{outcome}": len(lines),
        f"metric_with_{outcome}": counted(server, outcome),
        "tokens_in_each_line": [line["completion_tokens"] for line in lines],
    }


def counted(server: ServerProcess, outcome: str) -> int:
    """Return the answers that ended so, by the metrics."""
    values = metrics(server.url)
    names = (name for name in values if name.startswith("gesso_answers_total") and f'"{outcome}"' in name)
    return int(sum(values[name] for name in names))


def begin_stream(url: str, seed: int) -> socket.socket:
    """Send a request for a long stream, and read until its first text."""
    body = {"prompt": "Hello", "max_tokens": 2000, "regex": LETTERS, "seed": seed, "stream": True, "diffusion": WRITING}
    connection = wire.send(url, None, wire.COMPLETIONS, body, timeout=PATIENCE)
    received = b""
    while b'"text":' not in received:
        received += connection.recv(4096)
    return connection


def read_all(connection: socket.socket) -> bytes:
    received = bytearray()
    with connection:
        while part := connection.recv(1 << 16):
            received += part
    return bytes(received)


# --- processes that stop ----------------------------------------------------------------------------------------------


def stopped_log_reader(server: ServerProcess, log: LogReader) -> dict[str, Any]:
    """Ask for more than the pipe can hold lines of: while the log is read, and while nobody reads it."""
    _, before = statuses_and_health(server.url)
    log.reads.clear()
    statuses, meanwhile = statuses_and_health(server.url)
    log.reads.set()
    return {
        "requests": REQUESTS,
        "statuses": dict(statuses),
        "lines_dropped": int(metrics(server.url).get("gesso_log_lines_dropped_total", 0)),
        "health_p99_before": before,
        "health_p99_meanwhile": meanwhile,
        "passed": statuses == {200: REQUESTS},
    }


def statuses_and_health(url: str) -> tuple[Counter[int], float | None]:
    """Ask for the models, and beside that for /health. Return the statuses, and the p99 of the seconds of /health."""
    with ThreadPoolExecutor(STREAMS) as pool:
        asked = [pool.submit(wire.ask, url, None, "/v1/models", timeout=PATIENCE) for _ in range(REQUESTS)]
        health = [wire.ask(url, None, "/health", timeout=PATIENCE) for _ in range(HEALTH_REQUESTS)]
    p99 = percentile([answer.seconds for answer in health if answer.status == 200], 99)
    return Counter(answer.result().status for answer in asked), p99


def stopped_request_reader(server: ServerProcess) -> dict[str, Any]:
    """Stop the process that reads requests, and send two chats at once."""
    reader = next(pid for pid in processes.descendants(server.pid) if READER in processes.command_line(pid))
    os.kill(reader, signal.SIGSTOP)
    began = time.monotonic()
    path, body = mix.body("chat", 1)
    with ThreadPoolExecutor(2) as pool:
        chats = [pool.submit(wire.ask, server.url, None, path, body, timeout=PATIENCE) for _ in range(2)]
        ready = Counter[int]()
        while not all(chat.done() for chat in chats):
            ready[wire.ask(server.url, None, "/ready", timeout=PATIENCE).status] += 1
            time.sleep(0.1)
    answers = [chat.result() for chat in chats]
    server.wait_ready()
    seconds = round(time.monotonic() - began, 1)
    statuses = [answer.status for answer in answers]
    return {
        "heartbeat": HEARTBEAT,
        "statuses": statuses,
        "messages": [answer.message for answer in answers if answer.status != 200],
        "ready_meanwhile": dict(ready),
        "answered_and_ready_after": seconds,
        "passed": 400 not in statuses and ready[503] > 0 and seconds <= HEARTBEAT,
    }
