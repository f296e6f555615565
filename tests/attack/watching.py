"""A server under attack, and the clients beside the attacker: what must stay true for them.

The bounds are absolute and generous. They tell a server that answers from one that does not, on a busy machine too.
"""

import contextlib
import threading
import time

from tests.load import processes, wire

GOOD, BAD = "good", "bad"  # keys: the bystander's and the attacker's
HEALTH_SECONDS = 8.0  # the longest that /health may take while an attack runs
ANSWER_SECONDS = 25.0  # the longest that any request may take, the attacker's included
SETTLE_SECONDS = 20.0  # until nothing of an attack is left
MEMORY_BYTES = 400e6  # the most that the server's own process may grow by, at any time
CHILD_BYTES = 3e9  # the most that all its processes together may grow by, compilers included
MESSAGE_CHARACTERS = 2000  # the longest error message

# Tight, so that the suite does not wait for them; requests that keep within them are answered.
LIMITS = (
    "--max-batch",
    "4",
    "--prepare-seconds",
    "3",
    "--compile-seconds",
    "3",
    "--head-timeout",
    "3",
    "--heartbeat",
    "6",
)
QUICK = {"steps": 6, "t_max": 0.3, "t_min": 0.1, "entropy_bound": 1.0, "confidence": 0.5, "canvas_length": 16}
GAUGES = ("gesso_requests_running", "gesso_requests_waiting", "gesso_engine_requests", "gesso_engine_places")


def short(**more):
    return {"prompt": "Hello", "max_tokens": 16, "seed": 1, "diffusion": QUICK} | more


def ask(server, body, path=wire.COMPLETIONS, key=GOOD):
    return wire.ask(server.url, key, path, body, timeout=ANSWER_SECONDS)


def attack(server, path, body):
    return ask(server, body, path, key=BAD)


def text(answer):
    assert answer.status == 200, (answer.status, answer.message)
    return answer.json["choices"][0]["text"]


def assert_refused(answer, *statuses):
    """The request was refused, for a reason that a person can read."""
    assert answer.status in (statuses or range(400, 500)), (answer.status, answer.message)
    assert 10 < len(answer.message) < MESSAGE_CHARACTERS


@contextlib.contextmanager
def bystanders(server, body=None):
    """While the block runs, /health answers and another client gets the same text as before; nothing is left behind."""
    body = body or short()
    expected, before = text(ask(server, body)), _memory(server)
    stop, found, slowest, memory = threading.Event(), [], [0.0], [before]

    def be_served():
        found.append(ask(server, body))
        while not stop.wait(0.05):
            found.append(ask(server, body))

    def watch_health():
        while not stop.wait(0.1):
            health = wire.ask(server.url, None, "/health", timeout=ANSWER_SECONDS)
            slowest[0] = max(slowest[0], health.seconds)

    def watch_memory():
        while not stop.wait(0.05):
            memory.append(_memory(server))

    threads = [threading.Thread(target=each) for each in (be_served, watch_health, watch_memory)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert slowest[0] < HEALTH_SECONDS
    assert found and [text(answer) for answer in found] == [expected] * len(found)
    assert_nothing_left(server)
    own, of_all = (max(each) for each in zip(*memory, strict=True))
    assert own < before[0] + MEMORY_BYTES and of_all < before[1] + CHILD_BYTES


def _memory(server):
    """Return the resident bytes of the server's own process, and of all its processes."""
    own = processes.resident_bytes(server.process.pid)
    return own, own + sum(map(processes.resident_bytes, processes.descendants(server.process.pid)))


def assert_nothing_left(server):
    """No request is held, no place is taken, and no process runs but those of a server at rest."""
    until = time.monotonic() + SETTLE_SECONDS
    while left := _left(server):
        assert time.monotonic() < until, left
        time.sleep(0.1)


def _left(server):
    started = processes.descendants(server.process.pid)
    if len(started) > server.warm_processes:
        return [processes.command_line(pid)[:100] for pid in started]
    return {name: value for name in GAUGES if (value := server.metric(name))}
