"""A server in its own process, and a client that needs only the standard library."""

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("fastapi", "uvicorn", "pydantic", "prometheus_client", "jsonschema_rs")


def check_packages():
    """Fail if a package of the server is missing. Skipping would hide that the server was not tested."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        pytest.fail(
            f"the server needs {', '.join(missing)}: pip install 'gesso-lm[serve]', or without a network unpack "
            "their wheels into a directory and name it in PYTHONPATH"
        )


class Server:
    def __init__(self, process, url, log):
        self.process, self.log = process, log
        self.url, self.port = url, int(url.rsplit(":", 1)[1])

    def send(self, method, path, body=None, timeout=300):
        """Send a request and return the open connection and its response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def ask(self, path, body):
        """Return the text of an answer, streamed or not. Raise RuntimeError for any status but 200."""
        connection, response = self.send("POST", path, body)
        with contextlib.closing(connection):
            content = response.read().decode()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status}: {content[:500]}")
        if not body.get("stream"):
            return text_of(json.loads(content)["choices"][0])
        lines = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
        if lines[-1] != "[DONE]":
            raise RuntimeError(f"{path}: the stream ended with {lines[-1][:500]}")
        events = [json.loads(line) for line in lines[:-1]]
        if broken := [event for event in events if "error" in event]:
            raise RuntimeError(f"{path}: {broken[0]}")
        return "".join(text_of(choice) for event in events for choice in event.get("choices", ()))

    def wait_ready(self, seconds):
        until = time.monotonic() + seconds
        while True:
            connection, response = self.send("GET", "/ready")
            with contextlib.closing(connection):
                state = response.read().decode()
            if response.status == 200:
                return json.loads(state)
            assert self.process.poll() is None and time.monotonic() < until, state + self.log.read_text()[-3000:]
            time.sleep(0.2)


def text_of(choice):
    message = choice.get("message") or choice.get("delta")
    return (message.get("content") if message is not None else choice.get("text")) or ""


@contextlib.contextmanager
def serving(log: Path, *arguments: str):
    check_packages()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "gesso", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment,
        )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line.startswith("gesso serves at http://127.0.0.1:"), line + log.read_text()[-3000:]
        yield Server(process, line.split()[3], log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
