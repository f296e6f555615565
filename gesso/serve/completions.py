"""/v1/completions: text, or token ids, to continue; with a suffix, the text that is missing before it."""

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from gesso.serve.asking import Desk
from gesso.serve.chat import draft
from gesso.serve.errors import ApiError
from gesso.serve.fields import CompletionFields
from gesso.serve.generation import Generation
from gesso.serve.jobs import Job
from gesso.serve.logprobs import completion_logprobs
from gesso.serve.protocol import Drafted, Ended, Settled
from gesso.serve.stream import DONE, Writing, event


async def jobs(desk: Desk, asked: CompletionFields, client: str) -> list[Job]:
    desk.adapter(asked.model)
    constraint = asked.constraint()
    await desk.check_constraint(constraint)
    if asked.suffix:
        hole = {"prefix": asked.prompt, "suffix": asked.suffix}
        around = [*await desk.ids(str(asked.prompt)), *await desk.ids(asked.suffix, bos=False)]
        return desk.jobs(
            asked, [around], client=client, n=asked.n, max_tokens=asked.max_tokens, stop=asked.stop, hole=hole
        )
    return desk.jobs(
        asked,
        [await _ids(desk, prompt) for prompt in _prompts(asked, desk.settings.limits.choices)],
        client=client,
        n=asked.n,
        max_tokens=asked.max_tokens,
        stop=asked.stop,
        top_logprobs=asked.logprobs,
        constraint=constraint,
    )


async def answer(desk: Desk, asked: CompletionFields, generation: Generation) -> dict[str, Any]:
    results = await generation.results()
    choices = [_choice(desk, asked, index, ended, ended.text) for index, ended in enumerate(results)]
    return {**_head(desk, asked), "choices": choices, "usage": generation.usage()}


async def stream(desk: Desk, asked: CompletionFields, generation: Generation) -> AsyncGenerator[bytes]:
    head = _head(desk, asked)
    writings = [Writing(desk.tokenizer, chat=False) for _ in generation.jobs]
    events = generation.events()
    try:
        async for job, happened in events:
            writing = writings[job.index]
            match happened:
                case Settled(tokens=tokens):
                    if delta := writing.settle(tokens):
                        generation.note_text(job)
                        choice = {"index": job.index, "text": delta.text, "logprobs": None, "finish_reason": None}
                        yield event({**head, "choices": [choice]})
                case Drafted():
                    yield event({**head, "choices": [], "draft": draft(job, happened)})
                case Ended():
                    delta = writing.end(happened)
                    generation.note_text(job)
                    yield event({**head, "choices": [_choice(desk, asked, job.index, happened, delta.text)]})
    finally:
        await events.aclose()
    if asked.stream_options.include_usage:
        yield event({**head, "choices": [], "usage": generation.usage()})
    yield DONE


def _prompts(asked: CompletionFields, limit: int) -> list[str | list[int]]:
    prompt: Any = asked.prompt
    several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    prompts = prompt if several else [prompt]
    if len(prompts) > limit:
        raise ApiError(400, f"prompt: at most {limit} prompts in one request, got {len(prompts)}", param="prompt")
    return list(prompts)


async def _ids(desk: Desk, prompt: str | list[int]) -> list[int]:
    if not prompt:
        raise ApiError(400, "prompt: it is empty; give some text to continue", param="prompt")
    return await desk.ids(prompt) if isinstance(prompt, str) else prompt


def _choice(desk: Desk, asked: CompletionFields, index: int, ended: Ended, text: str) -> dict[str, Any]:
    logprobs = None if asked.logprobs is None else completion_logprobs(desk.tokenizer, ended)
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": ended.finish_reason,
        "seed": ended.seed,
    }


def _head(desk: Desk, asked: CompletionFields) -> dict[str, Any]:
    model = asked.model or desk.settings.name
    return {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time()), "model": model}
