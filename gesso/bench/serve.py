"""Many clients on one server: what they get together, against one after another; who waits longest; and the same seed,
the same text under load as alone.
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from gesso.errors import InputError

SEEDS = 16  # distinct requests: each is asked alone first, and again and again under load
BODY = {"prompt": "def fib(n):", "max_tokens": 64, "diffusion": {"preset": "fast", "canvas_length": 64}}


@dataclass
class Tally:
    waits: list[float] = field(default_factory=list)
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    texts: dict[int, set[str]] = field(default_factory=dict)  # by seed
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, url: str, seed: int) -> None:
        began = time.perf_counter()
        try:
            status, answer = _post(url, {**BODY, "seed": seed})
        except OSError as error:
            status, answer = 0, {"error": {"message": str(error)}}
        with self.lock:
            if status != 200:
                self.errors.append(f"{status}: {answer['error']['message']}")
                return
            self.waits.append(time.perf_counter() - began)
            self.tokens += answer["usage"]["completion_tokens"]
            self.texts.setdefault(seed, set()).add(answer["choices"][0]["text"])


def measure(url: str | None, clients: int, seconds: float) -> dict[str, Any]:
    """`seconds` under load, after about a third of that with one client; without a `url`, on a server of its own."""
    if url is None:
        with _server() as own:
            return measure(own, clients, seconds)
    alone, crowd = Tally(), Tally()
    _post(url, {**BODY, "seed": 0})  # the first request of an engine pays for warming up
    began = time.perf_counter()
    for seed in range(SEEDS):
        alone.ask(url, seed)
        if seed >= 3 and time.perf_counter() - began > seconds / 3:
            break
    alone_rate = alone.tokens / (time.perf_counter() - began)
    began = time.perf_counter()
    threads = [threading.Thread(target=_client, args=(crowd, url, i, began + seconds)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    crowd_rate = crowd.tokens / (time.perf_counter() - began)
    mean = statistics.fmean(crowd.waits) if crowd.waits else 0.0
    return {
        "clients": clients,
        "requests": len(crowd.waits),
        "errors": crowd.errors[:5],
        "error_count": len(alone.errors) + len(crowd.errors),
        "tokens_per_second_alone": round(alone_rate, 1),
        "tokens_per_second": round(crowd_rate, 1),
        "speedup": round(crowd_rate / alone_rate, 2) if alone_rate else None,
        "wait_mean": round(mean, 3),
        "wait_max": round(max(crowd.waits, default=0.0), 3),
        "wait_max_over_mean": round(max(crowd.waits) / mean, 2) if mean else None,
        "same_text_as_alone": all(crowd.texts.get(seed, found) == found for seed, found in alone.texts.items()),
    }


def _client(tally: Tally, url: str, number: int, until: float) -> None:
    seed = number
    while time.perf_counter() < until:
        tally.ask(url, seed % SEEDS)
        seed += 1


def _post(url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise InputError(f"the address of a server is like http://127.0.0.1:8000, got {url!r}")
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=600)
    try:
        key = os.environ.get("GESSO_API_KEYS", "").split(",")[0]
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "gesso", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise InputError("the server did not start; see what gesso serve says")
            yield line.split()[3]
        finally:
            process.terminate()
