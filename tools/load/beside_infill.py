"""`python -m tools.load beside-infill`: how much the infill requests of others slow a client's steps.

A client streams drafts, one per denoising step, and so sees how long each step takes: alone, beside infill requests
that write and score four candidates each, and beside as many plain requests as these have candidates. All canvases have
the same length, and a plain request's prompt has as many tokens as a candidate reads: the prompt, and once more with
candidate and suffix to score it. So the time that a plain request adds to a step explains what a candidate may add.
"""

import json
import statistics
import threading
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from typing import Any

from gesso.bench.serve import exchange, headers, memory, percentile, post
from gesso.bench.server import address, running_server

CANVAS = 64
STEPS = 16
OTHERS = 3  # clients with infill requests beside the one that is measured
FIXED = {"steps": STEPS, "stopping": "fixed", "canvas_length": CANVAS, "settle": 0}
OWN: dict[str, Any] = {"prompt": "def fib(n):", "max_tokens": CANVAS, "seed": 1, "diffusion": FIXED}
PREFIX, SUFFIX, CANDIDATES = "def fib(n):\n    if n < 2:\n", "\n    return fib(n - 1) + fib(n - 2)\n", 4
INFILL = {**OWN, "prompt": PREFIX, "suffix": SUFFIX, "best_of": CANDIDATES}


def measure(url: str | None, seconds: float, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure each of the three phases for `seconds`, after half of that without measuring.

    Without a `url`, start a server with these `arguments`.
    """
    if url is None:
        with running_server(*arguments) as server:
            server.wait_ready()
            return measure(server.url, seconds)
    prefix, suffix = _tokens(url, PREFIX), _tokens(url, SUFFIX)
    plain_body = {**OWN, "prompt": (prefix * CANVAS)[: 2 * len(prefix) + CANVAS + len(suffix)]}
    phases = []
    for clients, others in ((0, {}), (OTHERS * CANDIDATES, plain_body), (OTHERS, INFILL)):
        _phase(url, seconds / 2, clients, others)  # on a GPU, new batch sizes are captured first
        phases.append(_phase(url, seconds, clients, others))
    alone, plain, infill = phases
    added = (plain["step_ms"] - alone["step_ms"]) / (plain["canvases"] - alone["canvases"])
    explained = alone["step_ms"] + added * (infill["canvases"] - alone["canvases"])
    return {
        "alone": alone,
        "beside_plain": plain,
        "beside_infill": infill,
        "explained_ms": round(explained, 2),
        "measured_over_explained": round(infill["step_ms"] / explained, 3),
        "memory": memory(url),
    }


def _tokens(url: str, text: str) -> list[int]:
    answer = exchange(url, "POST", "/tokenize", json.dumps({"prompt": text}))[1]
    return list(json.loads(answer)["tokens"])


def _phase(url: str, seconds: float, clients: int, others: dict[str, Any]) -> dict[str, Any]:
    until, errors = time.monotonic() + seconds, []

    def load() -> None:
        while time.monotonic() < until:
            status, answer = post(url, others)
            if status != 200:
                errors.append(answer["error"]["message"])
                time.sleep(0.1)

    threads = [threading.Thread(target=load) for _ in range(clients)]
    before = _canvas_steps(url)
    for thread in threads:
        thread.start()
    steps: list[float] = []
    own = 0
    while time.monotonic() < until:
        steps += _steps(url)
        own += STEPS
    for thread in threads:
        thread.join()
    all_steps = _canvas_steps(url) - before
    return {
        "step_ms": round(1000 * statistics.fmean(steps), 2),
        "step_ms_p50": round(1000 * (percentile(steps, 50) or 0), 1),
        "step_ms_p99": round(1000 * (percentile(steps, 99) or 0), 1),
        "canvases": round(all_steps / own, 2),  # per pass, since each pass has one of this client
        "steps": len(steps),
        "errors": errors[:3],
    }


def _steps(url: str) -> list[float]:
    """Return the seconds between the drafts of one streamed request."""
    body = {**OWN, "stream": True, "diffusion": {**FIXED, "drafts": True}}
    connection = HTTPConnection(*address(url), timeout=600)
    times = []
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers())
        response = connection.getresponse()
        while line := response.readline():
            if line.startswith(b"data: ") and b'"draft"' in line:
                times.append(time.monotonic())
    finally:
        connection.close()
    return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]


def _canvas_steps(url: str) -> float:
    """Return the number of denoising steps of all canvases so far."""
    lines = exchange(url, "GET", "/metrics")[1].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("gesso_denoising_steps_total"))
