"""/v1/edits: a span of a text is written anew; what stands around it stays as it is."""

import time
from collections.abc import AsyncGenerator
from typing import Any

from gesso.guide.edit import check_span
from gesso.serve.asking import Desk
from gesso.serve.drafts import DraftEvents
from gesso.serve.errors import ApiError
from gesso.serve.fields import EditFields
from gesso.serve.generation import Generation
from gesso.serve.jobs import Job
from gesso.serve.protocol import Drafted, Ended
from gesso.serve.stream import DONE, event


async def jobs(desk: Desk, asked: EditFields, client: str) -> list[Job]:
    desk.adapter(asked.model)
    if asked.diffusion.pins:
        raise ApiError(400, "diffusion.pins is not supported by edits", param="diffusion.pins")
    check_span(asked.input, (asked.span[0], asked.span[1]), asked.level)
    text = await desk.ids(asked.input)
    return desk.jobs(
        asked,
        [text],
        client=client,
        n=asked.n,
        max_tokens=asked.max_tokens,
        hole={"text": asked.input, "span": asked.span, "instruction": asked.instruction, "level": asked.level},
    )


async def answer(desk: Desk, asked: EditFields, generation: Generation) -> dict[str, Any]:
    choices = [_choice(asked, index, ended) for index, ended in enumerate(await generation.results())]
    return {**_head("edit"), "choices": choices, "usage": generation.usage()}


async def stream(desk: Desk, asked: EditFields, generation: Generation) -> AsyncGenerator[bytes]:
    """Drafts, where asked for, and each choice whole: what fills a span is known in the end."""
    head, drafts = _head("edit.chunk"), DraftEvents(desk.tokenizer)
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


def _choice(asked: EditFields, index: int, ended: Ended) -> dict[str, Any]:
    start, end = asked.span
    return {
        "index": index,
        "text": asked.input[:start] + ended.text + asked.input[end:],
        "replacement": ended.text,
        "finish_reason": ended.finish_reason,
        "seed": ended.seed,
    }
