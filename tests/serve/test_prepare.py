"""The pool that prepares requests and compiles constraints: order of clients, and failing processes."""

import asyncio
import contextlib
import os
import select
import socket
import sys
from pathlib import Path

import pytest

from gesso.serve.errors import ApiError
from gesso.serve.prepare import pool as prepare_pool
from gesso.serve.prepare.pool import PreparePool
from gesso.serve.prepare.request import ConstraintSource
from gesso.serve.protocol import SIZES
from gesso.serve.settings import EngineSettings, Limits, ServerSettings
from tests.waiting import wait_until


@pytest.fixture
def pool():
    """A pool without a process, for tests that simulate its children."""
    pool = PreparePool([ServerSettings(limits=Limits(queue=16))])
    pool._running.set()
    return pool


class Children:
    """Simulated child processes. Each ends when `release` is set, or at once if the request contains "quick"."""

    def __init__(self, pool):
        self.requests, self.release = [], asyncio.Event()
        pool._in_child = self.answer

    async def answer(self, request, fetch):
        self.requests.append(request)
        if b"quick" not in request:
            await self.release.wait()
        return b"[]", b"compiled"


async def compile(pool, client, regex):
    return (await pool.compile(ConstraintSource.of("tiny", {"regex": regex}), client)).blob


def tokenize(pool, client, body):
    return pool.prepare("tokenize", body, client, {"tiny": 100}, {}, {"tiny": False})


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def started(pool):
    await pool.start()
    try:
        yield
    finally:
        await pool.stop()


# --- order ------------------------------------------------------------------------------------------------------------


ASKED = {
    "constraints": lambda pool, number: compile(pool, "a", f"slow{number}"),
    "bodies": lambda pool, number: tokenize(pool, "a", b""),
}


@pytest.mark.parametrize("kind", ASKED)
def test_a_client_with_many_waiting_requests_gets_429_and_others_are_served(pool, kind):
    async def scene():
        children = Children(pool)
        asked = [asyncio.create_task(ASKED[kind](pool, i)) for i in range(40)]
        await settle()
        rejected = [task.exception() for task in asked if task.done()]
        assert {(error.status, error.code, error.retry_after) for error in rejected} == {(429, "queue_full", 1)}
        assert sum(len(lane.waiting) for lane in pool.lanes.values()) == 4  # a fourth of the queue
        async with asyncio.timeout(5):
            assert await compile(pool, "b", "quick") == b"compiled"
            assert await tokenize(pool, "b", b"quick") == (b"[]", b"compiled")
        children.release.set()
        await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(scene())


def test_a_client_may_have_one_waiting_request_in_a_queue_of_one():
    async def scene():
        pool = PreparePool([ServerSettings(limits=Limits(queue=1))])
        pool._running.set()
        children = Children(pool)
        asked = [asyncio.create_task(compile(pool, "a", f"slow{i}")) for i in range(2)]
        await settle()
        children.release.set()
        assert await asyncio.gather(*asked) == [b"compiled"] * 2

    asyncio.run(scene())


def test_the_queue_is_bounded_for_all_clients_together(pool):
    async def scene():
        children = Children(pool)
        asked = [asyncio.create_task(compile(pool, f"client {i}", f"slow{i}")) for i in range(18)]
        await settle()
        with pytest.raises(ApiError) as rejected:
            await compile(pool, "one more", "quick")
        assert rejected.value.status == 429
        children.release.set()
        await asyncio.gather(*asked)

    asyncio.run(scene())


def test_clients_do_not_wait_for_each_others_compilation(pool):
    async def scene():
        children = Children(pool)
        slow = [asyncio.create_task(compile(pool, "a", f"slow{i}")) for i in range(3)]
        await settle()
        common = [asyncio.create_task(compile(pool, "a", "quick")) for _ in range(2)]
        await settle()
        async with asyncio.timeout(5):
            assert await compile(pool, "b", "quick") == b"compiled"
        assert not any(task.done() for task in [*slow, *common])
        children.release.set()
        assert set(await asyncio.gather(*slow, *common)) == {b"compiled"}
        assert sum(b"quick" in request for request in children.requests) == 1  # client a used the result of client b

    asyncio.run(scene())


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_request_is_sent_only_to_a_child_whose_process_id_is_known(pool):
    """Otherwise the child could not be killed if the client left before the id arrived."""

    async def scene():
        ours, reader = socket.socketpair()
        with ours, reader:
            pool._control = ours
            task = asyncio.create_task(tokenize(pool, "a", b"work"))
            await settle()
            _, descriptors, _, _ = socket.recv_fds(reader, 1, 1)
            with socket.socket(fileno=descriptors[0]) as channel:
                await asyncio.sleep(0.05)
                assert not select.select([channel], [], [], 0)[0]
                task.cancel()
                await asyncio.wait([task])
                await settle()
                assert channel.recv(1) == b""

    asyncio.run(scene())


def test_a_prepare_process_that_fails_to_start_is_started_later(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nprintf r >&0\nexec sleep 60\n")  # reports that it is ready, as the prepare process does
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    start, failures = asyncio.create_subprocess_exec, [OSError("no memory"), OSError("no process")]

    async def starts(*arguments, **options):
        if failures:
            raise failures.pop()
        return await start(*arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", starts)

    async def scene():
        pool = PreparePool([ServerSettings()])
        Children(pool)
        async with started(pool), asyncio.timeout(20):
            assert await tokenize(pool, "a", b"quick") == (b"[]", b"compiled")
        assert not failures

    asyncio.run(scene())


def test_a_request_waits_a_limited_time_for_the_prepare_process_and_frees_its_slot(monkeypatch, pool):
    monkeypatch.setattr(prepare_pool, "START_SECONDS", 0.05)

    async def scene():
        pool._running.clear()
        async with asyncio.timeout(5):
            with pytest.raises(ApiError, match="not started") as rejected:
                await tokenize(pool, "a", b"quick")
        assert rejected.value.status == 503
        assert not pool.lanes["small"].holding

    asyncio.run(scene())


def real_pool(served_model):
    return PreparePool([ServerSettings(engine=EngineSettings(model=str(served_model)), name="tiny")])


def test_a_failing_fork_fails_only_its_request(monkeypatch, tmp_path, served_model):
    full = tmp_path / "full"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib\n"
        "fork = os.fork\n"
        "def limited():\n"
        f"    if pathlib.Path({str(full)!r}).exists():\n"
        "        raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "    return fork()\n"
        "os.fork = limited\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    body = b'{"prompt": "x"}'

    async def scene():
        pool = real_pool(served_model)
        async with started(pool):
            answer = await tokenize(pool, "a", body)
            control = pool._control
            full.touch()
            with pytest.raises(ApiError, match="short of processes or memory") as rejected:
                await tokenize(pool, "a", body)
            assert rejected.value.status == 503
            full.unlink()
            assert await tokenize(pool, "a", body) == answer
            assert pool._control is control  # not restarted

    asyncio.run(scene())


def test_a_child_without_a_request_ends_when_the_server_closes_its_socket(served_model):
    async def scene():
        pool = real_pool(served_model)
        async with started(pool):
            await pool._running.wait()
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    socket.send_fds(pool._control, [b"x"], [theirs.fileno()])
                child, _ = SIZES.unpack(await asyncio.to_thread(ours.recv, SIZES.size))
            await asyncio.to_thread(wait_until, lambda: not Path(f"/proc/{child}").exists())

    asyncio.run(scene())
