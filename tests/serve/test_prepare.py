"""The pool that prepares requests and compiles constraints: order of clients, and failing processes."""

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from gesso.chat import template
from gesso.constraints.spec import ConstraintSpec
from gesso.errors import CheckpointError
from gesso.serve.entry import ModelEntry
from gesso.serve.errors import ApiError
from gesso.serve.prepare import pool as prepare_pool
from gesso.serve.prepare import process, reader
from gesso.serve.prepare.builder import source_of
from gesso.serve.prepare.pool import PreparePool
from gesso.serve.prepare.reader import Reader
from gesso.serve.settings import EngineSettings, ServerLimits, ServerSettings
from gesso.serve.wire import Compile, Compiled, ModelState, Readiness, Reply, frame
from tests.waiting import PATIENCE, wait_until
from tools.load import processes

PROCESS = "gesso.serve.prepare.process"


@pytest.fixture
def pool():
    """A pool without a process, for tests that simulate its children."""
    return PreparePool([ServerSettings(limits=ServerLimits(queue=16))])


class Children:
    """Simulated child processes. Each ends when `release` is set, or at once if the request contains "quick"."""

    def __init__(self, pool):
        self.requests, self.release, self.killed = [], asyncio.Event(), 0
        pool.reader.begin = self.begin

    async def begin(self):
        return self

    async def exchange(self, task, fetch):
        request = bytes(frame(task))
        self.requests.append(request)
        if b"quick" not in request:
            await self.release.wait()
        return Compiled(b"compiled", []) if isinstance(task.work, Compile) else Reply(b"tokens")

    def disconnect(self):
        pass

    def kill(self):
        self.killed += 1


async def compile(pool, client, regex):
    return (await pool.compile(source_of("tiny", ConstraintSpec(regex=regex)), client)).term


def tokenize(pool, client, body):
    return pool.prepare("tokenize", body, client, models(100))


def models(context):
    """Return the states of the models, of which there is one."""
    readiness = Readiness(max_length=context, write="canvas", canvas_length=None, vision=False)
    return {"tiny": ModelState(readiness=readiness, adapters=[])}


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
            assert await tokenize(pool, "b", b"quick") == Reply(b"tokens")
        children.release.set()
        await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(scene())


def test_a_client_may_have_one_waiting_request_in_a_queue_of_one():
    async def scene():
        pool = PreparePool([ServerSettings(limits=ServerLimits(queue=1))])
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
        ours, process = socket.socketpair()
        with ours, process:
            pool.reader._note_heartbeat(ours)
            task = asyncio.create_task(tokenize(pool, "a", b"work"))
            await settle()
            _, descriptors, _, _ = socket.recv_fds(process, 1, 1)
            with socket.socket(fileno=descriptors[0]) as channel:
                await asyncio.sleep(0.05)
                assert not select.select([channel], [], [], 0)[0]
                task.cancel()
                await asyncio.wait([task])
                await settle()
                assert channel.recv(1) == b""

    asyncio.run(scene())


def test_a_prepare_process_that_fails_to_start_is_started_later(pool):
    failures = [OSError("no memory"), OSError("no process")]

    class Unlucky(Reader):
        async def _run_once(self):
            if failures:
                raise failures.pop()
            ours, process = socket.socketpair()
            with ours, process:
                self._note_heartbeat(ours)
                return await asyncio.Event().wait()

    async def scene():
        pool.reader = Unlucky(pool.settings)
        async with started(pool), asyncio.timeout(PATIENCE):
            await pool.reader._ready.wait()
        assert not failures

    asyncio.run(scene())


def test_a_request_waits_a_limited_time_for_the_prepare_process_and_frees_its_slot(monkeypatch, pool):
    monkeypatch.setattr(reader, "START_SECONDS", 0.05)

    async def scene():
        async with asyncio.timeout(5):
            with pytest.raises(ApiError, match="not started") as rejected:
                await tokenize(pool, "a", b"quick")
        assert rejected.value.status == 503
        assert not pool.lanes["small"].holding

    asyncio.run(scene())


# --- a real process --------------------------------------------------------------------------------------------------

BODY = b'{"prompt": "x"}'
# Python runs `sitecustomize.py` at the start of each process.
FORK_MAY_FAIL = """\
import os, pathlib
fork = os.fork
def limited():
    if pathlib.Path({full!r}).exists():
        raise BlockingIOError(11, 'Resource temporarily unavailable')
    return fork()
os.fork = limited
"""


@dataclass
class RealPool:
    """A pool with a process, which an event loop in another thread runs, and a file that makes forks fail."""

    pool: PreparePool
    loop: asyncio.AbstractEventLoop
    full: Path

    def run(self, scene):
        return asyncio.run_coroutine_threadsafe(scene, self.loop).result(PATIENCE)

    def tokenize(self, client="a"):
        return self.run(tokenize(self.pool, client, BODY))

    def process(self):
        """Return the id of the process."""
        (pid,) = [pid for pid in processes.children(os.getpid()) if PROCESS in processes.command_line(pid)]
        return pid


@pytest.fixture(scope="module")
def real(served_model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("fork")
    full = directory / "full"
    (directory / "sitecustomize.py").write_text(FORK_MAY_FAIL.format(full=str(full)))
    limits = ServerLimits(heartbeat=4, prepare_seconds=1, prepare_bytes=2**33)
    settings = ServerSettings(engine=EngineSettings(model=str(served_model)), name="tiny", limits=limits)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = RealPool(PreparePool([settings]), loop, full)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(directory), *sys.path]))
        running.run(running.pool.start())
        yield running
        running.run(running.pool.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def answer(real):
    return real.tokenize()


def test_a_failing_fork_fails_only_its_request(real, answer):
    before = real.process()
    real.full.touch()
    with pytest.raises(ApiError, match="short of processes or memory") as rejected:
        real.tokenize()
    assert rejected.value.status == 503
    real.full.unlink()
    assert real.tokenize() == answer
    assert real.process() == before, "it was not restarted"


def test_a_child_without_a_request_ends_when_the_server_closes_its_socket(real, answer):
    async def begin():
        return await real.pool.reader.begin()

    child = real.run(begin())
    assert processes.command_line(child.pid)
    real.loop.call_soon_threadsafe(child.disconnect)
    wait_until(lambda: not processes.command_line(child.pid))


def test_a_request_that_no_child_has_begun_survives_the_death_of_the_process(real, answer):
    os.kill(real.process(), signal.SIGKILL)
    assert real.tokenize() == answer


def test_a_process_that_only_waits_is_not_replaced_and_a_hung_one_is(real, answer):
    """The requests that wait for the hung process are answered by its successor."""
    hung = real.process()
    time.sleep(real.pool.limits.heartbeat / 2 + 0.5)
    assert real.process() == hung
    os.kill(hung, signal.SIGSTOP)

    async def ask():
        async with asyncio.timeout(PATIENCE):
            waiting = [asyncio.create_task(tokenize(real.pool, client, BODY)) for client in "abc"]
            while real.pool.reader.state == "ready":
                await asyncio.sleep(0.05)
            assert real.pool.reader.state == "stalled"
            return await asyncio.gather(*waiting)

    assert real.run(ask()) == [answer] * 3
    assert real.pool.reader.state == "ready" and real.process() != hung


def test_a_stopped_child_fails_only_its_request_and_is_killed(real, answer):
    """It has four seconds of real time for its second of processor time."""
    reader, stopped = real.pool.reader, []

    async def begin_and_stop():
        stopped.append(await Reader.begin(reader))
        os.kill(stopped[0].pid, signal.SIGSTOP)
        return stopped[0]

    reader.begin = begin_and_stop
    try:
        with pytest.raises(ApiError) as rejected:
            real.tokenize()
    finally:
        del reader.begin
    assert rejected.value.status == 503 and rejected.value.retry_after > 0
    wait_until(lambda: not processes.command_line(stopped[0].pid))
    assert real.tokenize() == answer


def test_a_request_that_takes_too_much_processor_time_is_too_complex(real, answer):
    body = json.dumps({"prompt": "Hello, world. " * 500_000}).encode()
    asked = real.pool.prepare("tokenize", body, "a", models(10**9))
    with pytest.raises(ApiError, match="takes more than 1 s to prepare") as rejected:
        real.run(asked)
    assert (rejected.value.status, rejected.value.code) == (400, "too_complex")


@pytest.mark.parametrize(("used", "status"), [(0.1, 503), (0.9, 400)])
def test_a_child_that_does_not_end_is_the_fault_of_its_request_only_if_it_computes(pool, monkeypatch, used, status):
    monkeypatch.setattr(prepare_pool, "WALL_PER_CPU_SECOND", 0.01)

    async def scene():
        children = Children(pool)
        children.processor_seconds = lambda: used * pool.limits.prepare_seconds
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ApiError) as rejected:
                await tokenize(pool, "a", b"slow")
        assert rejected.value.status == status
        assert (rejected.value.code, rejected.value.retry_after > 0) == (
            (None, True) if status == 503 else ("too_complex", False)
        )
        assert children.killed == 1

    asyncio.run(scene())


# --- warming up -------------------------------------------------------------------------------------------------------


def settings_with(served_model, tmp_path, template):
    directory = shutil.copytree(served_model, tmp_path / "model")
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    return ServerSettings(engine=EngineSettings(model=str(directory)), name="tiny")


def entry_with(served_model, tmp_path, template):
    return ModelEntry(settings_with(served_model, tmp_path, template))


TOO_DEEP = "{{ " + "[" * 5000 + "]" * 5000 + " }}"


def test_children_inherit_the_compiled_chat_template(served_model, tmp_path, monkeypatch):
    entry = entry_with(served_model, tmp_path, "{{ messages[0].content }}")
    process.warm_up_template(entry)
    monkeypatch.setattr(template, "environment", None)  # nothing can be compiled now
    assert entry.tokenizer.chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(("source", "reason"), [("{% if %}", "line 1"), (TOO_DEEP, "compiled")])
def test_a_template_that_does_not_compile_is_only_an_error_of_chats(served_model, tmp_path, capfd, source, reason):
    entry = entry_with(served_model, tmp_path, source)
    process.warm_up_template(entry)
    assert "chats with tiny will be rejected" in capfd.readouterr().err
    assert entry.tokenizer.encode("x")
    with pytest.raises(CheckpointError, match=reason):
        entry.tokenizer.chat([{"role": "user", "content": "x"}])


def test_the_process_compiles_the_template_when_it_starts(served_model, tmp_path, capfd):
    """A template that fails shows it: no request is sent."""
    pool = PreparePool([settings_with(served_model, tmp_path, "{% if %}")])

    async def scene():
        async with started(pool), asyncio.timeout(PATIENCE):
            await pool.reader._ready.wait()

    asyncio.run(scene())
    assert "chats with tiny will be rejected" in capfd.readouterr().err
