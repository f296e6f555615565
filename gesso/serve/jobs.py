"""A job, which is one answer to generate, and the mailbox for its events."""

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from gesso.engine.request import ATTEMPTS, SEEDS
from gesso.serve.wire import (
    CheckAnswer,
    Drafted,
    Ended,
    Logprobs,
    Prepared,
    PreparedPrompt,
    RequestFailed,
    Settled,
    Submit,
    frame,
)

DRAFTS = 64  # per job; when a client reads too slowly, older drafts are dropped
WORK = ("denoising_steps", "canvases", "redrawn")  # usage that all attempts at an answer add up to


@dataclass(frozen=True)
class Outdated:
    """The request was prepared with another readiness than that of the engine, and has to be prepared again."""


JobEvent = Settled | Drafted | Logprobs | CheckAnswer | Ended | RequestFailed | Outdated


class Mailbox:
    """Events of the jobs of one HTTP request. The engine never waits; a slow reader misses drafts."""

    def __init__(self) -> None:
        self._events: deque[tuple[AnswerJob, JobEvent]] = deque()
        self._filled = asyncio.Event()

    def put(self, job: "AnswerJob", event: JobEvent) -> None:
        if isinstance(event, Drafted):
            droppable = [i for i, (other, old) in enumerate(self._events) if other is job and _may_be_dropped(old)]
            if len(droppable) >= DRAFTS:
                del self._events[droppable[0]]
        self._events.append((job, event))
        self._filled.set()

    async def get(self) -> tuple["AnswerJob", JobEvent]:
        while not self._events:
            self._filled.clear()
            await self._filled.wait()
        return self._events.popleft()


def _may_be_dropped(event: JobEvent) -> bool:
    return isinstance(event, Drafted) and event.reason is None  # keep the last draft of a canvas, which has the reason


@dataclass(frozen=True, kw_only=True)
class CompiledRequest:
    """A prepared request with its compiled constraint, which all of its jobs share."""

    prepared: Prepared
    term: memoryview = memoryview(b"")


@dataclass(eq=False, kw_only=True)
class AnswerJob:
    id: int
    client: str  # for fair queueing
    request: CompiledRequest
    mailbox: Mailbox
    index: int = 0  # of the answer in its HTTP request
    spent: Counter[str] = field(default_factory=Counter)  # usage of earlier attempts at a valid answer
    sent_count: int = 0  # how often it was sent to an engine
    started: bool = False
    settled_tokens: int = 0  # of this attempt, as far as the engine has reported them
    created_at: float = field(default_factory=time.monotonic)
    first_text_at: float | None = None
    logprobs: list[tuple[float | None, list[tuple[int, float]]]] = field(default_factory=list)

    @property
    def prompt_index(self) -> int:
        return self.index // self.request.prepared.choices

    @property
    def prompt(self) -> PreparedPrompt:
        return self.request.prepared.prompts[self.prompt_index]

    @property
    def adapter(self) -> str | None:
        return self.request.prepared.form.adapter

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and the longest answer. If infill chooses the length, only the prompt's text counts."""
        return self.prompt.prompt_tokens + self.prompt.max_new_tokens

    @property
    def usage_so_far(self) -> dict[str, int]:
        """The usage of a job that has not ended. Only the engine knows the steps of its current attempt."""
        return {
            "prompt_tokens": self.prompt.prompt_tokens if self.started else 0,
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
            case Logprobs(entries=entries) if not self.prompt.planned:  # an answer without `Settled`
                self.settled_tokens += len(entries)
        self.mailbox.put(self, event)

    def frame(self) -> bytearray:
        prepared = self.request.prepared
        choice = self.index % prepared.choices
        return frame(
            Submit(
                id=self.id,
                seed=(self.prompt.seed + choice) % SEEDS,
                attempts=1 if prepared.form.stream else ATTEMPTS,  # a stream has sent its text
                stream=prepared.form.stream,
                drafts=prepared.drafts,
                shapes=prepared.shapes,
                images=prepared.images,
                term=self.request.term,
                work=self.prompt.work,
            )
        )

    def drop_attempt(self, attempt: CheckAnswer) -> None:
        """Forget the text of an attempt that is not valid, after which the engine begins another."""
        self.spent.update({name: attempt.usage[name] for name in WORK})
        self.settled_tokens = 0
        self.logprobs.clear()
