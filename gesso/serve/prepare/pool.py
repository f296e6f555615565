"""The event loop's side of `prepare_process`: how many requests are read at once, and whose turn it is.

Three lanes keep kinds of work apart: small bodies, large bodies, and constraints to compile. In each of them clients
take turns, and no client holds all places or fills the queue.
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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gesso.serve.errors import ApiError
from gesso.serve.fair_queue import FairQueue
from gesso.serve.keys import without_keys
from gesso.serve.prepare.request import Source
from gesso.serve.protocol import SIZES, Constraint, frame, sizes
from gesso.serve.settings import QUEUE_SHARE, ServerSettings

logger = logging.getLogger("gesso.serve")

SMALL_BODY = 64 * 1024
PLACES = {"small": 4, "large": 2, "compile": 2}
STARTS = 3  # attempts to start the process before requests are refused
START_SECONDS = 60.0  # for which a request waits for the process: it may have to be imported from a slow disk
PAUSE_SECONDS = 30.0  # longest pause between two starts
PATIENCE = 4  # real time allowed per second of CPU time: the engine may take the processors
KEPT_BYTES = 64 * 2**20  # of compiled constraints


@dataclass(eq=False)
class Turn:
    client: str
    come: asyncio.Event = field(default_factory=asyncio.Event)


class Lane:
    def __init__(self, places: int) -> None:
        self.places = places
        self.waiting: FairQueue[Turn] = FairQueue()
        self.holding: Counter[str] = Counter()

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        turn = Turn(client)
        self.waiting.put(turn)
        self._admit()
        try:
            await turn.come.wait()
            yield
        finally:
            if turn.come.is_set():
                self.holding[client] -= 1
                self.holding += Counter()  # forget clients that hold nothing
            else:
                self.waiting.remove(turn)
            self._admit()

    def _admit(self) -> None:
        """Hand out free places. A client may hold all but one of them, so that another gets in at once."""
        most = max(1, self.places - 1)
        while self.holding.total() < self.places:
            turn = self.waiting.take_first(lambda turn: self.holding[turn.client] < most)
            if turn is None:
                return
            self.holding[turn.client] += 1
            turn.come.set()


class PreparePool:
    def __init__(self, settings: Sequence[ServerSettings]) -> None:
        self.settings, self.limits = settings, settings[0].limits
        self.lanes = {name: Lane(places) for name, places in PLACES.items()}
        self.compiling: dict[tuple[str, str], Compiling] = {}  # by client and key
        self.kept: OrderedDict[str, bytes] = OrderedDict()  # compiled constraints by key
        self._control: socket.socket | None = None
        self._running = asyncio.Event()
        self._failures = 0  # starts in a row that failed
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
                logger.error("request reader died", extra={"fields": {"exit": code}})
            except Exception:  # no process or memory for it, or a defect of ours: neither may end this task
                logger.exception("request reader failed")
            self._failures += 1
            await asyncio.sleep(min(0.5 * self._failures, PAUSE_SECONDS))

    async def _run_once(self) -> int:
        """Run one process to its end and return its exit status."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gesso.serve.prepare.process",
                json.dumps([each.to_json() for each in self.settings]),
                stdin=theirs.fileno(),
                start_new_session=True,  # a process group of its own, which ends as one
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

    async def prepare(self, endpoint: str, body: bytes, client: str, contexts: dict[str, int]) -> tuple[bytes, bytes]:
        lane = "small" if len(body) <= SMALL_BODY else "large"
        task = {"endpoint": endpoint, "contexts": contexts}
        async with self._place(lane, client):
            return await self._run(task, body, self.limits.prepare_seconds, "read")

    async def compile(self, constraint: Constraint, source: Source, served: str, client: str) -> bytes:
        """Return a compiled constraint.

        A client's requests for the same one share the work; the last to leave cancels it. Clients share only what is
        finished: nobody waits for the turn of another.
        """
        if (found := self.kept.get(constraint.key)) is not None:
            self.kept.move_to_end(constraint.key)
            return found
        key = client, constraint.key
        if (shared := self.compiling.get(key)) is None:
            work = self._compile(constraint, source, served, client)
            shared = self.compiling[key] = Compiling(asyncio.create_task(work))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                self.compiling.pop(key, None)
                shared.task.cancel()

    async def _compile(self, constraint: Constraint, source: Source, served: str, client: str) -> bytes:
        task = {"endpoint": "compile", "model": served, "tools": source.tools, "pinned": source.pinned}
        regex = source.regex.encode("utf-8", "surrogatepass")
        async with self._place("compile", client):
            if (found := self.kept.get(constraint.key)) is not None:  # compiled for another client in the meantime
                return found
            _, found = await self._run(task, regex, self.limits.compile_seconds, "compile")
        self.kept[constraint.key] = found
        while sum(map(len, self.kept.values())) > KEPT_BYTES:
            self.kept.popitem(last=False)
        return found

    @asynccontextmanager
    async def _place(self, lane: str, client: str) -> AsyncIterator[None]:
        """Wait for a place in a lane and for the process, or refuse."""
        own = sum(turn.client == client for turn in self.lanes[lane].waiting)
        everybody = sum(len(each.waiting) for each in self.lanes.values())
        most = max(1, self.limits.queue // QUEUE_SHARE) if self.settings[0].shared else self.limits.queue
        if own >= most or everybody >= self.limits.queue:
            raise ApiError(429, "too many requests wait to be read; try again in 1 s", code="queue_full", retry_after=1)
        async with self.lanes[lane].place(client):
            if self._failures >= STARTS:
                raise ApiError(503, "the process that reads requests does not start; see the server's log")
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self._running.wait()
            except TimeoutError:
                raise ApiError(503, "the process that reads requests has not started yet; ask again later") from None
            yield

    async def _run(self, task: dict[str, Any], body: bytes, seconds: int, verb: str) -> tuple[bytes, bytes]:
        head = json.dumps({**task, "seconds": seconds, "memory": self.limits.prepare_bytes}).encode()
        try:
            async with asyncio.timeout(PATIENCE * seconds):
                answer, blob = await self._in_child(frame(head, body))
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            if not self._running.is_set():
                raise ApiError(503, "the process that reads requests was restarted; ask again") from None
            raise ApiError(
                400, f"this request takes more than {seconds} s to {verb}; make it simpler", code="too_complex"
            ) from None
        if answer.startswith(b'{"error"'):
            error = json.loads(answer)["error"]
            raise ApiError(error.pop("status"), error.pop("message"), **error)
        return answer, blob

    async def _in_child(self, request: bytes) -> tuple[bytes, bytes]:
        """Have a new child answer; it is killed if we leave before it has.

        It gets its request only once its process id is known. Until then, it ends by itself when we close the socket.
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
                raise ApiError(503, "the server is short of processes or memory; ask again later") from None
            writer.write(request)
            head, blob = sizes(await reader.readexactly(SIZES.size))
            answer = await reader.readexactly(head), await reader.readexactly(blob)
            child = 0
            return answer
        finally:
            writer.transport.abort()
            if child:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


@dataclass(eq=False)
class Compiling:
    """A constraint being compiled, and how many requests wait for it."""

    task: asyncio.Task[bytes]
    waiting: int = 0
