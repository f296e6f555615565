"""The server that an attack targets, and the requests and outcomes that attacks share."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tools.load import wire
from tools.load.wire import Answer, Body


@dataclass(frozen=True)
class Target:
    url: str
    key: str | None  # the attacker's
    pid: int | None = None  # of the server process, if known
    log: Path | None = None

    @property
    def process(self) -> int:
        if self.pid is None:
            raise ValueError("this attack needs the process id of the server")
        return self.pid

    def ask(self, path: str, body: Body, until: float) -> Answer:
        return wire.ask(self.url, self.key, path, body, timeout=max(0.1, until - time.monotonic()))


@dataclass
class Outcome:
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0  # the longest answer
    notes: list[str] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        self.statuses[str(answer.status or "none")] += 1
        self.seconds = max(self.seconds, answer.seconds)
        if answer.message and answer.message[:120] not in self.notes and len(self.notes) < 6:
            self.notes.append(answer.message[:120])


Run = Callable[[Target, float], Outcome]


def ask_all(target: Target, until: float, asked: Sequence[tuple[str, Body]], at_once: int = 1) -> Outcome:
    outcome = Outcome()
    with ThreadPoolExecutor(at_once) as pool:
        for answer in pool.map(lambda one: target.ask(one[0], one[1], until), asked):
            outcome.add(answer)
    return outcome


def abandon_all(target: Target, until: float, asked: Sequence[tuple[str, Body]], stays: float) -> Outcome:
    """Send each request, and hang up after `stays` seconds without reading the answer."""
    outcome = Outcome()
    for path, body in asked:
        left = until - time.monotonic()
        if left < stays:
            break
        try:
            connection = wire.send(target.url, target.key, path, body, timeout=left)
        except OSError as error:
            outcome.statuses["none"] += 1
            outcome.notes.append(str(error))
            continue
        time.sleep(stays)
        wire.abandon(connection)
        outcome.statuses["abandoned"] += 1
    return outcome
