"""One answer to be written, and the mailbox its events are put into."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from gesso.serve.prepare.request import PreparedJob
from gesso.serve.protocol import Drafted, Ended, Failed, Logprobs, Settled, submit_frame

DRAFTS = 64  # kept for a reader; when there are more, the oldest are dropped
JobEvent = Settled | Drafted | Logprobs | Ended | Failed


class Mailbox:
    """The events of the jobs of one HTTP request. The engine never waits; a slow reader misses drafts."""

    def __init__(self) -> None:
        self._events: deque[tuple[Job, JobEvent]] = deque()
        self._filled = asyncio.Event()

    def put(self, job: "Job", event: JobEvent) -> None:
        if isinstance(event, Drafted):
            waiting = [i for i, (other, old) in enumerate(self._events) if other is job and _may_be_missed(old)]
            if len(waiting) >= DRAFTS:
                del self._events[waiting[0]]
        self._events.append((job, event))
        self._filled.set()

    async def get(self) -> tuple["Job", JobEvent]:
        while not self._events:
            self._filled.clear()
            await self._filled.wait()
        return self._events.popleft()


def _may_be_missed(event: JobEvent) -> bool:
    return isinstance(event, Drafted) and event.reason is None  # the last draft of a canvas has the reason for its end


@dataclass(eq=False)
class Job:
    id: int
    client: str  # whose turn it takes
    prepared: PreparedJob
    mailbox: Mailbox
    index: int = 0  # which of the choices of its HTTP request
    adapter: str | None = None
    constraint: bytes = b""  # compiled
    handed_over: int = 0  # how often an engine got it
    started: bool = False
    asked_at: float = field(default_factory=time.monotonic)
    first_text_at: float | None = None
    logprobs: list[tuple[float, list[tuple[int, float]]]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Prompt and longest answer. A hole whose length is searched counts as the text around it."""
        return self.prepared.prompt_tokens + self.prepared.max_new_tokens

    def frame(self) -> bytes:
        return submit_frame(self.id, self.prepared.payload, self.constraint)
