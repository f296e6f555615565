"""Measure many clients on one server: throughput against one client, waiting times, and whether texts stay the same.

The clients send completions. How soon a conversation is read is measured with one client.
"""

import http.client
import json
import math
import os
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gesso.bench.server import address, running_server
from gesso.errors import InputError

SEEDS = 16  # distinct requests, each sent alone first and repeatedly under load
STEPS = 16
BODY: dict[str, Any] = {"prompt": "def fib(n):", "max_tokens": 64, "diffusion": {"preset": "fast", "canvas_length": 64}}
MESSAGES = [{"role": "user", "content": "Write a haiku about the sea."}]
SHORT = {"max_tokens": 8, "diffusion": {"preset": "fast", "canvas_length": 16}}
CONVERSATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "stream": True, **SHORT}),
    "tokenize": ("/tokenize", {"messages": MESSAGES}),
}
ROUNDS = 8


@dataclass
class Tally:
    body: dict[str, Any] = field(default_factory=lambda: BODY)
    waits: list[float] = field(default_factory=list)
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    texts: dict[int, set[str]] = field(default_factory=dict)  # by seed
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, url: str, seed: int) -> None:
        began = time.perf_counter()
        try:
            status, answer = post(url, {**self.body, "seed": seed})
        except OSError as error:
            status, answer = 0, {"error": {"message": str(error)}}
        with self.lock:
            if status != 200:
                self.errors.append(f"{status}: {answer['error']['message']}")
                return
            self.waits.append(time.perf_counter() - began)
            self.tokens += answer["usage"]["completion_tokens"]
            self.texts.setdefault(seed, set()).add(answer["choices"][0]["text"])


def measure(
    url: str | None, clients: int, seconds: float, new: int | None = None, arguments: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure `clients` at once for `seconds`, after about a third of that and some conversations with one client.

    Each requests `new` tokens in canvases of 16 steps without early stopping, or by default a short text. Without a
    `url`, a server is started with these `arguments`.
    """
    if url is None:
        with running_server(*arguments) as server:
            server.wait_ready()
            return measure(server.url, clients, seconds, new)
    fixed = {"max_tokens": new, "diffusion": {"steps": STEPS, "stopping": "fixed"}}
    body = BODY if new is None else {**BODY, **fixed}
    alone, crowd = Tally(body), Tally(body)
    for _ in range(2):  # warm-up
        post(url, {**body, "seed": 0})
    began = time.perf_counter()
    for seed in range(SEEDS):
        alone.ask(url, seed)
        if seed >= 3 and time.perf_counter() - began > seconds / 3:
            break
    alone_rate = alone.tokens / (time.perf_counter() - began)
    (first_events,) = first_event_medians([url], ROUNDS)
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
        "wait_p50": percentile(crowd.waits, 50),
        "wait_p99": percentile(crowd.waits, 99),
        "wait_max": round(max(crowd.waits, default=0.0), 3),
        "wait_max_over_mean": round(max(crowd.waits) / mean, 2) if mean else None,
        "first_event": first_events,
        "same_text_as_alone": all(crowd.texts.get(seed, text) == text for seed, text in alone.texts.items()),
        "memory": memory(url),
    }


def first_event_medians(urls: Sequence[str], rounds: int) -> list[dict[str, float]]:
    """Return the median seconds to the first event of each conversation, by server. The servers take turns."""
    seconds: list[dict[str, list[float]]] = [{name: [] for name in CONVERSATIONS} for _ in urls]
    for _ in range(rounds):
        for name, (path, body) in CONVERSATIONS.items():
            for url, by_name in zip(urls, seconds, strict=True):
                by_name[name].append(first_event(url, path, body))
    return [{name: round(statistics.median(values), 4) for name, values in by_name.items()} for by_name in seconds]


def first_event(url: str, path: str, body: dict[str, Any]) -> float:
    """Return the seconds from sending a request to the first event of its stream, or to its answer.

    The first event of a chat has no text: a server sends it when it has read the request, before the engine begins. The
    rest is read as well, so that the next request does not share the engine with it.
    """
    host, port = address(url)
    connection = http.client.HTTPConnection(host, port, timeout=600)
    try:
        began = time.perf_counter()
        connection.request("POST", path, json.dumps(body), headers())
        response = connection.getresponse()
        content = response.readline()
        seconds = time.perf_counter() - began
        content += response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise InputError(f"{path} answered {response.status}: {content[:200].decode(errors='replace')}")
    return seconds


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile, or None for no values."""
    if not values:
        return None
    ranked = sorted(values)
    return round(ranked[max(0, math.ceil(share / 100 * len(ranked)) - 1)], 3)


def memory(url: str) -> dict[str, float]:
    """Return the engine's memory and its expected memory, in GB."""
    ready = json.loads(exchange(url, "GET", "/ready")[1])
    metrics = exchange(url, "GET", "/metrics")[1].decode()
    measured = {
        name: sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(f"gesso_engine_{name}{{"))
        for name in ("device_bytes", "cache_bytes", "memory_bytes")
    }
    expected = {"fixed_bytes": ready["fixed_bytes"], "budget_bytes": ready["budget_bytes"]}
    return {name.removesuffix("_bytes"): round(value / 1e9, 3) for name, value in {**measured, **expected}.items()}


def _client(tally: Tally, url: str, number: int, until: float) -> None:
    seed = number
    while time.perf_counter() < until:
        tally.ask(url, seed % SEEDS)
        seed += 1


def post(url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    status, content = exchange(url, "POST", "/v1/completions", json.dumps(body))
    return status, json.loads(content)


def exchange(url: str, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    host, port = address(url)
    connection = http.client.HTTPConnection(host, port, timeout=600)
    try:
        connection.request(method, path, body, headers())
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def headers() -> dict[str, str]:
    key = os.environ.get("GESSO_API_KEYS", "").split(",")[0]
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
