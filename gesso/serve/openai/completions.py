"""Answers of /v1/completions."""

from collections.abc import AsyncGenerator
from typing import Any

from gesso.serve.deltas import AnswerDeltas, Delta
from gesso.serve.form import AnswerForm
from gesso.serve.generation import Generation
from gesso.serve.jobs import AnswerJob
from gesso.serve.models import ServedModel
from gesso.serve.openai.chunks import head, stream_chunks
from gesso.serve.openai.logprobs import completion_logprobs
from gesso.serve.wire import Ended


def answer(model: ServedModel, generation: Generation) -> dict[str, Any]:
    form = generation.form
    ended = generation.ended
    choices = [_choice(model, form, job, ended[job.index], ended[job.index].text) for job in generation.jobs]
    return {**_head(form), "choices": choices, "usage": generation.usage()}


def stream(model: ServedModel, generation: Generation) -> AsyncGenerator[bytes]:
    form = generation.form

    def choices(job: AnswerJob, delta: Delta, ended: Ended | None) -> list[dict[str, Any]]:
        if ended:
            return [_choice(model, form, job, ended, delta.text)]
        return [{"index": job.index, "text": delta.text, "logprobs": None, "finish_reason": None}]

    answers = [AnswerDeltas(model.tokenizer, chat=False) for _ in generation.jobs]
    return stream_chunks(_head(form), generation, answers, choices)


def _choice(model: ServedModel, form: AnswerForm, job: AnswerJob, ended: Ended, text: str) -> dict[str, Any]:
    return {
        "index": job.index,
        "text": text,
        "logprobs": completion_logprobs(model.tokenizer, job, ended) if form.logprobs else None,
        "finish_reason": ended.finish_reason,
        "seed": ended.seed,
    }


def _head(form: AnswerForm) -> dict[str, Any]:
    return head("text_completion", form.model, "cmpl")
