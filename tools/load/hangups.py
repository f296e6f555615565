"""`python -m tools.load hangups N`: clients that hang up at random moments, before, during and after their request.

Each visitor requests more than it waits for. Meanwhile, steady clients request known texts and must get them. In
the end no visitor may leave anything behind: no request in the server or the engine, no memory, no open connection.
"""

import json
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gesso.bench.serve import BODY, Tally, exchange, headers, post
from gesso.bench.server import address, running_server

AT_ONCE = 8  # visitors
STEADY = 2  # clients that stay
SEEDS = 4  # distinct requests of the steady clients
SECONDS = 0.6  # longest stay of a visitor
ENDLESS = {"steps": 1000, "stopping": "fixed", "canvas_length": 32}
LONG = "x = 1\n" * 400
ASKED: dict[str, dict[str, Any]] = {
    "answer": {},
    "stream": {"stream": True},
    "drafts, read slowly": {"stream": True, "n": 4, "diffusion": ENDLESS | {"drafts": True}},
    "long prompt": {"prompt": LONG},  # the visitor leaves during prefill
    "long prompt, streamed": {"prompt": LONG, "stream": True},
    "choices": {"n": 4},
    "constraint": {"regex": "[a-z]{100,200}"},
    "hole": {"suffix": "\n    return n\n"},
    "half a body": {},
    "half a head": {},
}
HELD = ("gesso_requests_running", "gesso_requests_waiting", "gesso_engine_requests", "gesso_engine_places")
SIZES = (
    "gesso_engine_cache_bytes",
    "gesso_engine_memory_bytes",
    "process_resident_memory_bytes",
    "process_open_fds",
)


def measure(url: str | None, visitors: int, seed: int = 0) -> dict[str, Any]:
    """Send `visitors` that hang up early, to a new server if there is no `url`."""
    if url is None:
        with running_server() as server:
            server.wait_ready()
            return measure(server.url, visitors, seed)
    alone, beside, stop = Tally(), Tally(), threading.Event()
    for number in range(SEEDS):
        alone.ask(url, number)
    _grow(url)
    storm(url, visitors // 10, seed + 1)
    before = settled(url)
    steady = [threading.Thread(target=_stay, args=(beside, url, stop)) for _ in range(STEADY)]
    for thread in steady:
        thread.start()
    kinds = storm(url, visitors, seed)
    stop.set()
    for thread in steady:
        thread.join()
    after = settled(url)
    return {
        "visitors": dict(sorted(kinds.items())),
        "answers_meanwhile": len(beside.waits),
        "errors": [*alone.errors, *beside.errors][:5],
        "error_count": len(alone.errors) + len(beside.errors),
        "same_text_as_alone": all(beside.texts.get(seed, found) == found for seed, found in alone.texts.items()),
        "statuses": {status: int(after[name] - before.get(name, 0)) for name, status in _statuses(after)},
        "left_behind": {name: total(after, name) for name in HELD},
        "before": {name: total(before, name) for name in SIZES},
        "after": {name: total(after, name) for name in SIZES},
    }


def storm(url: str, visitors: int, seed: int) -> Counter[str]:
    """Send visitors, a few at a time. Return how many sent each kind of request."""
    chance = random.Random(seed)
    visits = [(chance.choice(list(ASKED)), chance.random() * SECONDS, number) for number in range(visitors)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda visit: _visit(url, *visit), visits))
    return Counter(kind for kind, _, _ in visits)


def settled(url: str, seconds: float = 60) -> dict[str, float]:
    """Return the server's metrics once no request is running, or after `seconds`."""
    until = time.monotonic() + seconds
    post(url, {**BODY, "max_tokens": 1})  # the engine updates its metrics at the end of a request
    while any(total(found := metrics(url), name) for name in HELD) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def metrics(url: str) -> dict[str, float]:
    lines = exchange(url, "GET", "/metrics")[1].decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def total(found: dict[str, float], name: str) -> float:
    """Return the sum of a metric over its labels."""
    return sum(value for key, value in found.items() if key.partition("{")[0] == name)


def _statuses(found: dict[str, float]) -> list[tuple[str, str]]:
    """Return the counters of /v1/completions with their status."""
    pattern = re.compile(r'gesso_requests_total\{path="/v1/completions",status="(\d+)"\}')
    return [(name, match[1]) for name in found if (match := pattern.fullmatch(name))]


def _visit(url: str, kind: str, stays: float, number: int) -> None:
    body = {**BODY, "max_tokens": 1000, "seed": number, "diffusion": ENDLESS} | ASKED[kind]
    body["prompt"] = f"{number}: {body['prompt']}"  # no prompt is in the cache already
    content = json.dumps(body).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in headers().items())
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address(url)[0]}\r\n{head}Content-Length: {len(content)}\r\n\r\n"
    request = head.encode() + content
    if kind.startswith("half"):
        request = request[: len(head) // 2 if kind == "half a head" else -len(content) // 2]
    with socket.create_connection(address(url), timeout=60) as connection:
        if number % 2:  # a TCP reset, like a crashed machine; otherwise a regular close
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request)
        if kind == "drafts, read slowly":
            until = time.monotonic() + stays
            while time.monotonic() < until and connection.recv(64):
                time.sleep(0.02)
        else:
            time.sleep(stays)


def _grow(url: str) -> None:
    """Let all rows of the KV cache grow to their final size before measuring: they do not shrink."""
    once = {**BODY, "max_tokens": 1000, "diffusion": {"steps": 1}}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda number: post(url, {**once, "prompt": f"{number}. {LONG}"}), range(AT_ONCE)))


def _stay(tally: Tally, url: str, stop: threading.Event) -> None:
    seed = 0
    while not stop.is_set() or seed < SEEDS:  # each text at least once
        tally.ask(url, seed % SEEDS)
        seed += 1
