"""/v1/chat/completions."""

import json
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from gesso.answer import ToolCall
from gesso.serve.asking import Desk
from gesso.serve.fields import ChatFields
from gesso.serve.generation import Generation
from gesso.serve.jobs import Job
from gesso.serve.logprobs import chat_logprobs
from gesso.serve.protocol import Drafted, Ended, Settled
from gesso.serve.stream import DONE, Delta, Writing, event


async def jobs(desk: Desk, asked: ChatFields, client: str) -> list[Job]:
    desk.adapter(asked.model)  # an unknown model is refused before the conversation is read
    constraint = asked.constraint()
    await desk.check_constraint(constraint)
    tools = None if asked.tool_choice == "none" else asked.tools
    prompt = await desk.chat_ids(asked.messages, tools=tools, thinking=asked.thinks)
    return desk.jobs(
        asked,
        [prompt],
        client=client,
        n=asked.n,
        max_tokens=asked.max_completion_tokens or asked.max_tokens,
        stop=asked.stop,
        top_logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        constraint=constraint,
    )


async def answer(desk: Desk, asked: ChatFields, generation: Generation) -> dict[str, Any]:
    choices = []
    for index, ended in enumerate(await generation.results()):
        read = Writing(desk.tokenizer, chat=True).answer(ended)
        message: dict[str, Any] = {"role": "assistant", "content": read.text or None, "refusal": None}
        if read.thinking:
            message["reasoning_content"] = read.thinking
        if read.tool_calls:
            message["tool_calls"] = [_call(call) for call in read.tool_calls]
        else:
            message["content"] = read.text
        if read.malformed:  # calls that cannot be read: no text for a user, but the caller must know
            message["malformed_tool_calls"] = list(read.malformed)
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": chat_logprobs(desk.tokenizer, ended) if asked.logprobs else None,
                "finish_reason": _finish(ended, read.tool_calls),
                "seed": ended.seed,
            }
        )
    return {**_head(desk, asked, "chat.completion"), "choices": choices, "usage": generation.usage()}


async def stream(desk: Desk, asked: ChatFields, generation: Generation) -> AsyncGenerator[bytes]:
    head = _head(desk, asked, "chat.completion.chunk")
    writings = [Writing(desk.tokenizer, chat=True) for _ in generation.jobs]
    calls = [0] * len(writings)

    def chunk(index: int, delta: dict[str, Any], **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return event({**head, "choices": [choice]})

    def parts(index: int, delta: Delta) -> dict[str, Any]:
        found: dict[str, Any] = {"content": delta.text} if delta.text else {}
        if delta.thinking:
            found["reasoning_content"] = delta.thinking
        if delta.calls:
            found["tool_calls"] = [{"index": calls[index] + i, **_call(c)} for i, c in enumerate(delta.calls)]
            calls[index] += len(delta.calls)
        return found

    for index in range(len(writings)):
        yield chunk(index, {"role": "assistant", "content": ""})
    events = generation.events()
    try:
        async for job, happened in events:
            writing = writings[job.index]
            match happened:
                case Settled(tokens=tokens):
                    if delta := writing.settle(tokens):
                        generation.note_text(job)
                        yield chunk(job.index, parts(job.index, delta))
                case Drafted():
                    yield event({**head, "choices": [], "draft": draft(job, happened)})
                case Ended():
                    if delta := writing.end(happened):
                        generation.note_text(job)
                        more = {"logprobs": chat_logprobs(desk.tokenizer, happened)} if asked.logprobs else {}
                        yield chunk(job.index, parts(job.index, delta), **more)
                    finish = _finish(happened, writing.sent.tool_calls)
                    yield chunk(job.index, {}, finish_reason=finish, seed=happened.seed)
    finally:
        await events.aclose()
    if asked.stream_options.include_usage:
        yield event({**head, "choices": [], "usage": generation.usage()})
    yield DONE


def draft(job: Job, drafted: Drafted) -> dict[str, Any]:
    """A canvas on its way, for clients that show the writing."""
    return {
        "index": job.index,
        "canvas": drafted.canvas,
        "step": drafted.step,
        "text": drafted.text,
        "entropy": drafted.entropy,
    }


def _head(desk: Desk, asked: ChatFields, kind: str) -> dict[str, Any]:
    model = asked.model or desk.settings.name
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _finish(ended: Ended, calls: Sequence[ToolCall]) -> str:
    return "tool_calls" if calls and ended.finish_reason == "stop" else ended.finish_reason


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
