"""Full garbage collections of an engine process run when no request waits, or when memory has grown."""

import gc
import queue
import subprocess
import sys
import threading

import pytest

from gesso.serve import collecting, worker
from gesso.serve.collecting import Collector
from gesso.serve.protocol import Cancel
from tests.waiting import PATIENCE, wait_until


@pytest.fixture
def full(monkeypatch):
    """Record full collections instead of doing them."""
    found = []
    monkeypatch.setattr(gc, "collect", lambda: found.append(True))
    return found


def test_an_idle_engine_collects_once_after_constraints(tiny, full, monkeypatch):
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.0)
    idle, taken = worker.Worker(tiny, lambda message: None), []
    idle.inbox = queue.SimpleQueue()
    idle.collector.is_due = True
    waiting = threading.Thread(target=lambda: taken.append(idle.next_message()))
    waiting.start()
    wait_until(lambda: full)
    idle.inbox.put(message := (Cancel(1), b""))
    waiting.join(PATIENCE)
    assert taken == [message] and full == [True] and not idle.collector.is_due


def test_a_busy_engine_collects_when_memory_has_grown(full, monkeypatch):
    monkeypatch.setattr(collecting, "resident_bytes", lambda: (5 * 2**30, 0))
    collector = Collector()
    collector.collect_if_grown(collector.least + collecting.GROWTH)
    assert not full
    collector.collect_if_grown(collector.least + collecting.GROWTH + 1)
    assert full == [True]


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
