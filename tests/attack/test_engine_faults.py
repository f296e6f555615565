"""If an engine hangs, dies or cannot load, the server reports it, replaces it, or exits with the reason."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.attack.watching import ask, assert_nothing_left, short, text
from tests.load import processes, wire

pytestmark = pytest.mark.attack

HANG_SECONDS = 40.0  # until a hung engine is replaced
EXIT_SECONDS = 60.0  # until a server exits because a checkpoint cannot be loaded
ENGINES = 5  # most engines it may start before that


def test_a_hung_engine_is_replaced_and_its_requests_end_with_the_reason(server):
    expected, engine = text(ask(server, short())), processes.engine_pid(server.process.pid)
    endless = short(max_tokens=2000, diffusion={"steps": 1000, "stopping": "fixed", "canvas_length": 16})
    seen = set()
    with ThreadPoolExecutor(2) as pool:
        started = pool.submit(ask, server, endless, timeout=HANG_SECONDS)
        server.wait_metric("gesso_engine_requests", 1)
        os.kill(engine, signal.SIGSTOP)
        try:
            waiting = pool.submit(ask, server, short(), timeout=HANG_SECONDS)
            until = time.monotonic() + HANG_SECONDS
            while 503 not in seen or 200 not in seen or processes.engine_pid(server.process.pid) in (engine, None):
                assert time.monotonic() < until, f"/ready was {seen} for {HANG_SECONDS:g} s"
                seen.add(wire.ask(server.url, None, "/ready", timeout=5).status)
                time.sleep(0.1)
        finally:
            if processes.engine_pid(server.process.pid) == engine:
                os.kill(engine, signal.SIGCONT)
    assert started.result().status == 500 and "engine" in started.result().message
    assert waiting.result().status == 200 or "engine" in waiting.result().message
    assert not processes.command_line(engine)
    assert text(ask(server, short())) == expected
    assert_nothing_left(server)


UNEXPECTED = """
import sys
if "gesso.serve.worker" in sys.orig_argv:
    from gesso.checkpoint import huggingface
    def load(*arguments):
        raise RuntimeError("unforeseen")
    huggingface.load = load
"""


def test_the_server_exits_with_the_reason_if_a_checkpoint_cannot_be_loaded(served_model, tmp_path, monkeypatch):
    """After an unexpected error, loading is retried, and the error is reported in the end."""
    (tmp_path / "sitecustomize.py").write_text(UNEXPECTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with processes.running_server("--model", str(served_model), "--device", "cpu", threads=1) as running:
        until, engines = time.monotonic() + EXIT_SECONDS, set()
        while running.process.poll() is None:
            assert time.monotonic() < until, "the server goes on with an engine that cannot load"
            engines.add(processes.engine_pid(running.pid))
            assert len(engines - {None}) <= ENGINES
            time.sleep(0.05)
        assert running.process.returncode != 0
        assert "unforeseen" in running.log.read_text()
        assert len(engines - {None}) > 1
