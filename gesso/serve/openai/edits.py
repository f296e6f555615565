"""Answers of /v1/edits: a text in which one span has been rewritten."""

import time
from collections.abc import AsyncGenerator
from typing import Any

from gesso.serve.deltas import AnswerDeltas, Delta
from gesso.serve.form import AnswerForm, EditForm
from gesso.serve.generation import Generation
from gesso.serve.jobs import AnswerJob
from gesso.serve.models import ServedModel
from gesso.serve.openai.chunks import stream_chunks
from gesso.serve.wire import Ended


def answer(model: ServedModel, generation: Generation) -> dict[str, Any]:
    choices = [_choice(generation.form, index, generation.ended[index]) for index in range(len(generation.jobs))]
    return {**_head("edit"), "choices": choices, "usage": generation.usage()}


def stream(model: ServedModel, generation: Generation) -> AsyncGenerator[bytes]:
    """Yield drafts on request, then each choice as a whole, because a span's text is known only at the end."""

    def choices(job: AnswerJob, delta: Delta, ended: Ended | None) -> list[dict[str, Any]]:
        return [_choice(generation.form, job.index, ended)] if ended else []

    answers = [AnswerDeltas(model.tokenizer, chat=False) for _ in generation.jobs]
    return stream_chunks(_head("edit.chunk"), generation, answers, choices)


def _head(kind: str) -> dict[str, Any]:
    return {"object": kind, "created": int(time.time())}


def _choice(form: AnswerForm, index: int, ended: Ended) -> dict[str, Any]:
    edit = form.details
    assert isinstance(edit, EditForm)
    return {
        "index": index,
        "text": edit.text[: edit.start] + ended.text + edit.text[edit.end :],
        "replacement": ended.text,
        "finish_reason": ended.finish_reason,
        "seed": ended.seed,
    }
