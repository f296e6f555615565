"""Answers of /v1/completions."""

from collections.abc import AsyncGenerator
from typing import Any

from gesso.serve.deltas import AnswerDeltas, Delta
from gesso.serve.generation import Generation
from gesso.serve.jobs import Job
from gesso.serve.models import ServedModel
from gesso.serve.openai.chunks import head, stream_chunks
from gesso.serve.openai.logprobs import completion_logprobs
from gesso.serve.prepare.request import PreparedRequest
from gesso.serve.protocol import Ended


def answer(model: ServedModel, request: PreparedRequest, generation: Generation) -> dict[str, Any]:
    ended = generation.ended
    choices = [_choice(model, request, job, ended[job.index], ended[job.index].text) for job in generation.jobs]
    return {**_head(request), "choices": choices, "usage": generation.usage()}


def stream(model: ServedModel, request: PreparedRequest, generation: Generation) -> AsyncGenerator[bytes]:
    def choices(job: Job, delta: Delta, ended: Ended | None) -> list[dict[str, Any]]:
        if ended:
            return [_choice(model, request, job, ended, delta.text)]
        return [{"index": job.index, "text": delta.text, "logprobs": None, "finish_reason": None}]

    answers = [AnswerDeltas(model.tokenizer, chat=False) for _ in generation.jobs]
    return stream_chunks(_head(request), request, generation, answers, choices)


def _choice(model: ServedModel, request: PreparedRequest, job: Job, ended: Ended, text: str) -> dict[str, Any]:
    return {
        "index": job.index,
        "text": text,
        "logprobs": completion_logprobs(model.tokenizer, job, ended) if request.logprobs else None,
        "finish_reason": ended.finish_reason,
        "seed": ended.seed,
    }


def _head(request: PreparedRequest) -> dict[str, Any]:
    return head("text_completion", request.model, "cmpl")
