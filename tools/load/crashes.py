"""`python -m tools.load crashes`: the same seed gives the same text while engines are killed and paused.

Clients send requests whose texts are known from the server without load. More of them wait than the batch has places,
so requests join and leave it at any step. A request that ends with its engine is sent again, as a client would. Before
each kill, the engine is stopped for a moment and continued, as by a busy system.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from gesso.bench.server import ServerProcess
from tools.load import mix, processes, wire
from tools.load.soak import PATIENCE, SEEDS, alone

CLIENTS, PLACES = 6, 3
TRIES = 10  # of one request
PAUSE_SECONDS = 1.0  # far below the server's --heartbeat


@dataclass
class Log:
    lock: threading.Lock = field(default_factory=threading.Lock)
    answered: int = 0
    sent_again: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    kills: int = 0
    pauses: int = 0


def measure(requests: int, kills: int, arguments: Sequence[str] = (), seed: int = 0) -> dict[str, Any]:
    """Measure a new server, with these arguments of `gesso serve`."""
    with processes.running_server(*arguments, "--max-batch", str(PLACES), keys=("good",), threads=1) as server:
        server.wait_ready()
        expected = alone(server.url, "good")
        chance, log, stop = random.Random(seed), Log(), threading.Event()
        asked = [(chance.choice(list(mix.KINDS)), chance.randrange(SEEDS)) for _ in range(requests)]
        killer = threading.Thread(target=_kill, args=(server, log, requests, kills, stop))
        killer.start()
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda one: _ask(server.url, log, *one, expected[one]), asked))
        stop.set()
        killer.join()
    return {
        "requests": log.answered,
        "kinds": len(log.kinds),
        "engine_kills": log.kills,
        "engine_pauses": log.pauses,
        "sent_again": log.sent_again,
        "different": log.different,
        "lost": log.lost,
        "passed": not log.different and not log.lost and log.kills == kills,
    }


def _ask(url: str, log: Log, kind: str, seed: int, expected: Any) -> None:
    """Ask until there is an answer, and compare it."""
    reason = ""
    for _ in range(TRIES):
        answer = wire.ask(url, "good", *mix.body(kind, seed), timeout=PATIENCE)
        reason = f"{answer.status} {answer.message}"
        content = None
        if answer.status == 200:
            try:
                content = mix.content(kind, answer)
            except RuntimeError as error:  # an error event of a stream
                reason = str(error)
            except (ValueError, KeyError, TypeError) as error:
                reason = f"incomplete: {error}"
                break
        with log.lock:
            if content is not None:
                log.answered += 1
                log.kinds[kind] += 1
                if content != expected:
                    log.different.append(f"{kind}: {str(content)[:80]} instead of {str(expected)[:80]}")
                return
            if "engine died" not in reason:
                break
            log.sent_again += 1
    with log.lock:
        log.lost.append(f"{kind}: {reason}")


def _kill(server: ServerProcess, log: Log, requests: int, kills: int, stop: threading.Event) -> None:
    """Kill engines that have requests, at equal distances of answers. Pause each one first."""
    for number in range(kills):
        while log.answered < (number + 1) * requests / (kills + 1) and not stop.is_set():
            time.sleep(0.01)
        server.wait_ready()
        if (engine := processes.engine_pid(server.pid)) is None:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGSTOP)
            time.sleep(PAUSE_SECONDS)
            os.kill(engine, signal.SIGCONT)
            log.pauses += 1
            time.sleep(PAUSE_SECONDS)
            os.kill(engine, signal.SIGKILL)
            log.kills += 1
        _wait_for_another(server, engine)


def _wait_for_another(server: ServerProcess, engine: int) -> None:
    """Wait until a new engine is ready: a server gives up if two in a row die while they load."""
    until = time.monotonic() + PATIENCE
    while processes.engine_pid(server.pid) in (engine, None) and time.monotonic() < until:
        time.sleep(0.05)
    server.wait_ready()
