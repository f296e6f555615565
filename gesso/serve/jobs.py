"""A job, which is one answer to generate, and the mailbox for its events."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gesso.serve.prepare.request import PreparedJob
from gesso.serve.protocol import Drafted, Ended, Failed, Logprobs, Settled, submit_frame

DRAFTS = 64  # per job; when a client reads too slowly, older drafts are dropped
WORK = ("denoising_steps", "canvases", "redrawn")  # usage that all attempts at an answer add up to
JobEvent = Settled | Drafted | Logprobs | Ended | Failed


class Mailbox:
    """Events of the jobs of one HTTP request. The engine never waits; a slow reader misses drafts."""

    def __init__(self) -> None:
        self._events: deque[tuple[Job, JobEvent]] = deque()
        self._filled = asyncio.Event()

    def put(self, job: "Job", event: JobEvent) -> None:
        if isinstance(event, Drafted):
            droppable = [i for i, (other, old) in enumerate(self._events) if other is job and _may_be_dropped(old)]
            if len(droppable) >= DRAFTS:
                del self._events[droppable[0]]
        self._events.append((job, event))
        self._filled.set()

    async def get(self) -> tuple["Job", JobEvent]:
        while not self._events:
            self._filled.clear()
            await self._filled.wait()
        return self._events.popleft()


def _may_be_dropped(event: JobEvent) -> bool:
    return isinstance(event, Drafted) and event.reason is None  # keep the last draft of a canvas, which has the reason


@dataclass(eq=False)
class Job:
    id: int
    client: str  # for fair queueing
    prepared: PreparedJob
    mailbox: Mailbox
    index: int = 0  # of the choice in its HTTP request
    adapter: str | None = None
    images: bytes = b""  # prepared; the jobs of a request share them
    constraint: bytes = b""  # compiled
    attempt: int = 0  # at a valid answer
    spent: Counter[str] = field(default_factory=Counter)  # usage of earlier attempts
    sent_count: int = 0  # how often this attempt was sent to an engine
    started: bool = False
    settled_tokens: int = 0  # of this attempt, as far as the engine has reported them
    created_at: float = field(default_factory=time.monotonic)
    first_text_at: float | None = None
    logprobs: list[tuple[float | None, list[tuple[int, float]]]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and the longest answer. If infill chooses the length, only the prompt's text counts."""
        return self.prepared.prompt_tokens + self.prepared.max_new_tokens

    @property
    def usage_so_far(self) -> dict[str, int]:
        """The usage of a job that has not ended. Only the engine knows the steps of its current attempt."""
        return {
            "prompt_tokens": self.prepared.prompt_tokens if self.started else 0,
            "cached_tokens": 0,
            "completion_tokens": self.settled_tokens,
            "denoising_steps": self.spent["denoising_steps"],
            "canvases": self.spent["canvases"],
        }

    def report(self, event: JobEvent) -> None:
        """Pass an event to the handler of the request, and count its tokens."""
        match event:
            case Settled(tokens=tokens):
                self.settled_tokens += len(tokens)
            case Logprobs(entries=entries) if not self.prepared.planned:  # an answer without `Settled`
                self.settled_tokens += len(entries)
        self.mailbox.put(self, event)

    def frame(self) -> bytes:
        return submit_frame(self.id, self.prepared.payload, self.images + self.constraint, self.attempt)

    def try_again(self, usage: Mapping[str, int]) -> None:
        """Begin another attempt, after one that has this usage."""
        self.spent.update({name: usage[name] for name in WORK})
        self.attempt += 1
        self.sent_count = 0
        self.started = False
        self.settled_tokens = 0
        self.logprobs.clear()
