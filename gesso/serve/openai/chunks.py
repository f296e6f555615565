"""The stream of /v1/chat/completions and /v1/completions: chunks with one head, which differ in how a choice looks."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from gesso.serve.drafts import DraftEvents
from gesso.serve.generation import Generation
from gesso.serve.http.sse import DONE, Delta, Writing, event
from gesso.serve.jobs import Job
from gesso.serve.protocol import Drafted, Ended, Settled

Choices = Callable[[Job, Delta, Ended | None], list[dict[str, Any]]]  # of what is new, and of the end where it is one


async def chunks(
    head: dict[str, Any], generation: Generation, writings: Sequence[Writing], choices: Choices, *, usage: bool
) -> AsyncGenerator[bytes]:
    drafts = DraftEvents(writings[0].tokenizer)
    events = generation.events()
    try:
        async for job, happened in events:
            delta, ended = Delta(), None
            match happened:
                case Settled(tokens=tokens):
                    delta = writings[job.index].settle(tokens)
                case Drafted():
                    yield event({**head, "choices": [], "draft": drafts.fields(happened, job.index)})
                case Ended():
                    delta, ended = writings[job.index].end(happened), happened
            if delta or ended:
                generation.note_text(job)
                for choice in choices(job, delta, ended):
                    yield event({**head, "choices": [choice]})
    finally:
        await events.aclose()
    if usage:
        yield event({**head, "choices": [], "usage": generation.usage()})
    yield DONE
