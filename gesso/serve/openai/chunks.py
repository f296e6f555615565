"""The stream of chat completions, completions and edits: chunks with the same head and different choices."""

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from gesso.serve.deltas import AnswerDeltas, Delta
from gesso.serve.drafts import DraftEvents
from gesso.serve.generation import Generation
from gesso.serve.http.sse import DONE, event
from gesso.serve.jobs import AnswerJob
from gesso.serve.wire import Drafted, Ended, Settled

# Returns the choices of the chunks for a delta. `Ended` is given with the last delta of a job.
Choices = Callable[[AnswerJob, Delta, Ended | None], Sequence[dict[str, Any]]]


def head(kind: str, model: str, id_prefix: str) -> dict[str, Any]:
    """Return the fields that an answer and its chunks begin with."""
    return {"id": f"{id_prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


async def stream_chunks(
    head: dict[str, Any],
    generation: Generation,
    answers: Sequence[AnswerDeltas],
    choices: Choices,
    opening: Sequence[dict[str, Any]] = (),
) -> AsyncGenerator[bytes]:
    """Yield one event per choice, and one per draft if the client requested drafts. `opening` choices come first.

    The first event has the warnings.
    """
    form = generation.form
    once = {"warnings": form.warnings} if form.warnings else {}

    def chunk(*choices: dict[str, Any], **more: Any) -> bytes:
        usage = {"usage": usage_so_far(generation, answers)} if form.continuous_usage else {}
        data = {**head, "choices": choices, **usage, **more, **once}
        once.clear()
        return event(data)

    for choice in opening:
        yield chunk(choice)
    drafts = DraftEvents(answers[0].tokenizer)
    async with aclosing(generation.events()) as events:
        async for job, happened in events:
            delta, ended = Delta(), None
            match happened:
                case Settled(tokens=tokens):
                    delta = answers[job.index].settle(tokens)
                case Drafted():
                    yield chunk(draft=drafts.fields(happened, job.index))
                case Ended():
                    delta, ended = answers[job.index].end(happened), happened
            if delta or ended:
                generation.note_text(job)
                for choice in choices(job, delta, ended):
                    yield chunk(choice)
    if form.include_usage:
        yield chunk(usage=generation.usage())
    yield DONE


def usage_so_far(generation: Generation, answers: Sequence[AnswerDeltas]) -> dict[str, int]:
    """Return the usage of all choices, with the settled tokens of those that have not ended."""
    prompts = {job.prompt_index: job.prompt.prompt_tokens for job in generation.jobs}
    ended = {index: one.usage["completion_tokens"] for index, one in generation.ended.items()}
    completion = sum(ended.get(index, len(answer.tokens)) for index, answer in enumerate(answers))
    prompt = sum(prompts.values())
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
