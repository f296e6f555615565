"""One answer to be written: what is asked of the engine, and where its events are put."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gesso.serve.protocol import Drafted, Ended, Failed, Settled, Submit

JobEvent = Settled | Drafted | Ended | Failed


class Mailbox:
    """The events of the jobs of one HTTP request. The engine never waits; who is slow to read misses drafts."""

    def __init__(self) -> None:
        self._events: deque[tuple[Job, JobEvent]] = deque()
        self._filled = asyncio.Event()

    def put(self, job: "Job", event: JobEvent) -> None:
        if isinstance(event, Drafted):
            for i, (other, waiting) in enumerate(self._events):
                if other is job and isinstance(waiting, Drafted):
                    del self._events[i]
                    break
        self._events.append((job, event))
        self._filled.set()

    async def get(self) -> tuple["Job", JobEvent]:
        while not self._events:
            self._filled.clear()
            await self._filled.wait()
        return self._events.popleft()


@dataclass(eq=False)
class Job:
    id: int
    client: str  # whose turn it takes
    prompt: list[int]
    options: dict[str, Any]  # of `Gesso.request`
    mailbox: Mailbox
    index: int = 0  # which of the choices of its HTTP request
    adapter: str | None = None
    stream: bool = False
    drafts: bool = False
    constraint: dict[str, Any] | None = None
    hole: dict[str, Any] | None = None
    handed_over: int = 0  # times the engine got it
    started: bool = False
    asked_at: float = field(default_factory=time.monotonic)
    first_text_at: float | None = None

    @property
    def tokens(self) -> int:
        """The most it can come to, prompt and answer; a hole whose length is searched counts as its text alone."""
        return len(self.prompt) + int(self.options.get("max_new_tokens", 0))

    def submit(self) -> Submit:
        return Submit(
            self.id, self.prompt, self.options, self.adapter, self.stream, self.drafts, self.constraint, self.hole
        )
