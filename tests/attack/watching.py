"""Checks on a server under attack: what must hold for other clients.

Waits are long enough for a machine that stalls. What an attack may cost is bounded in processor time instead.
"""

import contextlib
import threading

from tests.serving import QUICK
from tests.waiting import PATIENCE, wait_until
from tools.load import processes, wire

GOOD, BAD = "good", "bad"  # keys: the bystander's and the attacker's
LOOP_SECONDS = 4.0  # most processor time of the server process, which runs the event loop, during an attack; usual: 0.2
MEMORY_BYTES = 400e6  # largest growth of the server process
CHILD_BYTES = 3e9  # largest growth of all its processes, including compilers
MESSAGE_CHARACTERS = 2000  # longest error message

# Tight, so that tests do not wait for them. Normal requests stay within them.
LIMITS = (
    "--max-batch",
    "4",
    "--prepare-seconds",
    "1",
    "--compile-seconds",
    "1",
    "--head-timeout",
    "3",
    "--heartbeat",
    "10",
)
GAUGES = ("gesso_requests_running", "gesso_requests_waiting", "gesso_engine_requests", "gesso_engine_places")


def short(**more):
    return {"prompt": "Hello", "max_tokens": 16, "seed": 1, "diffusion": QUICK} | more


def ask(server, body, path=wire.COMPLETIONS, key=GOOD, timeout=PATIENCE):
    return wire.ask(server.url, key, path, body, timeout=timeout)


def attack(server, path, body):
    return ask(server, body, path, key=BAD)


def text(answer):
    assert answer.status == 200, (answer.status, answer.message)
    return answer.json["choices"][0]["text"]


def assert_refused(answer, *statuses):
    """Assert that the request was rejected with a readable reason."""
    assert answer.status in (statuses or range(400, 500)), (answer.status, answer.message)
    assert 10 < len(answer.message) < MESSAGE_CHARACTERS


@contextlib.contextmanager
def bystanders(server, body=None):
    """Assert that /health answers, another client gets the same text, and nothing is left after the block."""
    body = body or short()
    expected, before, began = text(ask(server, body)), _memory(server), processes.processor_seconds(server.process.pid)
    stop, found, health, memory = threading.Event(), [], [], [before]

    def be_served():
        found.append(ask(server, body))
        while not stop.wait(0.2):
            found.append(ask(server, body))

    def watch_health():
        while not stop.wait(0.1):
            health.append(wire.ask(server.url, None, "/health", timeout=PATIENCE).status)

    def watch_memory():
        while not stop.wait(0.1):
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
    assert set(health) <= {200}
    assert processes.processor_seconds(server.process.pid) - began < LOOP_SECONDS
    assert found and [text(answer) for answer in found] == [expected] * len(found)
    assert_nothing_left(server)
    own, of_all = (max(each) for each in zip(*memory, strict=True))
    assert own < before[0] + MEMORY_BYTES and of_all < before[1] + CHILD_BYTES


def _memory(server):
    """Return the resident bytes of the server process, and of all its processes."""
    own = processes.resident_bytes(server.process.pid)
    return own, own + sum(map(processes.resident_bytes, processes.descendants(server.process.pid)))


def assert_nothing_left(server):
    """Assert that no request is held, in the server or the engine, and that no extra process runs."""
    wait_until(lambda: not _left(server), lambda: str(_left(server)))


def _left(server):
    started = processes.descendants(server.process.pid)
    if len(started) > server.warm_processes:
        return [processes.command_line(pid)[:100] for pid in started]
    return {name: value for name in GAUGES if (value := server.metric(name))}
