"""The jobs of one HTTP request, from the queue to their end."""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import Receive

from gesso.serve.errors import ApiError
from gesso.serve.jobs import Job, JobEvent
from gesso.serve.protocol import Ended, Failed, Logprobs
from gesso.serve.settings import Limits
from gesso.serve.supervisor import Supervisor

T = TypeVar("T")


class Gone(Exception):
    """The client hung up."""


class Generation:
    def __init__(self, supervisor: Supervisor, limits: Limits, jobs: Sequence[Job]) -> None:
        """Queue the jobs, or raise the 429."""
        self.supervisor, self.limits, self.jobs = supervisor, limits, jobs
        self.ended: dict[int, Ended] = {}  # by choice
        supervisor.submit(jobs)

    async def events(self) -> AsyncGenerator[tuple[Job, JobEvent]]:
        """Yield all events until every job has ended; leaving early or failing cancels the jobs."""
        deadline = asyncio.get_running_loop().time() + self.limits.timeout
        try:
            while len(self.ended) < len(self.jobs):
                async with asyncio.timeout_at(deadline):
                    job, event = await self.jobs[0].mailbox.get()
                if isinstance(event, Failed):
                    raise ApiError(400 if event.by_input else 500, event.message)
                if isinstance(event, Logprobs):
                    job.logprobs += event.entries
                    continue
                if isinstance(event, Ended):
                    del job.logprobs[len(event.tokens) :]  # a stop string may have taken tokens back
                    self.ended[job.index] = event
                    self.supervisor.metrics.count(event)
                yield job, event
        except TimeoutError:
            message = f"no complete answer within {self.limits.timeout:g} s; ask for fewer tokens"
            raise ApiError(504, message, code="timeout") from None
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Drop the jobs that have not ended; a second call does nothing."""
        self.supervisor.cancel(self.jobs)

    async def results(self) -> list[Ended]:
        """Return the end of every job, in the order of the choices."""
        events = self.events()
        try:
            async for job, event in events:
                if isinstance(event, Ended):
                    self.note_text(job)
        finally:
            await events.aclose()
        return [self.ended[index] for index in range(len(self.jobs))]

    def note_text(self, job: Job) -> None:
        """Record the time of a job's first text."""
        if job.first_text_at is None:
            job.first_text_at = time.monotonic()
            self.supervisor.metrics.first_text.observe(job.first_text_at - job.asked_at)

    def usage(self) -> dict[str, Any]:
        """Return the usage of all choices in OpenAI's form; figures that only diffusion has are under `diffusion`."""
        ended = list(self.ended.values())

        def total(name: str) -> int:
            return sum(e.usage[name] for e in ended)

        # Choices share their prompt, which is counted once.
        prompts = {job.prepared.prompt: self.ended[job.index].usage for job in self.jobs if job.index in self.ended}
        prompt_tokens = sum(usage["prompt_tokens"] for usage in prompts.values())
        cached = sum(usage["cached_tokens"] for usage in prompts.values())
        completion, steps = total("completion_tokens"), total("denoising_steps")
        first = [job.first_text_at - job.asked_at for job in self.jobs if job.first_text_at is not None]
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


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work; if the client hangs up before, cancel the work and raise `Gone`."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_hung_up(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for other in (task, watch):
            other.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await other


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
