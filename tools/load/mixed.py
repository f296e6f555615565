"""`python -m tools.load mixed 2000`: memory of all processes of a server under requests of every kind.

Each quarter of the requests is followed by a pause until no request is left, and then by a measurement. In the first
quarter, caches fill and rows of the KV cache grow to their final size; after it, memory must stay flat.
"""

import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tools.load import mix, processes, wire
from tools.load.soak import PATIENCE, SEEDS, alone, left_behind

CLIENTS = 4
QUARTERS = 4
SHARE, BYTES = 0.05, 8e6  # growth of a process that counts as flat: this share of it and these bytes


def measure(requests: int, arguments: Sequence[str] = (), seed: int = 0) -> dict[str, Any]:
    """Measure a new server, with these arguments of `gesso serve`."""
    with processes.running_server(*arguments, keys=("good",), threads=1) as server:
        server.wait_ready()
        expected = alone(server.url, "good")
        files, started = processes.open_files(server.pid), len(processes.descendants(server.pid))
        chance = random.Random(seed)
        wrong, statuses, quarters = list[str](), Counter[str](), list[dict[str, float]]()

        def ask(kind: str, number: int) -> None:
            answer = wire.ask(server.url, "good", *mix.body(kind, number), timeout=PATIENCE)
            statuses[str(answer.status or "none")] += 1
            if answer.status != 200 or mix.content(kind, answer) != expected[kind, number]:
                wrong.append(f"{kind}: {answer.status} {answer.message[:100]}")

        for quarter in range(QUARTERS):
            asked = [(chance.choice(list(mix.KINDS)), chance.randrange(SEEDS)) for _ in range(_part(requests, quarter))]
            with ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(lambda one: ask(*one), asked))
            left = left_behind(server.url, "good", server.pid, files, started)
            quarters.append(_resident_megabytes(server.pid))
            print(f"{sum(statuses.values())} requests: {quarters[-1]} MB", file=sys.stderr, flush=True)
    flat = all(quarters[-1].get(name, 0.0) <= size * (1 + SHARE) + BYTES / 1e6 for name, size in quarters[0].items())
    return {
        "requests": sum(statuses.values()),
        "statuses": dict(statuses),
        "wrong": wrong,
        "left_behind": left,
        "resident_mb_after_each_quarter": quarters,
        "passed": flat and not wrong and len({frozenset(each) for each in quarters}) == 1,
    }


def _part(requests: int, quarter: int) -> int:
    return requests * (quarter + 1) // QUARTERS - requests * quarter // QUARTERS


def _resident_megabytes(pid: int) -> dict[str, float]:
    """Return the resident memory of a server and its processes, by what they run."""
    sizes = {"server": round(processes.resident_bytes(pid) / 1e6, 1)}
    for child in processes.descendants(pid):
        module = re.search(r"-m gesso\.(\S+)", processes.command_line(child))
        sizes[module[1] if module else str(child)] = round(processes.resident_bytes(child) / 1e6, 1)
    return sizes
