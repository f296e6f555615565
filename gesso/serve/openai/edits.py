"""Answers of /v1/edits: a text in which one span has been rewritten."""

import time
from collections.abc import AsyncGenerator
from typing import Any

from gesso.serve.deltas import AnswerDeltas, Delta
from gesso.serve.generation import Generation
from gesso.serve.jobs import Job
from gesso.serve.models import ServedModel
from gesso.serve.openai.chunks import stream_chunks
from gesso.serve.prepare.request import PreparedRequest
from gesso.serve.protocol import Ended


def answer(model: ServedModel, request: PreparedRequest, generation: Generation) -> dict[str, Any]:
    choices = [_choice(request, index, generation.ended[index]) for index in range(len(generation.jobs))]
    return {**_head("edit"), "choices": choices, "usage": generation.usage()}


def stream(model: ServedModel, request: PreparedRequest, generation: Generation) -> AsyncGenerator[bytes]:
    """Yield drafts on request, then each choice as a whole, because a span's text is known only at the end."""

    def choices(job: Job, delta: Delta, ended: Ended | None) -> list[dict[str, Any]]:
        return [_choice(request, job.index, ended)] if ended else []

    answers = [AnswerDeltas(model.tokenizer, chat=False) for _ in generation.jobs]
    return stream_chunks(_head("edit.chunk"), request, generation, answers, choices)


def _head(kind: str) -> dict[str, Any]:
    return {"object": kind, "created": int(time.time())}


def _choice(request: PreparedRequest, index: int, ended: Ended) -> dict[str, Any]:
    text, (start, end) = request.echo["input"], request.echo["span"]
    return {
        "index": index,
        "text": text[:start] + ended.text + text[end:],
        "replacement": ended.text,
        "finish_reason": ended.finish_reason,
        "seed": ended.seed,
    }
