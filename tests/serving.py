"""A server as its users have it: a process of its own, on a free port of this machine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests import tiny


def make_model(directory: Path) -> Path:
    """The tiny model with a vocabulary of characters and words: what it writes is text, and each token stands."""
    tiny.make(directory)
    tokenizer = json.loads(tiny.tokenizer_json())
    names = {i: piece for piece, i in tokenizer["model"]["vocab"].items()}
    for i in range(128, tiny.VOCABULARY):
        names[i] = chr(i - 128) if 32 <= i - 128 < 127 else f" w{i}"
    tokenizer["model"] |= {"vocab": {piece: i for i, piece in names.items()}, "byte_fallback": False}
    tokenizer["decoder"] = {"type": "Fuse"}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return directory


class Running:
    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log
        self.http = httpx.Client(base_url=url, timeout=60)

    def wait_ready(self, wanted: int = 200, seconds: float = 90) -> None:
        until = time.monotonic() + seconds
        while self.http.get("/ready").status_code != wanted:
            assert time.monotonic() < until and self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def metric(self, name: str, **headers: str) -> float:
        lines = self.http.get("/metrics", headers=headers).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{")))

    def wait_metric(self, name: str, wanted: float, seconds: float = 20, **headers: str) -> None:
        until = time.monotonic() + seconds
        while (value := self.metric(name, **headers)) != wanted:
            assert time.monotonic() < until, f"{name} is {value}, not {wanted}"
            time.sleep(0.02)

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) == 1, children
        return int(children[0])

    def events(self, path: str, body: dict, **options):
        """The data of a stream's events, as they come."""
        with self.http.stream("POST", path, json=body | {"stream": True}, **options) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))


@contextlib.contextmanager
def serving(log: Path, *arguments: str, **environment: str):
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "gesso", "serve", "--port", "0", "--device", "cpu", *arguments],
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
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
