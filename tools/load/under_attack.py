"""`python -m tools.load attacks`: measure a well-behaved client without load, and beside each attack.

Every attack gets a new server, so that the effects of one attack do not count against the next. A server that does not
answer is killed after a deadline and reported.
"""

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gesso.errors import InputError
from tools.load.attack_table import Attack, chosen
from tools.load.attacks import make_unreadable
from tools.load.bystander import CONSTRAINED, PLAIN, SEEDS, Bystander, Watch
from tools.load.processes import descendants, running_server
from tools.load.target import Outcome, Target
from tools.load.wire import ask

ALONE_SECONDS, ALONE_REQUESTS = 15.0, 40  # without load: until either is reached
LEAST_SECONDS = 8.0  # under each attack
AFTER_SECONDS = 6.0  # of them after the attack, when abandoned work shows
RECOVERY_SECONDS = 10.0  # for an answer after the attack


def measure(url: str | None, letters: str | None = None, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure the attacks with these letters, or all, on servers with these `arguments`.

    With a `url`, skip the attacks that need their own server.
    """
    keys = tuple(os.environ.get("GESSO_API_KEYS", "").split(","))
    if url is not None and len(keys) < 2:
        raise InputError("set GESSO_API_KEYS to two keys of the server: the bystander's, then the attacker's")
    wanted = chosen(letters)
    if not wanted:
        raise InputError(f"no attack has one of the letters {letters!r}; see tools/load/attack_table.py")
    references = {}
    with _server(wanted[0], url, arguments, plain=True) as target:
        good = keys[0] if url is not None else "good"
        for constrained in {attack.constrained for attack in wanted}:
            references[constrained] = _alone(target.url, good, constrained)
    found = []
    for attack in wanted:
        print(f"{attack.letter} {attack.name} ...", file=sys.stderr, flush=True)
        if url is not None and attack.own_server:
            found.append(_row(attack, skipped="needs its own server"))
            continue
        bad = keys[1] if url is not None else "bad"
        found.append(_attacked(attack, url, arguments, good, bad, references[attack.constrained]))
    return {
        "alone": {("constrained" if constrained else "plain"): r.summary() for constrained, r in references.items()},
        "attacks": found,
    }


@contextlib.contextmanager
def _server(attack: Attack, url: str | None, arguments: Sequence[str], plain: bool = False) -> Iterator[Target]:
    """Start the server for one attack. It leaves one core to the load generator, which would otherwise slow it down."""
    if url is not None:
        yield Target(url, None)
        return
    threads = max(1, (os.cpu_count() or 2) - 1)
    with contextlib.ExitStack() as stack:
        if attack.broken and not plain:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gesso-model-"))) / "broken"
            arguments = ("--model", str(make_unreadable(directory)))
        options: dict[str, Any] = {"keys": ("good", "bad")}
        if not plain:
            options = {"keys": attack.keys, "frame_bytes": attack.frame_bytes, "files": attack.files}
        server = stack.enter_context(running_server(*arguments, threads=threads, **options))
        if plain or not attack.broken:
            server.wait_ready()
        yield Target(server.url, None, server.pid, server.log)


def _alone(url: str, key: str, constrained: bool) -> Bystander:
    alone = Bystander(url, key, CONSTRAINED if constrained else PLAIN)
    for seed in range(SEEDS):
        alone.ask(seed)  # the first requests include warm-up
    if alone.errors:
        raise InputError(f"the server fails without an attack: {next(iter(alone.errors))}")
    alone.waits.clear()
    began, alone.answers = time.monotonic(), 0
    while time.monotonic() < began + ALONE_SECONDS and alone.answers < ALONE_REQUESTS:
        alone.ask(len(alone.waits) % SEEDS)
    return alone


def _attacked(
    attack: Attack, url: str | None, arguments: Sequence[str], good: str, bad: str, alone: Bystander
) -> dict[str, Any]:
    try:
        with _server(attack, url, arguments) as server:
            target = Target(server.url, bad if attack.keys else None, server.pid, server.log)
            key = good if attack.keys else None
            if attack.alone:
                return _row(attack, _run(attack, target, time.monotonic() + attack.seconds))
            return _beside(attack, target, key, alone)
    except InputError as error:  # the server did not start
        return _row(attack, skipped=str(error))


def _beside(attack: Attack, target: Target, key: str | None, alone: Bystander) -> dict[str, Any]:
    bystander = Bystander(target.url, key, alone.body, dict(alone.texts))
    bystander.ask(0)  # warm up, before the attack
    bystander.waits.clear()
    bystander.answers = 0
    at_rest = _processes(target)
    watch, stop = Watch(target.url, target.pid), threading.Event()
    began = time.monotonic()
    until = began + attack.seconds
    threads = [threading.Thread(target=each.run, args=(stop, until), daemon=True) for each in (bystander, watch)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    outcome = _run(attack, target, until - 1)
    ended = time.monotonic()
    time.sleep(max(0.0, min(until, max(began + LEAST_SECONDS, ended + AFTER_SECONDS)) - ended))
    stop.set()
    # A running request may still be answered before the deadline.
    for thread in threads:
        thread.join(max(0.0, until + 2 - time.monotonic()))
    time.sleep(1)
    left = _processes(target) - at_rest
    recovered = ask(target.url, key, "/v1/completions", {**alone.body, "seed": 0}, timeout=RECOVERY_SECONDS)
    summary, before = bystander.summary(), alone.summary()
    ratio = summary["p99"] / before["p99"] if summary["p99"] and before["p99"] else None
    return _row(attack, outcome) | {
        "attack_seconds": round(ended - began - 0.5, 1),
        "bystander": summary,
        "p99_ratio": round(ratio, 1) if ratio else None,
        "health_longest": round(watch.slowest, 2),
        "health_failed": watch.failed,
        "server_peak_mb": round(watch.peak / 1e6),
        "processes_peak_mb": round(watch.peak_of_all / 1e6),
        "processes_left": max(0, left),
        "answer_after": recovered.status,
    }


def _processes(target: Target) -> int:
    """Return the number of the server's child processes, or 0 if its process is unknown."""
    return 0 if target.pid is None else len(descendants(target.pid))


def _run(attack: Attack, target: Target, until: float) -> Outcome:
    """Run an attack in a thread, and leave the thread behind if it misses the deadline."""
    found: list[Outcome] = []

    def run() -> None:
        try:
            found.append(attack.run(target, until))
        except (OSError, ValueError) as error:
            found.append(Outcome(notes=[f"the attack failed: {error}"]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(0.0, until + 1 - time.monotonic()))
    return found[0] if found else Outcome(notes=["the attack did not end in time"])


def _row(attack: Attack, outcome: Outcome | None = None, skipped: str | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"letter": attack.letter, "attack": attack.name, "expected": attack.expected}
    if outcome is None:
        return row | {"skipped": skipped}
    longest = round(outcome.seconds, 1)
    return row | {"statuses": dict(outcome.statuses), "longest_answer": longest, "notes": outcome.notes}


# --- the table --------------------------------------------------------------------------------------------------------

HEADINGS = (
    "",
    "attack",
    "attacker got",
    "after s",
    "answers",
    "errors",
    "wrong",
    "p99 s",
    "x alone",
    "health s",
    "server MB",
    "all MB",
    "left",
    "afterwards",
)


def render(found: dict[str, Any], console: Console) -> None:
    for kind, alone in found["alone"].items():
        console.print(f"alone, {kind}: {alone['answers']} answers, p50 {alone['p50']} s, p99 {alone['p99']} s")
    table = Table(*HEADINGS)
    for row in found["attacks"]:
        table.add_row(*_cells(row))
    console.print(table)


def _cells(row: dict[str, Any]) -> Sequence[str]:
    if "skipped" in row:
        return [row["letter"], row["attack"], row["skipped"][-80:]]
    got = ", ".join(f"{count}x {status}" for status, count in row["statuses"].items())
    cells = [row["letter"], row["attack"], got, f"{row['longest_answer']:g}"]
    if "bystander" not in row:
        return [*cells, *["-"] * 9, "; ".join(row["notes"])[:80]]
    beside = row["bystander"]
    return [
        *cells,
        str(beside["answers"]),
        str(sum(beside["errors"].values())),
        str(beside["wrong_texts"]),
        f"{beside['p99']}",
        f"{row['p99_ratio']}",
        f"{row['health_longest']:g}" + (f" ({row['health_failed']} failed)" if row["health_failed"] else ""),
        str(row["server_peak_mb"]),
        str(row["processes_peak_mb"]),
        str(row["processes_left"]),
        str(row["answer_after"] or "no answer"),
    ]
