"""`python -m tools.load soak MINUTES`: every kind of request, clients that hang up, attacks, and killed engines.

The report counts wrong answers (another text than the same seed gave without load), lost answers (neither an answer nor
an error with a reason), and leaks: requests in the engine, connections, processes, memory.
"""

import contextlib
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gesso.bench.serve import percentile
from gesso.errors import InputError
from tools.load import mix, processes, wire
from tools.load.hangups import HELD, total

SEEDS = 2  # distinct requests of every kind
STEADY, LEAVING = 3, 2  # well-behaved clients, and clients that hang up
PATIENCE = 120.0  # seconds to wait for an answer before it counts as lost
KILLS = (120.0, 180.0)  # range of seconds between two kills of the engine
PROGRESS_SECONDS = 10.0
MINUTE = 60.0
SETTLED_AT = 5 * MINUTE  # growth of memory is relative to the minute after this
WARM_UP = MINUTE  # of an engine; its memory counts after this


@dataclass
class Sample:
    at: float
    server: int  # bytes
    engine: int
    engine_pid: int | None


@dataclass
class Log:
    began: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    requests: Counter[str] = field(default_factory=Counter)
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    ended_with_engine: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    hostile: Counter[str] = field(default_factory=Counter)
    kills: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def note(self, kind: str, answer: wire.Answer, expected: Any) -> None:
        """Count an answer of a well-behaved client as correct, wrong, an error with a reason, or lost."""
        with self.lock:
            self.requests[kind] += 1
            reason = answer.message
            if answer.status == 200:
                try:
                    found = mix.content(kind, answer)
                except RuntimeError as error:  # an error event of a stream
                    reason = str(error)
                except (ValueError, KeyError, TypeError) as error:
                    self.lost.append(f"{kind}: {error}")
                    return
                else:
                    self.waits[kind].append(answer.seconds)
                    if found != expected:
                        self.wrong.append(f"{kind}: {str(found)[:80]} instead of {str(expected)[:80]}")
                    return
            if answer.status == wire.UNANSWERED or not reason:
                self.lost.append(f"{kind}: {answer.status} {reason or 'without a reason'}")
            elif "engine" in reason and ("died" in reason or "restart" in reason):
                self.ended_with_engine += 1
            else:
                self.errors[f"{answer.status}: {reason[:100]}"] += 1


def measure(url: str | None, minutes: float, seed: int = 0) -> dict[str, Any]:
    """Soak a new server, or the one at `url`, whose processes are neither killed nor measured."""
    if url is not None:
        keys = os.environ.get("GESSO_API_KEYS", "").split(",")
        if len(keys) < 2:
            raise InputError("set GESSO_API_KEYS to two keys of the server: the clients', then the attacker's")
        return _soak(url, keys[0], keys[1], None, 60 * minutes, seed)
    threads = max(1, (os.cpu_count() or 2) - 1)
    with processes.running_server(keys=("good", "bad"), threads=threads) as server:
        server.wait_ready()
        return _soak(server.url, "good", "bad", server.pid, 60 * minutes, seed)


def _soak(url: str, good: str, bad: str, pid: int | None, seconds: float, seed: int) -> dict[str, Any]:
    expected = alone(url, good)
    files, started = (processes.open_files(pid), len(processes.descendants(pid))) if pid is not None else (0, 0)
    log = Log()
    until = log.began + seconds
    tasks: list[Callable[[], None]] = [
        *(partial(_steady, url, good, log, expected, until, random.Random(seed + n)) for n in range(STEADY)),
        *(partial(_leaving, url, good, log, until, random.Random(seed + 100 + n)) for n in range(LEAVING)),
        partial(_hostile, url, bad, log, until, random.Random(seed + 200)),
        partial(_watch, pid, log, until),
    ]
    if pid is not None:
        tasks.append(partial(_killer, pid, log, until, random.Random(seed + 300)))
    threads = [threading.Thread(target=task, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + PATIENCE + 10 - time.monotonic()))
    stuck = sum(thread.is_alive() for thread in threads)
    left = left_behind(url, good, pid, files, started)
    return _report(log, seconds) | {"clients_stuck": stuck, "left_behind": left}


def alone(url: str, key: str) -> dict[tuple[str, int], Any]:
    """Return the expected answers: those to every request without load."""
    expected = {}
    for kind in mix.KINDS:
        for seed in range(SEEDS):
            answer = wire.ask(url, key, *mix.body(kind, seed), timeout=PATIENCE)
            if answer.status != 200:
                raise InputError(f"the server fails without load: {kind}: {answer.status} {answer.message}")
            expected[kind, seed] = mix.content(kind, answer)
    return expected


# --- clients ----------------------------------------------------------------------------------------------------------


def _steady(
    url: str, key: str, log: Log, expected: dict[tuple[str, int], Any], until: float, chance: random.Random
) -> None:
    while time.monotonic() < until:
        kind, seed = chance.choice(list(mix.KINDS)), chance.randrange(SEEDS)
        answer = wire.ask(url, key, *mix.body(kind, seed), timeout=PATIENCE)
        log.note(kind, answer, expected[kind, seed])
        if answer.status != 200:
            time.sleep(0.2)


def _leaving(url: str, key: str, log: Log, until: float, chance: random.Random) -> None:
    while time.monotonic() < until:
        path, body = mix.body(chance.choice(list(mix.KINDS)), chance.randrange(SEEDS))
        _visit(url, key, path, wire.encode(body), chance)
        with log.lock:
            log.requests["abandoned"] += 1
        time.sleep(chance.random())


def _visit(url: str, key: str, path: str, content: bytes, chance: random.Random) -> None:
    """Send a request or a part of it, and hang up within a second."""
    request = wire.head(path, key, len(content)) + content
    if chance.random() < 0.3:
        request = request[: chance.randrange(len(request))]
    with contextlib.suppress(OSError):
        connection = wire.connect(url)
        try:
            connection.sendall(request)
            time.sleep(chance.random())
        finally:
            wire.abandon(connection) if chance.random() < 0.5 else connection.close()


def _hostile(url: str, key: str, log: Log, until: float, chance: random.Random) -> None:
    doses = mix.doses()
    while time.monotonic() < until:
        path, body = chance.choice(doses)
        if chance.random() < 0.5:
            _visit(url, key, path, wire.encode(body), chance)
            status = "abandoned"
        else:
            status = str(wire.ask(url, key, path, body, timeout=3).status or "gave up")
        with log.lock:
            log.hostile[status] += 1
        time.sleep(chance.uniform(0.2, 1.5))


def _killer(pid: int, log: Log, until: float, chance: random.Random) -> None:
    """Kill the engine every few minutes. In a short run, kill it once, in the first half."""
    pause = min(chance.uniform(*KILLS), (until - time.monotonic()) / 2)
    while time.monotonic() + pause < until - 5:
        time.sleep(pause)
        engine = processes.engine_pid(pid)
        if engine is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine, signal.SIGKILL)
            log.kills.append(time.monotonic() - log.began)
        pause = chance.uniform(*KILLS)


# --- figures ----------------------------------------------------------------------------------------------------------


def _watch(pid: int | None, log: Log, until: float) -> None:
    """Sample memory once per second, and report progress."""
    told = log.began
    while (now := time.monotonic()) < until:
        if pid is not None:
            engine = processes.engine_pid(pid)
            held = processes.resident_bytes(engine) if engine is not None else 0
            log.samples.append(Sample(now - log.began, processes.resident_bytes(pid), held, engine))
        if now >= told + PROGRESS_SECONDS:
            told = now
            print(_progress(log), file=sys.stderr, flush=True)
        time.sleep(1)


def _progress(log: Log) -> str:
    last = log.samples[-1] if log.samples else Sample(0, 0, 0, None)
    return (
        f"{time.monotonic() - log.began:.0f} s: {sum(log.requests.values())} requests, {len(log.wrong)} wrong, "
        f"{len(log.lost)} lost, {sum(log.errors.values())} errors, {sum(log.hostile.values())} hostile, "
        f"{len(log.kills)} kills, server {last.server / 1e6:.0f} MB, engine {last.engine / 1e6:.0f} MB"
    )


def _report(log: Log, seconds: float) -> dict[str, Any]:
    waits = [wait for some in log.waits.values() for wait in some]
    return {
        "seconds": seconds,
        "requests": dict(sorted(log.requests.items())),
        "hostile": dict(log.hostile),
        "engine_kills": [round(at, 1) for at in log.kills],
        "wrong": len(log.wrong),
        "wrong_examples": log.wrong[:5],
        "lost": len(log.lost),
        "lost_examples": log.lost[:5],
        "ended_with_a_killed_engine": log.ended_with_engine,
        "errors": dict(log.errors.most_common(10)),
        "waits": _percentiles(waits),
        "waits_by_kind": {kind: _percentiles(some) for kind, some in sorted(log.waits.items())},
        "memory": _memory(log.samples, seconds),
    }


def _percentiles(waits: list[float]) -> dict[str, Any]:
    return {"answers": len(waits), **{f"p{share}": percentile(waits, share) for share in (50, 95, 99)}}


def _memory(samples: list[Sample], seconds: float) -> dict[str, Any]:
    """Compare the server's last minute with the minute after the first five; in a short run, compare thirds.

    A killed engine is replaced, so each engine has its own maximum, which counts after its warm-up.
    """
    if not samples:
        return {}
    long = seconds >= SETTLED_AT + 2 * MINUTE
    start, window = (SETTLED_AT, MINUTE) if long else (seconds / 3, seconds / 3)
    early = [sample.server for sample in samples if start <= sample.at < start + window]
    late = [sample.server for sample in samples if sample.at >= seconds - window]
    before, after = (statistics.median(some) if some else 0 for some in (early, late))
    engines: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.engine_pid is not None:
            engines[sample.engine_pid].append(sample)
    warm = min(WARM_UP, seconds / 6)
    return {
        "server_mb_after_the_start": round(before / 1e6, 1),
        "server_mb_at_the_end": round(after / 1e6, 1),
        "server_growth_percent": round(100 * (after / before - 1), 2) if before else None,
        "server_peak_mb": round(max(sample.server for sample in samples) / 1e6, 1),
        "compared_windows_seconds": [round(start), round(start + window), round(seconds - window), round(seconds)],
        "engines_warm_peak_mb": [
            round(max((s.engine for s in some if s.at >= some[0].at + warm), default=0) / 1e6, 1)
            for some in engines.values()
        ],
        "by_minute_mb": [
            [round(statistics.median(figures) / 1e6, 1) for figures in zip(*pairs, strict=True)]
            for pairs in _by_minute(samples)
        ],
    }


def _by_minute(samples: list[Sample]) -> list[list[tuple[int, int]]]:
    minutes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for sample in samples:
        minutes[int(sample.at // MINUTE)].append((sample.server, sample.engine))
    return [minutes[minute] for minute in sorted(minutes)]


def left_behind(url: str, key: str, pid: int | None, files: int, started: int) -> dict[str, Any]:
    """Return the resources still in use after all clients have left, at zero or after a minute."""
    until = time.monotonic() + 60
    while True:
        # The engine updates its metrics at the end of a request.
        wire.ask(url, key, *mix.body("completion", 0), timeout=20)
        found = _metrics(url, key)
        held: dict[str, Any] = {name: total(found, name) for name in HELD} if found else {"metrics": "no answer"}
        if pid is not None:
            held["open_files_more_than_before"] = max(0, processes.open_files(pid) - files)
            held["processes_more_than_before"] = max(0, len(processes.descendants(pid)) - started)
        if time.monotonic() > until or not any(held.values()):
            return held
        time.sleep(0.5)


def _metrics(url: str, key: str) -> dict[str, float]:
    answer = wire.ask(url, key, "/metrics", timeout=10)
    lines = answer.content.decode().splitlines() if answer.status == 200 else []
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}
