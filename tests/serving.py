"""Servers for tests: started like a user's, in their own process and on a free port."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from gesso.serve.run import listen, make_server
from gesso.serve.settings import ServerSettings
from tests import tiny
from tests.waiting import PATIENCE, wait_until

# Settings under which the tiny model ends a canvas after a few steps.
QUICK = {"steps": 6, "t_max": 0.3, "t_min": 0.1, "entropy_bound": 1.0, "confidence": 0.5, "canvas_length": 16}


# The defaults of the checkpoint: canvases count as certain after any step, so that every setting changes the texts.
DEFAULTS = {"max_denoising_steps": 6, "confidence_threshold": 1e6}


def make_model(directory: Path, sees: bool = False) -> Path:
    """Write the tiny model with a vocabulary of characters and words, so that any tokens decode to valid text."""
    tiny.make(directory, sees=sees)
    (directory / "generation_config.json").write_text(json.dumps(DEFAULTS), encoding="utf-8")
    tokenizer = json.loads(tiny.tokenizer_json())
    names = {i: piece for piece, i in tokenizer["model"]["vocab"].items()}
    for i in range(128, tiny.VOCABULARY):
        names[i] = chr(i - 128) if 32 <= i - 128 < 127 else f" w{i}"
    tokenizer["model"] |= {"vocab": {piece: i for i, piece in names.items()}, "byte_fallback": False}
    tokenizer["decoder"] = {"type": "Fuse"}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return directory


def server_fixture(*arguments: str):
    """Return a fixture: a server of the tiny model, started with these arguments and shared by the tests of a file.

    Without arguments, all files of this process share one server, so no test may stop it or its engine.
    """
    if not arguments:

        @pytest.fixture(scope="module")
        def shared(plain_server):
            return plain_server

        return shared

    @pytest.fixture(scope="module")
    def server(served_model, tmp_path_factory):
        log = tmp_path_factory.mktemp("log") / "log"
        with serving(log, "--model", str(served_model), "--name", "tiny", *arguments) as running:
            running.wait_ready()
            yield running

    return server


class Running:
    """A running server: its process, URL, log file and HTTP client."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)

    @contextlib.contextmanager
    def as_client(self, **headers: str):
        """Yield this server with an HTTP client of its own, which sends these headers."""
        client = Running(self.process, self.url, self.log)
        client.http.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
        with client.http:
            yield client

    def wait_ready(self, wanted: int = 200) -> None:
        def reached() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.http.get("/ready").status_code == wanted

        wait_until(reached, self.log.read_text)

    def metric(self, name: str, **headers: str) -> float:
        lines = self.http.get("/metrics", headers=headers).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{")))

    def wait_metric(self, name: str, wanted: float, **headers: str) -> None:
        wait_until(
            lambda: self.metric(name, **headers) == wanted, lambda: f"{name} is {self.metric(name)}, not {wanted}"
        )

    def log_lines(self, **fields: object) -> list[dict]:
        """Return the log lines of requests that have these fields."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if '"event": "request"' in line]
        return [line for line in lines if line.items() >= fields.items()]

    def wait_log_lines(self, count: int, **fields: object) -> list[dict]:
        wait_until(lambda: len(self.log_lines(**fields)) >= count, self.log.read_text)
        return self.log_lines(**fields)

    def children(self, module: str) -> list[int]:
        """Return the ids of the server's child processes that run a module of ours."""
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in pids if module in Path(f"/proc/{pid}/cmdline").read_text().split("\0")]

    def engine_pid(self) -> int:
        (pid,) = self.children("gesso.serve.worker")
        return pid

    def events(self, path: str, body: dict, **options):
        """Yield the data of the events of a stream as they arrive."""
        with self.http.stream("POST", path, json=body | {"stream": True}, **options) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))


def raw(
    url: str, body: dict, headers: str = "", receive_buffer: int | None = None, path: str = "/v1/completions"
) -> socket.socket:
    """Send a request on a plain socket and return the connection."""
    content = json.dumps(body).encode()
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


@contextlib.contextmanager
def within(settings: ServerSettings):
    """Run a server in a thread of this process, so that a test can inspect its objects. Its engine is a child process,
    as always."""
    listener = listen("127.0.0.1", 0, settings.limits.io_timeout)
    server = make_server(settings, "127.0.0.1", listener.getsockname()[1])
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.app.state.supervisor.state == "ready" or not thread.is_alive())
        assert thread.is_alive()
        yield server
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def serving(log: Path, *arguments: str, before: Sequence[str] = (), **environment: str):
    """Start a server process with these arguments and environment variables, and stop it at the end.

    The words `before` run the command, such as nohup.
    """
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "gesso", "serve", "--port", "0", "--device", "cpu", *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        )
    line = process.stdout.readline()
    assert line.startswith("gesso serves at http://127.0.0.1:"), line + log.read_text()
    running = Running(process, line.split()[3], log)
    try:
        yield running
    finally:
        running.http.close()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
