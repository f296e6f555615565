"""/v1/edits: a span of a text is written anew; what stands around it stays as it is."""

import time
from typing import Any

from gesso.guide.edit import check_span
from gesso.serve.asking import Desk
from gesso.serve.errors import ApiError
from gesso.serve.fields import EditFields
from gesso.serve.generation import Generation
from gesso.serve.jobs import Job


async def jobs(desk: Desk, asked: EditFields, client: str) -> list[Job]:
    desk.adapter(asked.model)
    if asked.diffusion.drafts or asked.diffusion.pins:
        name = "diffusion.drafts" if asked.diffusion.drafts else "diffusion.pins"
        raise ApiError(400, f"{name} is not supported by edits", param=name)
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
    start, end = asked.span
    choices = [
        {
            "index": index,
            "text": asked.input[:start] + ended.text + asked.input[end:],
            "replacement": ended.text,
            "finish_reason": ended.finish_reason,
            "seed": ended.seed,
        }
        for index, ended in enumerate(await generation.results())
    ]
    return {"object": "edit", "created": int(time.time()), "choices": choices, "usage": generation.usage()}
