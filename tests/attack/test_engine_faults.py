"""If an engine or the reader of requests hangs or dies, the server reports it, replaces it, or exits and says why."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.attack.watching import ask, assert_nothing_left, short, text
from tests.waiting import PATIENCE, wait_until
from tools.load import processes, wire

pytestmark = pytest.mark.attack

ENGINES = 5  # most engines it may start before that
READER = "gesso.serve.prepare.process"


def test_a_hung_engine_is_replaced_and_its_requests_end_with_the_reason(server):
    expected, engine = text(ask(server, short())), processes.engine_pid(server.process.pid)
    endless = short(max_tokens=2000, diffusion={"steps": 1000, "stopping": "fixed", "canvas_length": 16})
    seen = set()
    with ThreadPoolExecutor(2) as pool:
        started = pool.submit(ask, server, endless, timeout=PATIENCE)
        server.wait_metric("gesso_engine_requests", 1)
        os.kill(engine, signal.SIGSTOP)
        try:
            waiting = pool.submit(ask, server, short(), timeout=PATIENCE)

            def replaced():
                seen.add(wire.ask(server.url, None, "/ready", timeout=PATIENCE).status)
                return {503, 200} <= seen and processes.engine_pid(server.process.pid) not in (engine, None)

            wait_until(replaced, lambda: f"/ready was {seen}")
        finally:
            if processes.engine_pid(server.process.pid) == engine:
                os.kill(engine, signal.SIGCONT)
    assert started.result().status == 500 and "engine" in started.result().message
    assert waiting.result().status == 200 or "engine" in waiting.result().message
    assert not processes.command_line(engine)
    assert text(ask(server, short())) == expected
    assert_nothing_left(server)


def reader_pid(server):
    return next((pid for pid in processes.children(server.process.pid) if READER in processes.command_line(pid)), None)


def test_a_hung_reader_is_replaced_and_the_server_is_not_ready_meanwhile(server):
    """No client is blamed: their requests are answered by its successor."""
    expected, reader = text(ask(server, short())), reader_pid(server)
    seen = []
    with ThreadPoolExecutor(2) as pool:
        os.kill(reader, signal.SIGSTOP)
        waiting = [pool.submit(ask, server, short(), timeout=PATIENCE) for _ in range(2)]

        def replaced():
            ready = wire.ask(server.url, None, "/ready", timeout=PATIENCE)
            seen.append((ready.status, ready.json["status"]))
            return seen[-1] == (200, "ready") and reader_pid(server) not in (reader, None)

        wait_until(replaced, lambda: f"/ready was {set(seen)}")
    assert (503, "stalled") in seen and all(status == 503 for status, state in seen if state != "ready")
    assert [text(answer.result()) for answer in waiting] == [expected] * 2
    assert not processes.command_line(reader)
    assert_nothing_left(server)


UNEXPECTED = """
import sys
if "gesso.serve.worker" in sys.orig_argv:
    from gesso import loading
    def load(*arguments, **options):
        raise RuntimeError("unforeseen")
    loading.load_weights = load
"""


def test_the_server_exits_with_the_reason_if_a_checkpoint_cannot_be_loaded(served_model, tmp_path, monkeypatch):
    """After an unexpected error, loading is retried, and the error is reported in the end."""
    (tmp_path / "sitecustomize.py").write_text(UNEXPECTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with processes.running_server("--model", str(served_model), "--device", "cpu", threads=1) as running:
        engines = set()

        def exited():
            engines.add(processes.engine_pid(running.pid))
            assert len(engines - {None}) <= ENGINES
            return running.process.poll() is not None

        wait_until(exited, lambda: "the server goes on with an engine that cannot load")
        assert running.process.returncode != 0
        assert "unforeseen" in running.log.read_text()
        assert len(engines - {None}) > 1
