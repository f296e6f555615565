"""A well-behaved client on a server under attack: its waiting times, and whether its answers stay correct."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gesso.bench.serve import BODY, percentile
from tools.load import processes, wire

SEEDS = 4  # distinct requests
PATIENCE = 25.0  # seconds a bystander waits for an answer
LAST = 2.0  # seconds before the end without new requests
PLAIN: dict[str, Any] = {
    **BODY,
    "diffusion": {"preset": "fast", "canvas_length": 64, "steps": 4},  # about half a second on one core
}
CONSTRAINED: dict[str, Any] = {**PLAIN, "choice": ["return n", "if n < 2: return n", "pass"]}


@dataclass
class Bystander:
    """A client that sends request after request. An unanswered request counts with its waiting time."""

    url: str
    key: str | None
    body: dict[str, Any] = field(default_factory=lambda: PLAIN)
    texts: dict[int, str] = field(default_factory=dict)  # expected, by seed; collected if empty
    waits: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    wrong: int = 0
    pending_since: float | None = None

    def ask(self, seed: int, patience: float = PATIENCE) -> None:
        self.pending_since = time.monotonic()
        answer = wire.ask(self.url, self.key, wire.COMPLETIONS, {**self.body, "seed": seed}, timeout=patience)
        self.pending_since = None
        self.waits.append(answer.seconds)
        if answer.status != 200:
            self.errors[f"{answer.status or 'none'}: {answer.message[:80]}"] += 1
            return
        self.answers += 1
        text = answer.json["choices"][0]["text"]
        self.wrong += text != self.texts.setdefault(seed, text)

    def run(self, stop: threading.Event, until: float) -> None:
        seed = 0
        while not stop.is_set() and time.monotonic() < until - LAST:
            self.ask(seed % SEEDS, max(0.1, min(PATIENCE, until - time.monotonic())))
            seed += 1
            if self.errors and self.waits[-1] < 0.05:
                time.sleep(0.1)  # after an immediate rejection

    def summary(self) -> dict[str, Any]:
        waits = list(self.waits)
        if self.pending_since is not None:
            waits.append(time.monotonic() - self.pending_since)
        return {
            "requests": len(waits),
            "answers": self.answers,
            "errors": dict(self.errors),
            "wrong_texts": self.wrong,
            "p50": percentile(waits, 50),
            "p99": percentile(waits, 99),
            "longest": percentile(waits, 100),
        }


@dataclass
class Watch:
    """Polls /health and the memory of a server's processes five times per second."""

    url: str
    pid: int | None
    slowest: float = 0.0  # seconds for /health
    failed: int = 0
    peak: int = 0  # bytes of the server process
    peak_of_all: int = 0  # of all its processes

    def run(self, stop: threading.Event, until: float) -> None:
        memory = threading.Thread(target=self._watch_memory, args=(stop, until), daemon=True)
        memory.start()
        while not stop.is_set() and time.monotonic() < until:
            health = wire.ask(self.url, None, "/health", timeout=max(0.1, min(PATIENCE, until - time.monotonic())))
            self.slowest = max(self.slowest, health.seconds)
            self.failed += health.status != 200
            time.sleep(0.2)
        memory.join()

    def _watch_memory(self, stop: threading.Event, until: float) -> None:
        while self.pid is not None and not stop.is_set() and time.monotonic() < until:
            own = processes.resident_bytes(self.pid)
            self.peak = max(self.peak, own)
            others = sum(map(processes.resident_bytes, processes.descendants(self.pid)))
            self.peak_of_all = max(self.peak_of_all, own + others)
            time.sleep(0.2)
