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
from gesso.serve.jobs import Job
from gesso.serve.protocol import Drafted, Ended, Settled

# Returns the choices of the chunks for a delta. `Ended` is given with the last delta of a job.
Choices = Callable[[Job, Delta, Ended | None], Sequence[dict[str, Any]]]


def head(kind: str, model: str, id_prefix: str) -> dict[str, Any]:
    """Return the fields that an answer and its chunks begin with."""
    return {"id": f"{id_prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


async def stream_chunks(
    head: dict[str, Any],
    generation: Generation,
    answers: Sequence[AnswerDeltas],
    choices: Choices,
    *,
    usage: bool,
    opening: Sequence[dict[str, Any]] = (),
) -> AsyncGenerator[bytes]:
    """Yield one event per choice, and one per draft if the client requested drafts. `opening` choices come first."""
    for choice in opening:
        yield event({**head, "choices": [choice]})
    drafts = DraftEvents(answers[0].tokenizer)
    async with aclosing(generation.events()) as events:
        async for job, happened in events:
            delta, ended = Delta(), None
            match happened:
                case Settled(tokens=tokens):
                    delta = answers[job.index].settle(tokens)
                case Drafted():
                    yield event({**head, "choices": [], "draft": drafts.fields(happened, job.index)})
                case Ended():
                    delta, ended = answers[job.index].end(happened), happened
            if delta or ended:
                generation.note_text(job)
                for choice in choices(job, delta, ended):
                    yield event({**head, "choices": [choice]})
    if usage:
        yield event({**head, "choices": [], "usage": generation.usage()})
    yield DONE
