"""Full garbage collections of an engine process run when no request waits, or when memory has grown."""

import gc
import queue
import subprocess
import sys
import threading

import pytest

from gesso.serve.collecting import GROWTH, Collector
from gesso.serve.wire import Cancel
from gesso.serve.worker import Worker
from tests.waiting import PATIENCE, wait_until


class Idle(Worker):
    """A worker that is idle as soon as no message waits."""

    idle_seconds = 0.0


@pytest.fixture
def full():
    """The threads that start full collections, in a list that grows."""
    threads = []

    def note(phase, info):
        if phase == "start" and info["generation"] == 2:
            threads.append(threading.current_thread())

    gc.callbacks.append(note)
    yield threads
    gc.callbacks.remove(note)


def test_an_idle_engine_collects_once_after_constraints(tiny, full):
    idle, taken = Idle(tiny, lambda message: None), []
    idle.inbox = queue.SimpleQueue()
    idle.collector.is_due = True
    waiting = threading.Thread(target=lambda: taken.append(idle.next_message()))
    waiting.start()
    wait_until(lambda: not idle.collector.is_due)
    idle.inbox.put(message := Cancel(1))
    waiting.join(PATIENCE)
    assert taken == [message] and full.count(waiting) == 1


def test_a_busy_engine_collects_when_memory_has_grown(full):
    collector = Collector()
    most = collector.least + GROWTH
    collector.collect_if_grown(most)
    assert threading.main_thread() not in full
    collector.collect_if_grown(most + 1)
    assert full.count(threading.main_thread()) == 1


def test_python_starts_no_full_collection():
    """In a process of its own: the setting is global."""
    source = """
import gc
from gesso.serve.collecting import take_over
full = []
gc.callbacks.append(lambda phase, info: full.append(info["generation"]) if phase == "start" else None)
take_over()
full.clear()
kept = [[n] for n in range(1_000_000)]
assert full and max(full) == 1, full[-1]
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=PATIENCE)
