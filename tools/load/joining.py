"""`python -m tools.load joining`: how long requests wait for their first draft while others join and leave.

Clients send requests one after another: completions and chats of random lengths, with different presets, temperatures,
step counts and samplers. Every fourth leaves in the middle of its answer. So the batch has another mixture in almost
every pass. A server has captured and compiled everything before it is ready, and its counters show it.

The time to the first draft counts from sending the request. Its admission is later, by the time that it takes to read
the request, so this is the stricter measure. There are no more clients than places in the batch.
"""

import json
import random
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any

from gesso.bench.serve import exchange, headers, percentile
from gesso.bench.server import ServerProcess, address, running_server
from tools.load.wire import CHAT, COMPLETIONS

SECONDS = 0.3  # to the first draft
TEXT = "A server answers many requests at once: some of them are long, others are short, and all of them want to begin."
PROMPT = 600  # most tokens
NEW = 600
SETTINGS: tuple[dict[str, Any], ...] = (
    {"steps": 16, "stopping": "fixed"},
    {"preset": "fast"},
    {"preset": "quality", "steps": 24},
    {"t_max": 0.6, "t_min": 0.2, "steps": 20},
    {"canvas_length": 64, "steps": 12, "entropy_bound": 1.0},
    {"confidence": 0.05, "steps": 12},
    {"top_p": 0.9, "steps": 12},
    {"greed": 0.5, "steps": 16, "settle": 0},
)
COUNTERS = ("captures", "compilations", "kernel_loads")
BEAT = 1.5  # seconds after which the counters of an engine have arrived


@dataclass
class Client:
    """A client with its own random numbers. `ask` sends one request."""

    url: str
    number: int
    tokens: Sequence[int]
    prompt: int = PROMPT
    new: int = NEW
    settings: Sequence[dict[str, Any]] = SETTINGS
    firsts: list[float] = field(default_factory=list)  # seconds to the first draft
    left: int = 0  # requests that it did not read to the end
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.number)

    def run(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                self.ask()
            except (OSError, HTTPException, ValueError) as error:
                self.errors.append(str(error)[:200])
                time.sleep(0.1)  # after an immediate rejection
            time.sleep(self.random.uniform(0, 0.2))

    def completion(self) -> tuple[str, dict[str, Any]]:
        return COMPLETIONS, {"prompt": self.random.choices(self.tokens, k=self.random.randint(1, self.prompt))}

    def chat(self) -> tuple[str, dict[str, Any]]:
        words = self.random.choices(TEXT.split(), k=self.random.randint(1, self.prompt))
        return CHAT, {"messages": [{"role": "user", "content": " ".join(words)}]}

    def ask(self) -> None:
        path, prompt = self.chat() if self.random.random() < 0.5 else self.completion()
        body = {
            **prompt,
            "max_tokens": self.random.randint(1, self.new),
            "seed": self.random.randrange(2**32),
            "stream": True,
            "diffusion": {**self.random.choice(self.settings), "drafts": True},
        }
        leaves_after = self.random.randint(1, 20) if self.random.random() < 0.25 else None
        began, drafts = time.monotonic(), 0
        connection = HTTPConnection(*address(self.url), timeout=600)
        try:
            connection.request("POST", path, json.dumps(body), headers())
            response = connection.getresponse()
            if response.status != 200:
                raise ValueError(f"{response.status}: {response.read().decode()}")
            while line := response.readline():
                if line.startswith(b'data: {"error"'):
                    raise ValueError(json.loads(line.removeprefix(b"data: "))["error"]["message"])
                if line.rstrip() == b"data: [DONE]":
                    return
                if not line.startswith(b"data: ") or b'"draft"' not in line:
                    continue
                drafts += 1
                if drafts == 1:
                    self.firsts.append(time.monotonic() - began)
                if drafts == leaves_after:
                    self.left += 1
                    return
        finally:
            connection.close()
        raise ValueError("the stream ended early")


def measure(url: str | None, seconds: float, clients: int, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure for `seconds`. Without a `url`, start a server with these `arguments`."""
    if url is None:
        with running_server(*arguments) as server:
            return {**wait_ready(server), **measure(server.url, seconds, clients)}
    answer = exchange(url, "POST", "/tokenize", json.dumps({"prompt": TEXT}))[1]
    tokens = json.loads(answer)["tokens"]
    return run([Client(url, number, tokens) for number in range(clients)], seconds)


def run(crowd: Sequence[Client], seconds: float, limit: float = SECONDS, beat: float = BEAT) -> dict[str, Any]:
    """Let clients of one server ask for `seconds`. A first draft may take up to `limit` seconds, and the counters of an
    engine arrive after `beat` seconds."""
    url = crowd[0].url
    time.sleep(beat)
    before = counters(url)
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=client.run, args=[until]) for client in crowd]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(beat)
    return report(crowd, before, counters(url), limit)


def report(
    crowd: Sequence[Client], before: Mapping[str, int], after: Mapping[str, int], limit: float = SECONDS
) -> dict[str, Any]:
    """Return the figures of clients, and whether the run has passed."""
    firsts = [first for client in crowd for first in client.firsts]
    errors = [error for client in crowd for error in client.errors]
    slow = sum(first > limit for first in firsts)
    moved = {name: after[name] - before[name] for name in COUNTERS}
    return {
        "requests": len(firsts),
        "left": sum(client.left for client in crowd),
        "errors": errors[:5],
        "first_draft_s": {
            "mean": round(statistics.fmean(firsts), 3) if firsts else None,
            "p50": percentile(firsts, 50),
            "p99": percentile(firsts, 99),
            "longest": round(max(firsts, default=0.0), 3),
        },
        "slow": slow,  # first drafts after more than `limit`
        "before": dict(before),
        "after_readiness": moved,
        "passed": bool(firsts) and not errors and not slow and not any(moved.values()),
    }


def wait_ready(server: ServerProcess) -> dict[str, float]:
    """Wait until a server is ready; return the seconds from its start, and from having the weights."""
    began, loaded = time.monotonic(), None
    while not (ready := _ready(server.url))[0]:
        if server.process.poll() is not None:
            server.wait_ready()  # raises the reason
        if loaded is None and ready[1] >= 1:
            loaded = time.monotonic()
        time.sleep(0.05)
    now = time.monotonic()
    return {"ready_s": round(now - began, 1), "after_weights_s": round(now - (loaded or now), 1)}


def _ready(url: str) -> tuple[bool, float]:
    """Return whether a server is ready, and the share of the weights that it has loaded."""
    try:
        status, content = exchange(url, "GET", "/ready")
        return status == 200, float(json.loads(content).get("progress", 0))
    except (OSError, ValueError):
        return False, 0.0


def counters(url: str) -> dict[str, int]:
    """Return what the engines of a server have captured, compiled and loaded so far."""
    lines = exchange(url, "GET", "/metrics")[1].decode().splitlines()
    return {
        name: int(sum(float(line.split()[-1]) for line in lines if line.startswith(f"gesso_engine_{name}_total{{")))
        for name in COUNTERS
    }
