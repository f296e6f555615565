"""Answers of /v1/completions."""

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from gesso.serve.generation import Generation
from gesso.serve.http.sse import Delta, Writing
from gesso.serve.jobs import Job
from gesso.serve.models import ServedModel
from gesso.serve.openai.chunks import chunks
from gesso.serve.openai.logprobs import completion_logprobs
from gesso.serve.prepare.request import Accepted
from gesso.serve.protocol import Ended


def answer(model: ServedModel, asked: Accepted, generation: Generation) -> dict[str, Any]:
    ended = generation.ended
    choices = [_choice(model, asked, job, ended[job.index], ended[job.index].text) for job in generation.jobs]
    return {**_head(asked), "choices": choices, "usage": generation.usage()}


def stream(model: ServedModel, asked: Accepted, generation: Generation) -> AsyncGenerator[bytes]:
    def choices(job: Job, delta: Delta, ended: Ended | None) -> list[dict[str, Any]]:
        if ended:
            return [_choice(model, asked, job, ended, delta.text)]
        return [{"index": job.index, "text": delta.text, "logprobs": None, "finish_reason": None}]

    writings = [Writing(model.tokenizer, chat=False) for _ in generation.jobs]
    return chunks(_head(asked), generation, writings, choices, usage=asked.include_usage)


def _choice(model: ServedModel, asked: Accepted, job: Job, ended: Ended, text: str) -> dict[str, Any]:
    logprobs = completion_logprobs(model.tokenizer, job, ended) if asked.logprobs else None
    return {
        "index": job.index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": ended.finish_reason,
        "seed": ended.seed,
    }


def _head(asked: Accepted) -> dict[str, Any]:
    id = f"cmpl-{uuid.uuid4().hex}"
    return {"id": id, "object": "text_completion", "created": int(time.time()), "model": asked.model}
