"""/v1/completions: text, or token ids, to continue; with a suffix, the text that is missing before it."""

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from gesso.serve.asking import Desk
from gesso.serve.chunks import chunks
from gesso.serve.errors import ApiError
from gesso.serve.fields import CompletionFields
from gesso.serve.generation import Generation
from gesso.serve.jobs import Job
from gesso.serve.logprobs import completion_logprobs
from gesso.serve.protocol import Ended
from gesso.serve.stream import Delta, Writing


async def jobs(desk: Desk, asked: CompletionFields, client: str) -> list[Job]:
    desk.adapter(asked.model)
    constraint = asked.constraint()
    await desk.check_constraint(constraint)
    if asked.suffix:
        if asked.best_of > (most := desk.settings.limits.choices):
            raise ApiError(400, f"best_of: at most {most} texts in one request", param="best_of")
        hole = {"prefix": asked.prompt, "suffix": asked.suffix, "candidates": asked.best_of}
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


def stream(desk: Desk, asked: CompletionFields, generation: Generation) -> AsyncGenerator[bytes]:
    def choices(job: Job, delta: Delta, ended: Ended | None) -> list[dict[str, Any]]:
        if ended:
            return [_choice(desk, asked, job.index, ended, delta.text)]
        return [{"index": job.index, "text": delta.text, "logprobs": None, "finish_reason": None}]

    writings = [Writing(desk.tokenizer, chat=False) for _ in generation.jobs]
    usage = asked.stream_options.include_usage
    return chunks(_head(desk, asked), generation, writings, choices, usage=usage)


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
