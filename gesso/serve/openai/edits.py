"""Answers of /v1/edits: a span is rewritten, the text around it stays as it is."""

import time
from collections.abc import AsyncGenerator
from typing import Any

from gesso.serve.drafts import DraftEvents
from gesso.serve.generation import Generation
from gesso.serve.http.sse import DONE, event
from gesso.serve.models import ServedModel
from gesso.serve.prepare.request import Accepted
from gesso.serve.protocol import Drafted, Ended


def answer(model: ServedModel, asked: Accepted, generation: Generation) -> dict[str, Any]:
    choices = [_choice(asked, index, generation.ended[index]) for index in range(len(generation.jobs))]
    return {**_head("edit"), "choices": choices, "usage": generation.usage()}


async def stream(model: ServedModel, asked: Accepted, generation: Generation) -> AsyncGenerator[bytes]:
    """Yield drafts on request, then each choice as a whole: the text of a span is known only at the end."""
    head, drafts = _head("edit.chunk"), DraftEvents(model.tokenizer)
    events = generation.events()
    try:
        async for job, happened in events:
            match happened:
                case Drafted():
                    yield event({**head, "choices": [], "draft": drafts.fields(happened, job.index)})
                case Ended():
                    generation.note_text(job)
                    yield event({**head, "choices": [_choice(asked, job.index, happened)]})
    finally:
        await events.aclose()
    yield event({**head, "choices": [], "usage": generation.usage()})
    yield DONE


def _head(kind: str) -> dict[str, Any]:
    return {"object": kind, "created": int(time.time())}


def _choice(asked: Accepted, index: int, ended: Ended) -> dict[str, Any]:
    text, (start, end) = asked.echo["input"], asked.echo["span"]
    return {
        "index": index,
        "text": text[:start] + ended.text + text[end:],
        "replacement": ended.text,
        "finish_reason": ended.finish_reason,
        "seed": ended.seed,
    }
