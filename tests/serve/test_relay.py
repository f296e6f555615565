"""The output of a server: a reader that stops or leaves holds up no process."""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from gesso.serve.relay import LINE_BYTES, Relay
from tests.serving import Running
from tests.waiting import PATIENCE, wait_until

SMALLEST_PIPE = 4096


@pytest.fixture
def output():
    """A pipe that stands for stderr, and a list to count lost lines in."""
    source, entrance = os.pipe()
    yield source, entrance, []
    for descriptor in (source, entrance):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def relay(output, **options):
    _, entrance, dropped = output
    return Relay(entrance, on_drop=lambda: dropped.append(1), **options)


def test_lines_are_forwarded_in_order_and_completely(output):
    source, entrance, dropped = output
    forwarding = relay(output)
    written = b"".join(b"line %d\n" % number for number in range(100)) + b"x" * (3 * LINE_BYTES) + b"\nan end"
    os.write(entrance, written)
    forwarding.close(PATIENCE)
    received = b""
    while len(received) < len(written):
        received += os.read(source, 1 << 16)
    assert received == written and not dropped


def test_a_reader_that_stops_costs_lines_and_blocks_no_writer(output):
    source, entrance, dropped = output
    fcntl.fcntl(entrance, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    forwarding = relay(output, lines=8)
    written = [b"%05d %s\n" % (number, b"x" * 1000) for number in range(200)]
    for line in written:
        os.write(entrance, line)
    wait_until(lambda: len(dropped) > 150)
    os.set_blocking(source, False)
    received = bytearray()

    def all_accounted_for():
        with contextlib.suppress(BlockingIOError):
            received.extend(os.read(source, 1 << 16))
        return received.count(b"\n") + len(dropped) == 200

    wait_until(all_accounted_for)
    forwarding.close(PATIENCE)
    lines = received.splitlines(keepends=True)
    assert lines[:8] == written[:8]
    assert [line for line in written if line in lines] == lines  # whole ones, in order


def test_a_reader_that_leaves_costs_lines_only(output):
    source, entrance, dropped = output
    forwarding = relay(output)
    os.close(source)
    os.write(entrance, b"one\ntwo\n")
    wait_until(lambda: len(dropped) == 2)
    forwarding.close(PATIENCE)


@contextlib.contextmanager
def unread(served_model):
    """Run a server whose output goes to a full pipe."""
    source, entrance = os.pipe()
    fcntl.fcntl(entrance, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    os.write(entrance, b"x" * SMALLEST_PIPE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ["--model", str(served_model), "--name", "tiny", "--device", "cpu", "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "gesso", "serve", *arguments],
        stdout=entrance,
        stderr=entrance,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield Running(process, f"http://127.0.0.1:{port}", None)
    finally:
        process.kill()
        process.wait()
        os.close(source)
        os.close(entrance)


def test_a_server_whose_output_nobody_reads_answers_and_ends(served_model):
    with unread(served_model) as server:

        def answers():
            with contextlib.suppress(httpx.ConnectError):
                return server.http.get("/ready").status_code == 200

        wait_until(answers)
        for _ in range(100):  # several times what the pipe holds
            assert server.http.get("/v1/models").status_code == 200
        assert server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 4}).status_code == 200
        os.kill(server.engine_pid(), signal.SIGKILL)  # its successor inherits the same output
        wait_until(lambda: server.metric("gesso_engine_restarts_total") == 1)
        wait_until(answers)
        server.http.close()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
