"""Answers of /v1/chat/completions."""

import json
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from gesso.chat.calls import ToolCall
from gesso.serve.deltas import AnswerDeltas, Delta
from gesso.serve.form import AnswerForm, ChatForm
from gesso.serve.generation import Generation
from gesso.serve.jobs import AnswerJob
from gesso.serve.models import ServedModel
from gesso.serve.openai.chunks import head, stream_chunks
from gesso.serve.openai.logprobs import chat_logprobs
from gesso.serve.wire import Ended

ID_PREFIX = "chatcmpl"


def answer(model: ServedModel, generation: Generation) -> dict[str, Any]:
    form = generation.form
    choices = []
    for index, job in enumerate(generation.jobs):
        ended = generation.ended[index]
        read = AnswerDeltas(model.tokenizer, chat=True, tools=form.tools, one_call=form.one_call).answer(ended)
        message: dict[str, Any] = {"role": "assistant", "content": read.text or None, "refusal": None}
        if read.thinking:
            message["reasoning_content"] = read.thinking
        if read.tool_calls and _has_functions(form):
            message["function_call"] = _function(read.tool_calls[0])
        elif read.tool_calls:
            message["tool_calls"] = [_tool_call(call) for call in read.tool_calls]
        else:
            message["content"] = read.text
        if read.malformed:  # not text for a user, but the caller must know that a call could not be parsed
            message["malformed_tool_calls"] = list(read.malformed)
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": chat_logprobs(model.tokenizer, job, ended) if form.logprobs else None,
                "finish_reason": _finish_reason(form, ended, read.tool_calls),
                "seed": ended.seed,
            }
        )
    return {**head("chat.completion", form.model, ID_PREFIX), "choices": choices, "usage": generation.usage()}


def stream(model: ServedModel, generation: Generation) -> AsyncGenerator[bytes]:
    form = generation.form
    answers = [
        AnswerDeltas(model.tokenizer, chat=True, tools=form.tools, one_call=form.one_call) for _ in generation.jobs
    ]
    calls_sent = [0] * len(answers)

    def choice(index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}

    def delta_fields(index: int, delta: Delta) -> dict[str, Any]:
        fields: dict[str, Any] = {"content": delta.text} if delta.text else {}
        if delta.thinking:
            fields["reasoning_content"] = delta.thinking
        first = calls_sent[index]
        if delta.calls and _has_functions(form):
            fields["function_call"] = _function(delta.calls[0])
        elif delta.calls:
            fields["tool_calls"] = [{"index": i, **_tool_call(c)} for i, c in enumerate(delta.calls, first)]
            calls_sent[index] += len(delta.calls)
        return fields

    def choices(job: AnswerJob, delta: Delta, ended: Ended | None) -> list[dict[str, Any]]:
        more = {"logprobs": chat_logprobs(model.tokenizer, job, ended)} if ended and form.logprobs else {}
        events = [choice(job.index, delta_fields(job.index, delta), **more)] if delta else []
        if ended:
            read = answers[job.index].final
            malformed = {"malformed_tool_calls": list(read.malformed)} if read.malformed else {}
            reason = _finish_reason(form, ended, read.tool_calls)
            events.append(choice(job.index, malformed, finish_reason=reason, seed=ended.seed))
        return events

    return stream_chunks(
        head("chat.completion.chunk", form.model, ID_PREFIX),
        generation,
        answers,
        choices,
        opening=[choice(index, {"role": "assistant", "content": ""}) for index in range(len(answers))],
    )


def _finish_reason(form: AnswerForm, ended: Ended, calls: Sequence[ToolCall]) -> str:
    if not calls or ended.finish_reason != "stop":
        return ended.finish_reason
    return "function_call" if _has_functions(form) else "tool_calls"


def _has_functions(form: AnswerForm) -> bool:
    return isinstance(form.details, ChatForm) and form.details.functions


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": _function(call)}


def _function(call: ToolCall) -> dict[str, str]:
    return {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
