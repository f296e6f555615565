"""Run tasks in children of the prepare process: limit concurrent tasks, and choose their order.

Five lanes separate small bodies, large bodies, images to fetch, constraints to compile and answers to check. In each
lane clients take turns, and no client can hold all slots or fill the queue.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from gesso.serve.errors import ApiError
from gesso.serve.fair_queue import FairQueue
from gesso.serve.form import AnswerForm
from gesso.serve.prepare.reader import Fetch, Reader, unavailable
from gesso.serve.settings import QUEUE_SHARE, ServerSettings
from gesso.serve.wire import (
    CheckAnswer,
    Checked,
    CheckText,
    ChildTask,
    Compile,
    Compiled,
    ConstraintSource,
    FetchedImages,
    FetchImages,
    FromChild,
    ModelState,
    NeedsImages,
    Prepare,
    Prepared,
    Reply,
    RequestRejected,
)

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
        self, endpoint: str, body: bytes, client: str, models: Mapping[str, ModelState], fetch: Fetch | None = None
    ) -> Prepared | Reply:
        """Prepare the request of an endpoint.

        If the request has images of other servers, they are fetched, and it is prepared again with their contents. A
        slot of the lane `remote` is held until the end, so that few requests have such images in memory.
        """
        work = Prepare(endpoint=endpoint, body=memoryview(body), models=dict(models))
        answer = await self._prepare(work, client, fetch)
        if isinstance(answer, NeedsImages):
            async with self._slot("remote", client):
                images = FetchImages(answer.images)
                fetched = await self._run(images, REMOTE_SECONDS, "fetch its images", wall=REMOTE_SECONDS)
                assert isinstance(fetched, FetchedImages)
                urls = [image.url for image in answer.images]
                contents = dict(zip(urls, fetched.contents, strict=True))
                answer = await self._prepare(msgspec.structs.replace(work, fetched=contents), client, fetch)
        assert isinstance(answer, Prepared | Reply)
        return answer

    async def _prepare(self, work: Prepare, client: str, fetch: Fetch | None) -> FromChild:
        size = len(work.body) + sum(map(len, (work.fetched or {}).values()))
        lane = "small" if size <= SMALL_BODY else "large"
        images = max(0, size - self.limits.body_bytes)
        seconds = self.limits.prepare_seconds + images // IMAGE_BYTES_PER_SECOND
        async with self._slot(lane, client):
            return await self._run(work, seconds, "prepare", fetch)

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
        work = Compile(model=source.model, source=source.source)
        async with self._slot("compile", client):
            if (compiled := self.compiled.get(source.key)) is not None:  # compiled for another client in the meantime
                return compiled
            answer = await self._run(work, self.limits.compile_seconds, "compile")
        assert isinstance(answer, Compiled)
        self.compiled[source.key] = answer
        while sum(len(each.term) for each in self.compiled.values()) > CACHE_BYTES:
            self.compiled.popitem(last=False)
        return answer

    async def check(self, form: AnswerForm, answer: CheckAnswer, client: str) -> str | None:
        """Return what is wrong with an answer; None if nothing is.

        In a child process, because a schema decides how long it takes.
        """
        work = CheckText(model=form.served, check=form.check, text=answer.text, tokens=answer.tokens)
        async with self._slot("check", client):
            checked = await self._run(work, self.limits.prepare_seconds, "check")
        assert isinstance(checked, Checked)
        return checked.problem

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
        work: Prepare | Compile | FetchImages | CheckText,
        seconds: int,
        verb: str,
        fetch: Fetch | None = None,
        wall: float | None = None,
    ) -> FromChild:
        """Run a task in a child with `seconds` of CPU time, and `wall` of real time.

        A child that neither computes nor answers is a fault of the server. If it computes for too long, or crashes, the
        request is at fault.
        """
        task = ChildTask(work=work, seconds=seconds, memory=self.limits.prepare_bytes)
        child, answer = await self.reader.begin(), None
        try:
            async with asyncio.timeout(wall or WALL_PER_CPU_SECOND * seconds):
                answer = await child.exchange(task, fetch)
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
            if answer is None:  # a child that has answered ends by itself
                child.kill()
        if isinstance(answer, RequestRejected):
            raise answer.error
        return answer


def _too_complex(seconds: int, verb: str) -> ApiError:
    return ApiError(
        400,
        f"this request takes more than {seconds} s to {verb}, or crashes the process that does it; simplify it",
        code="too_complex",
    )
