"""Run tasks in children of the prepare process: limit concurrent tasks, and choose their order.

Five lanes separate small bodies, large bodies, images to fetch, constraints to compile and answers to check. In each
lane clients take turns, and no client can hold all slots or fill the queue.
"""

import asyncio
import json
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gesso.serve.errors import ApiError
from gesso.serve.fair_queue import FairQueue
from gesso.serve.prepare.reader import Fetch, Reader, unavailable
from gesso.serve.prepare.request import ConstraintSource, PreparedRequest
from gesso.serve.protocol import Ended, frame
from gesso.serve.settings import QUEUE_SHARE, ServerSettings

SMALL_BODY = 64 * 1024
SLOTS = {"small": 4, "large": 2, "remote": 4, "compile": 2, "check": 2}  # tasks at once per lane
REMOTE_SECONDS = 15  # for a child that fetches images; it ends itself sooner, unless a name is not resolved
# Bytes of images that allow a request another second of CPU time. A photo of 16 MB takes two.
IMAGE_BYTES_PER_SECOND = 4 * 2**20
WALL_PER_CPU_SECOND = 4  # real time allowed per second of CPU time: the engine may keep the processors busy
CACHE_BYTES = 64 * 2**20  # of compiled constraints


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
        self.reader = Reader(settings)

    async def start(self) -> None:
        await self.reader.start()

    async def stop(self) -> None:
        await self.reader.stop()

    # --- work ---------------------------------------------------------------------------------------------------------

    async def prepare(
        self,
        endpoint: str,
        body: bytes,
        client: str,
        contexts: dict[str, int],
        adapters: dict[str, list[str]],
        accepts_images: dict[str, bool],
        fetch: Fetch | None = None,
    ) -> tuple[bytes, bytes]:
        """Run the task of an endpoint. Return a JSON head and a blob.

        If the request has images of other servers, they are fetched, and the task runs again with their contents. A
        slot of the lane `remote` is held until the end, so that few requests have such images in memory.
        """
        task = {"endpoint": endpoint, "contexts": contexts, "adapters": adapters, "accepts_images": accepts_images}
        prepared = await self._prepare(task, body, client, fetch)
        if not prepared[0].startswith(b'{"remote"'):
            return prepared
        async with self._slot("remote", client):
            remote = json.loads(prepared[0])["remote"]
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
        if (compiled := self.compiled.get(source.key)) is not None:
            self.compiled.move_to_end(source.key)
            return compiled
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
            if (compiled := self.compiled.get(source.key)) is not None:  # compiled for another client in the meantime
                return compiled
            warnings, blob = await self._run(task, source.source.encode(), self.limits.compile_seconds, "compile")
        compiled = self.compiled[source.key] = Compiled(blob, json.loads(warnings))
        while sum(len(each.blob) for each in self.compiled.values()) > CACHE_BYTES:
            self.compiled.popitem(last=False)
        return compiled

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
        """Wait for a slot of a lane, or reject the request."""
        waiting = sum(ticket.client == client for ticket in self.lanes[lane].waiting)
        total = sum(len(each.waiting) for each in self.lanes.values())
        most = max(1, self.limits.queue // QUEUE_SHARE) if self.settings[0].shared else self.limits.queue
        if waiting >= most or total >= self.limits.queue:
            message = "too many requests are waiting to be prepared; try again in 1 s"
            raise ApiError(429, message, code="queue_full", retry_after=1)
        async with self.lanes[lane].slot(client):
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
        """Run a task in a child with `seconds` of CPU time, and `wall` of real time.

        A child that neither computes nor answers is a fault of the server. If it computes for too long, or crashes, the
        request is at fault.
        """
        head = json.dumps({**task, "seconds": seconds, "memory": self.limits.prepare_bytes}).encode()
        child, outcome = await self.reader.begin(), None
        try:
            async with asyncio.timeout(wall or WALL_PER_CPU_SECOND * seconds):
                outcome = await child.exchange(frame(head, body), fetch)
        except TimeoutError:
            if wall is None and child.processor_seconds() < seconds / 2:
                message = f"the server did not {verb} this request in {WALL_PER_CPU_SECOND * seconds} s; try again"
                raise unavailable(message) from None
            raise _too_complex(seconds, verb) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            if not self.reader.is_alive(child):
                raise unavailable("the prepare process was restarted; try again") from None
            raise _too_complex(seconds, verb) from None
        finally:
            child.disconnect()
            if outcome is None:  # a child that has answered ends by itself
                child.kill()
        if outcome[0].startswith(b'{"error"'):
            error = json.loads(outcome[0])["error"]
            raise ApiError(error.pop("status"), error.pop("message"), **error)
        return outcome


def _too_complex(seconds: int, verb: str) -> ApiError:
    return ApiError(
        400,
        f"this request takes more than {seconds} s to {verb}, or crashes the process that does it; simplify it",
        code="too_complex",
    )
