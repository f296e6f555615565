"""A server without keys: which requests it accepts, and how it ends. The last test ends it."""

import subprocess
import time

import pytest

from tests.attack.watching import assert_refused, short
from tests.waiting import PATIENCE
from tools.load import attacks, processes, wire
from tools.load.wire import COMPLETIONS

pytestmark = pytest.mark.attack

FRAME_BYTES = 32_768  # limit on messages between its processes


@pytest.fixture(scope="module")
def open_server(served_model):
    arguments = ("--model", str(served_model), "--device", "cpu", "--max-batch", "2", "--drain", "2")
    with processes.running_server(*arguments, threads=1, frame_bytes=FRAME_BYTES) as running:
        running.wait_ready()
        yield running


def test_a_forged_address_is_ignored(open_server):
    """Without keys, a client is identified by its address, so it must not be able to choose one."""
    answer = wire.ask(open_server.url, None, COMPLETIONS, short(), extra={"X-Forwarded-For": "203.0.113.7"})
    assert answer.status == 200
    time.sleep(0.2)
    assert "203.0.113.7" not in open_server.log.read_text()


@pytest.mark.parametrize("kind", ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""))
def test_a_web_page_cannot_send_a_request(open_server, kind):
    """A web page may send these content types to any address without permission, but not JSON."""
    extra = {"Content-Type": kind, "Origin": "https://evil.example"}
    answer = wire.ask(open_server.url, None, COMPLETIONS, short(), extra=extra)
    assert_refused(answer)


def test_an_oversized_message_fails_only_its_request(open_server):
    """Drafts of a whole canvas with 20 candidates exceed the limit on messages."""
    engine = processes.engine_pid(open_server.pid)
    expected = wire.ask(open_server.url, None, COMPLETIONS, short()).json["choices"]
    diffusion = {"canvas_length": 256, "steps": 4, "drafts": {"candidates": 20}}
    long = short(max_tokens=256, stream=True, diffusion=diffusion)
    answer = wire.ask(open_server.url, None, COMPLETIONS, long, timeout=PATIENCE)
    assert b"exceeds the limit" in answer.content
    assert wire.ask(open_server.url, None, COMPLETIONS, short()).json["choices"] == expected
    assert processes.engine_pid(open_server.pid) == engine


def test_a_server_under_attack_ends_on_sigterm(open_server):
    """SIGTERM during endless requests: draining is bounded and ends all processes."""
    endless = short(max_tokens=2000, diffusion={"steps": 1000, "stopping": "fixed", "canvas_length": 16})
    bodies = [endless, endless, short(regex=attacks.slow_regex(3))]
    connections = [wire.send(open_server.url, None, COMPLETIONS, body) for body in bodies]
    time.sleep(0.5)
    started = processes.descendants(open_server.pid)
    open_server.process.terminate()
    try:
        open_server.process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail("the server did not end")
    finally:
        for connection in connections:
            connection.close()
    assert not processes.wait_until_gone(started, PATIENCE)
