"""The jobs of one HTTP request, from the queue to their end."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from gesso.serve.deltas import AnswerDeltas, Delta
from gesso.serve.errors import ApiError
from gesso.serve.form import AnswerForm
from gesso.serve.jobs import AnswerJob, CompiledRequest, JobEvent, Mailbox, Outdated
from gesso.serve.models import Models, ServedModel
from gesso.serve.wire import (
    ENGINE_DIED,
    INVALID_ANSWER,
    AnswerChecked,
    CheckAnswer,
    Ended,
    Logprobs,
    RequestFailed,
    Settled,
)

# How an answer ended. `invalid`: the engine rejected the request, or no attempt was valid under its schema. `failed`:
# any other fault of the server.
Outcome = Literal["ok", "client_left", "timeout", "engine_died", "invalid", "failed"]
TIMEOUT = "timeout"  # code of an error


@dataclass(frozen=True, kw_only=True)
class SentBody:
    """A body that a client has sent to an endpoint."""

    endpoint: str
    body: bytes
    client: str


class Generation:
    """The answers to one HTTP request."""

    def __init__(self, models: Models, sent: SentBody, request: CompiledRequest) -> None:
        """Queue the jobs. Raise a 429 if the queue is full."""
        self.models = models
        self.sent = sent
        self.request = request
        self.model: ServedModel = models.of(request.prepared.form.served)
        self.supervisor = self.model.supervisor
        self.limits = self.model.settings.limits
        self.mailbox = Mailbox()
        count = len(request.prepared.prompts) * request.prepared.choices
        self.jobs = [
            AnswerJob(
                id=next(self.supervisor.ids), client=sent.client, request=request, mailbox=self.mailbox, index=index
            )
            for index in range(count)
        ]
        self.ended: dict[int, Ended] = {}  # by the index of a job
        self.error: ApiError | None = None  # that ended the answer
        self.is_complete = False
        self.supervisor.submit(self.jobs)

    @property
    def form(self) -> AnswerForm:
        return self.request.prepared.form

    async def events(self) -> AsyncGenerator[tuple[AnswerJob, JobEvent]]:
        """Yield all events until every job has ended. Leaving early or failing cancels the jobs."""
        deadline = asyncio.get_running_loop().time() + self.limits.timeout
        try:
            while len(self.ended) < len(self.jobs):
                async with asyncio.timeout_at(deadline):
                    job, event = await self.mailbox.get()
                    if isinstance(event, Outdated):
                        await self._prepare_again()
                        continue
                    if isinstance(event, CheckAnswer):
                        await self._check(job, event)
                        continue
                if isinstance(event, RequestFailed):
                    raise ApiError(400 if event.by_input else 500, event.message, code=event.code)
                if isinstance(event, Logprobs):
                    job.logprobs += event.entries
                    continue
                if isinstance(event, Ended):
                    del job.logprobs[len(event.tokens) :]  # a stop string may have removed tokens
                    self.ended[job.index] = event
                    self.supervisor.metrics.count(event.usage)
                yield job, event
            self.is_complete = True
        except TimeoutError:
            message = f"no complete answer within {self.limits.timeout:g} s; request fewer tokens"
            self.error = ApiError(504, message, code=TIMEOUT)
            raise self.error from None
        except ApiError as error:
            self.error = error
            raise
        finally:
            self.cancel()

    async def _prepare_again(self) -> None:
        """Prepare the request with what the engine has reported, unless that has been done for another job of it."""
        if not self.supervisor.is_outdated(self.jobs[0]):
            return
        self.request = await self.models.compiled(self.sent.endpoint, self.sent.body, self.sent.client)
        for job in self.jobs:
            job.request = self.request
        self.supervisor.send_waiting()

    async def _check(self, job: AnswerJob, answer: CheckAnswer) -> None:
        """Check an answer, and tell the engine, which writes one that is not valid again."""
        problem = await self.models.pool.check(self.form, answer, self.sent.client)
        if problem is not None:
            job.drop_attempt(answer)
        self.supervisor.send(AnswerChecked(job.id, problem))

    async def deltas(self, answer: AnswerDeltas) -> AsyncGenerator[Delta]:
        """Yield the parts of the only answer of this request, as they settle."""
        async with aclosing(self.events()) as events:
            async for job, event in events:
                delta = Delta()
                match event:
                    case Settled(tokens=tokens):
                        delta = answer.settle(tokens)
                    case Ended():
                        delta = answer.end(event)
                if delta:
                    self.note_text(job)
                    yield delta

    def cancel(self) -> None:
        """Drop the jobs that have not ended. A second call does nothing."""
        self.supervisor.cancel(self.jobs)

    def finish(self, *, client_left: bool) -> Outcome:
        """Drop the jobs that have not ended, count what they used so far, and return how the answer ended.

        Call this once, when nothing more of the answer will be sent.
        """
        self.cancel()
        metrics = self.supervisor.metrics
        for job in self.jobs:
            if job.index not in self.ended:
                metrics.count(job.usage_so_far)
        outcome = self._outcome(client_left)
        metrics.answers.labels(outcome, self.supervisor.name).inc()
        return outcome

    def _outcome(self, client_left: bool) -> Outcome:
        if self.is_complete:
            return "ok"
        if self.error is None:
            return "client_left" if client_left else "failed"
        if self.error.code == ENGINE_DIED:
            return "engine_died"
        if self.error.code == TIMEOUT:
            return "timeout"
        rejected = self.error.status < 500 or self.error.code == INVALID_ANSWER
        return "invalid" if rejected else "failed"

    async def run(self) -> None:
        """Wait until every job has ended."""
        async with aclosing(self.events()) as events:
            async for job, event in events:
                if isinstance(event, Ended):
                    self.note_text(job)

    def note_text(self, job: AnswerJob) -> None:
        """Record the time of a job's first text."""
        if job.first_text_at is None:
            job.first_text_at = time.monotonic()
            self.supervisor.metrics.first_text.observe(job.first_text_at - job.created_at)

    def usage(self) -> dict[str, Any]:
        """Return the usage of all choices in OpenAI's form, with diffusion's own figures under `diffusion`.

        Choices that have not ended count with what they have used so far.
        """
        usages = [self.ended[job.index].usage if job.index in self.ended else job.usage_so_far for job in self.jobs]

        def total(name: str) -> int:
            return sum(usage[name] for usage in usages)

        # Choices share their prompt, which is counted once. A choice that has not begun has read no prompt.
        prompts = {
            job.prompt_index: usage for job, usage in zip(self.jobs, usages, strict=True) if usage["prompt_tokens"]
        }
        prompt_tokens = sum(usage["prompt_tokens"] for usage in prompts.values())
        cached = sum(usage["cached_tokens"] for usage in prompts.values())
        completion, steps = total("completion_tokens"), total("denoising_steps")
        first = [job.first_text_at - job.created_at for job in self.jobs if job.first_text_at is not None]
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "diffusion": {
                "steps": steps,
                "canvases": total("canvases"),
                "tokens_per_step": round(completion / steps, 3) if steps else 0.0,
                "time_to_first_text": round(min(first), 4) if first else None,
            },
        }
