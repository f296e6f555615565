"""Run tasks in the prepare process: keep it running, limit concurrent tasks, and choose their order.

Five lanes separate small bodies, large bodies, images to fetch, constraints to compile and answers to check. In each
lane clients take turns, and no client can hold all slots or fill the queue.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gesso.serve.errors import ApiError
from gesso.serve.fair_queue import FairQueue
from gesso.serve.keys import without_keys
from gesso.serve.prepare.request import ConstraintSource, PreparedRequest
from gesso.serve.protocol import SIZES, Ended, frame, read_frame
from gesso.serve.settings import QUEUE_SHARE, ServerSettings

logger = logging.getLogger("gesso.serve")

SMALL_BODY = 64 * 1024
SLOTS = {"small": 4, "large": 2, "remote": 4, "compile": 2, "check": 2}  # tasks at once per lane
STARTS = 3  # failed starts in a row after which requests are rejected
START_SECONDS = 60.0  # time for which a request waits for the process, which may start from a slow disk
PAUSE_SECONDS = 30.0  # longest pause between two starts
REMOTE_SECONDS = 15  # for a child that fetches images; it ends itself sooner, unless a name is not resolved
# Bytes of images that allow a request another second of CPU time. A photo of 16 MB takes two.
IMAGE_BYTES_PER_SECOND = 4 * 2**20
WALL_PER_CPU_SECOND = 4  # real time allowed per second of CPU time: the engine may keep the processors busy
CACHE_BYTES = 64 * 2**20  # of compiled constraints
Fetch = Callable[[str | None, Sequence[str]], bytes]  # the stored conversation that a request continues


@dataclass(eq=False)
class Ticket:
    client: str
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


class Lane:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.waiting: FairQueue[Ticket] = FairQueue()
        self.holding: Counter[str] = Counter()  # slots by client

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        ticket = Ticket(client)
        self.waiting.put(ticket)
        self._admit()
        try:
            await ticket.admitted.wait()
            yield
        finally:
            if ticket.admitted.is_set():
                self.holding[client] -= 1
                self.holding += Counter()  # drops clients that hold no slot
            else:
                self.waiting.remove(ticket)
            self._admit()

    def _admit(self) -> None:
        """Assign free slots. A client may hold all but one of them, so that another is admitted at once."""
        most = max(1, self.slots - 1)
        while self.holding.total() < self.slots:
            ticket = self.waiting.take_first(lambda ticket: self.holding[ticket.client] < most)
            if ticket is None:
                return
            self.holding[ticket.client] += 1
            ticket.admitted.set()


@dataclass(frozen=True)
class Compiled:
    """A compiled constraint, and warnings about its schema."""

    blob: bytes
    warnings: list[str]


@dataclass(eq=False)
class Compilation:
    """A constraint being compiled, and the number of requests that wait for it."""

    task: asyncio.Task[Compiled]
    waiting: int = 0


class PreparePool:
    def __init__(self, settings: Sequence[ServerSettings]) -> None:
        self.settings, self.limits = settings, settings[0].limits
        self.lanes = {name: Lane(slots) for name, slots in SLOTS.items()}
        self.compiling: dict[tuple[str, str], Compilation] = {}  # by client and key
        self.compiled: OrderedDict[str, Compiled] = OrderedDict()  # by key, least recently used first
        self._control: socket.socket | None = None
        self._running = asyncio.Event()
        self._failures = 0  # consecutive failed starts
        self._task: asyncio.Task[None] | None = None

    # --- the process ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_running(self) -> None:
        while True:
            try:
                code = await self._run_once()
                logger.error("prepare process died", extra={"fields": {"exit": code}})
            except Exception:  # no process or memory left, or a bug: neither may end this task
                logger.exception("prepare process failed")
            self._failures += 1
            await asyncio.sleep(min(0.5 * self._failures, PAUSE_SECONDS))

    async def _run_once(self) -> int:
        """Run one process until it ends and return its exit status."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gesso.serve.prepare.process",
                json.dumps([each.to_json() for each in self.settings]),
                stdin=theirs.fileno(),
                start_new_session=True,  # its children belong to its process group and are killed with it
                env={**without_keys(os.environ), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            theirs.close()
            try:
                if await asyncio.get_running_loop().sock_recv(ours, 1):
                    self._control, self._failures = ours, 0
                    self._running.set()
                return await process.wait()
            finally:
                self._running.clear()
                self._control = None
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    # --- work ---------------------------------------------------------------------------------------------------------

    async def prepare(
        self,
        endpoint: str,
        body: bytes,
        client: str,
        contexts: dict[str, int],
        adapters: dict[str, list[str]],
        sees: dict[str, bool],
        fetch: Fetch | None = None,
    ) -> tuple[bytes, bytes]:
        """Run the task of an endpoint. Return a JSON head and a blob.

        If the request has images of other servers, they are fetched, and the task runs again with their contents. A
        slot of the lane `remote` is held until the end, so that few requests have such images in memory.
        """
        task = {"endpoint": endpoint, "contexts": contexts, "adapters": adapters, "sees": sees}
        found = await self._prepare(task, body, client, fetch)
        if not found[0].startswith(b'{"remote"'):
            return found
        async with self._slot("remote", client):
            remote = json.loads(found[0])["remote"]
            fetching = {"endpoint": "remote_images"}
            sizes, images = await self._run(
                fetching, json.dumps(remote).encode(), REMOTE_SECONDS, "fetch its images", wall=REMOTE_SECONDS
            )
            fetched = [(image["url"], size) for image, size in zip(remote, json.loads(sizes), strict=True)]
            return await self._prepare({**task, "fetched": fetched}, images + body, client, fetch)

    async def _prepare(
        self, task: dict[str, Any], body: bytes, client: str, fetch: Fetch | None
    ) -> tuple[bytes, bytes]:
        lane = "small" if len(body) <= SMALL_BODY else "large"
        images = max(0, len(body) - self.limits.body_bytes)
        seconds = self.limits.prepare_seconds + images // IMAGE_BYTES_PER_SECOND
        async with self._slot(lane, client):
            return await self._run(task, body, seconds, "prepare", fetch)

    async def compile(self, source: ConstraintSource, client: str) -> Compiled:
        """Return a compiled constraint and its warnings.

        Requests of the same client for the same constraint share the work; the last one to leave cancels it. Different
        clients share only finished results, so that no client waits for the turn of another.
        """
        if (found := self.compiled.get(source.key)) is not None:
            self.compiled.move_to_end(source.key)
            return found
        key = client, source.key
        if (shared := self.compiling.get(key)) is None:
            shared = self.compiling[key] = Compilation(asyncio.create_task(self._compile(source, client)))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                self.compiling.pop(key, None)
                shared.task.cancel()

    async def _compile(self, source: ConstraintSource, client: str) -> Compiled:
        task = {"endpoint": "compile", "model": source.model}
        async with self._slot("compile", client):
            if (found := self.compiled.get(source.key)) is not None:  # compiled for another client in the meantime
                return found
            warnings, blob = await self._run(task, source.source.encode(), self.limits.compile_seconds, "compile")
        found = self.compiled[source.key] = Compiled(blob, json.loads(warnings))
        while sum(len(each.blob) for each in self.compiled.values()) > CACHE_BYTES:
            self.compiled.popitem(last=False)
        return found

    async def check(self, request: PreparedRequest, ended: Ended, client: str) -> str | None:
        """Return what is wrong with an answer under its schema; None if nothing is.

        In a child process, because a schema decides how long it takes.
        """
        task = {"endpoint": "check", "model": request.served, "tools": request.tools, "one_call": request.one_call}
        answer = json.dumps({"text": ended.text, "tokens": ended.tokens}).encode()
        async with self._slot("check", client):
            body = request.checked_by + b"\n" + answer
            _, problem = await self._run(task, body, self.limits.prepare_seconds, "check")
        return problem.decode() or None

    @asynccontextmanager
    async def _slot(self, lane: str, client: str) -> AsyncIterator[None]:
        """Wait for a slot of a lane and for the process, or reject the request."""
        own = sum(ticket.client == client for ticket in self.lanes[lane].waiting)
        total = sum(len(each.waiting) for each in self.lanes.values())
        most = max(1, self.limits.queue // QUEUE_SHARE) if self.settings[0].shared else self.limits.queue
        if own >= most or total >= self.limits.queue:
            message = "too many requests are waiting to be prepared; try again in 1 s"
            raise ApiError(429, message, code="queue_full", retry_after=1)
        async with self.lanes[lane].slot(client):
            if self._failures >= STARTS:
                raise ApiError(503, "the prepare process does not start; see the server's log")
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self._running.wait()
            except TimeoutError:
                raise ApiError(503, "the prepare process has not started yet; try again later") from None
            yield

    async def _run(
        self,
        task: dict[str, Any],
        body: bytes,
        seconds: int,
        verb: str,
        fetch: Fetch | None = None,
        wall: float | None = None,
    ) -> tuple[bytes, bytes]:
        """Run a task in a child with `seconds` of CPU time, and `wall` of real time."""
        head = json.dumps({**task, "seconds": seconds, "memory": self.limits.prepare_bytes}).encode()
        try:
            async with asyncio.timeout(wall or WALL_PER_CPU_SECOND * seconds):
                answer, blob = await self._in_child(frame(head, body), fetch)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            if not self._running.is_set():
                raise ApiError(503, "the prepare process was restarted; try again") from None
            raise ApiError(
                400,
                f"this request takes more than {seconds} s to {verb}, or crashes the process that does it; simplify it",
                code="too_complex",
            ) from None
        if answer.startswith(b'{"error"'):
            error = json.loads(answer)["error"]
            raise ApiError(error.pop("status"), error.pop("message"), **error)
        return answer, blob

    async def _in_child(self, request: bytes, fetch: Fetch | None) -> tuple[bytes, bytes]:
        """Run a request in a new child, and kill the child if this call is cancelled.

        The request is sent once the process id is known. Until then, closing the socket ends the child. Only the child
        parses the request, so it may ask for the stored conversation that the request continues.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            if self._control is None:
                raise ConnectionError
            socket.send_fds(self._control, [b"x"], [theirs.fileno()])
        reader, writer = await asyncio.open_connection(sock=ours)
        child = 0
        try:
            try:
                child, _ = SIZES.unpack(await reader.readexactly(SIZES.size))
            except asyncio.IncompleteReadError:
                if not self._running.is_set():
                    raise
                raise ApiError(503, "the server is short of processes or memory; try again later") from None
            writer.write(request)
            answer = await read_frame(reader)
            if fetch is not None and answer[0].startswith(b'{"fetch"'):
                writer.write(frame(b"", fetch(*json.loads(answer[0])["fetch"])))
                answer = await read_frame(reader)
            child = 0
            return answer
        finally:
            writer.transport.abort()
            if child:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
