"""/v1/chat/completions."""

import json
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from gesso.chat.answer import ToolCall
from gesso.serve.generation import Generation
from gesso.serve.http.sse import Delta, Writing, event
from gesso.serve.jobs import Job
from gesso.serve.models import ServedModel
from gesso.serve.openai.chunks import chunks
from gesso.serve.openai.logprobs import chat_logprobs
from gesso.serve.prepare.request import Accepted
from gesso.serve.protocol import Ended


def answer(model: ServedModel, asked: Accepted, generation: Generation) -> dict[str, Any]:
    choices = []
    for index, job in enumerate(generation.jobs):
        ended = generation.ended[index]
        read = Writing(model.tokenizer, chat=True).answer(ended)
        message: dict[str, Any] = {"role": "assistant", "content": read.text or None, "refusal": None}
        if read.thinking:
            message["reasoning_content"] = read.thinking
        if read.tool_calls:
            message["tool_calls"] = [_call(call) for call in read.tool_calls]
        else:
            message["content"] = read.text
        if read.malformed:  # calls that cannot be parsed: not text for a user, but the caller must know
            message["malformed_tool_calls"] = list(read.malformed)
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": chat_logprobs(model.tokenizer, job, ended) if asked.logprobs else None,
                "finish_reason": _finish(ended, read.tool_calls),
                "seed": ended.seed,
            }
        )
    return {**_head(asked, "chat.completion"), "choices": choices, "usage": generation.usage()}


async def stream(model: ServedModel, asked: Accepted, generation: Generation) -> AsyncGenerator[bytes]:
    head = _head(asked, "chat.completion.chunk")
    writings = [Writing(model.tokenizer, chat=True) for _ in generation.jobs]
    calls = [0] * len(writings)

    def choice(index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}

    def parts(index: int, delta: Delta) -> dict[str, Any]:
        found: dict[str, Any] = {"content": delta.text} if delta.text else {}
        if delta.thinking:
            found["reasoning_content"] = delta.thinking
        if delta.calls:
            found["tool_calls"] = [{"index": calls[index] + i, **_call(c)} for i, c in enumerate(delta.calls)]
            calls[index] += len(delta.calls)
        return found

    def choices(job: Job, delta: Delta, ended: Ended | None) -> list[dict[str, Any]]:
        more = {"logprobs": chat_logprobs(model.tokenizer, job, ended)} if ended and asked.logprobs else {}
        found = [choice(job.index, parts(job.index, delta), **more)] if delta else []
        if ended:
            finish = _finish(ended, writings[job.index].sent.tool_calls)
            found.append(choice(job.index, {}, finish_reason=finish, seed=ended.seed))
        return found

    for index in range(len(writings)):
        yield event({**head, "choices": [choice(index, {"role": "assistant", "content": ""})]})
    rest = chunks(head, generation, writings, choices, usage=asked.include_usage)
    async with aclosing(rest):
        async for part in rest:
            yield part


def _head(asked: Accepted, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": asked.model}


def _finish(ended: Ended, calls: Sequence[ToolCall]) -> str:
    return "tool_calls" if calls and ended.finish_reason == "stop" else ended.finish_reason


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
