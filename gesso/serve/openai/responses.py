"""Answers of /v1/responses in its text form: one message. Nothing is stored."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from gesso.chat.answer import Answer
from gesso.serve.generation import Generation
from gesso.serve.http.sse import event
from gesso.serve.models import ServedModel
from gesso.serve.openai.deltas import AnswerDeltas, Delta
from gesso.serve.prepare.request import PreparedRequest
from gesso.serve.protocol import Ended, Settled


def answer(model: ServedModel, request: PreparedRequest, generation: Generation) -> dict[str, Any]:
    read = AnswerDeltas(model.tokenizer, chat=True, tools=request.tools).answer(generation.ended[0])
    return _finished(_response(request), read, generation, f"msg_{uuid.uuid4().hex}")


async def stream(model: ServedModel, request: PreparedRequest, generation: Generation) -> AsyncGenerator[bytes]:
    response, message_id, number = _response(request), f"msg_{uuid.uuid4().hex}", -1
    answer = AnswerDeltas(model.tokenizer, chat=True, tools=request.tools)
    part = {"item_id": message_id, "output_index": 0, "content_index": 0}

    def numbered(kind: str, **data: Any) -> bytes:
        nonlocal number
        number += 1
        return event({"type": kind, "sequence_number": number, **data}, kind)

    yield numbered("response.created", response=response)
    yield numbered("response.in_progress", response=response)
    yield numbered("response.output_item.added", output_index=0, item=_message(message_id, None))
    yield numbered("response.content_part.added", **part, part=_text_part(""))
    async with aclosing(generation.events()) as events:
        async for job, happened in events:
            delta = Delta()
            match happened:
                case Settled(tokens=tokens):
                    delta = answer.settle(tokens)
                case Ended():
                    delta = answer.end(happened)
            if delta.text:
                generation.note_text(job)
                yield numbered("response.output_text.delta", **part, delta=delta.text, logprobs=[])
    text = answer.sent.text
    finished = _finished(response, answer.sent, generation, message_id)
    yield numbered("response.output_text.done", **part, text=text, logprobs=[])
    yield numbered("response.content_part.done", **part, part=_text_part(text))
    yield numbered("response.output_item.done", output_index=0, item=_message(message_id, text))
    yield numbered(f"response.{finished['status']}", response=finished)


def _response(request: PreparedRequest) -> dict[str, Any]:
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": request.model,
        **request.echo,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "store": False,
        "metadata": {},
        "usage": None,
    }


def _finished(response: dict[str, Any], read: Answer, generation: Generation, message_id: str) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if read.thinking:
        summary = [{"type": "summary_text", "text": read.thinking}]
        output.append({"type": "reasoning", "id": f"rs_{uuid.uuid4().hex}", "summary": summary})
    output.append(_message(message_id, read.text))
    complete = generation.ended[0].finish_reason != "length"
    usage = generation.usage()
    return {
        **response,
        "status": "completed" if complete else "incomplete",
        "incomplete_details": None if complete else {"reason": "max_output_tokens"},
        "output": output,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
            "diffusion": usage["diffusion"],
        },
    }


def _message(id: str, text: str | None) -> dict[str, Any]:
    """Return a message item. `text` is None while the message has only begun."""
    status, content = ("in_progress", []) if text is None else ("completed", [_text_part(text)])
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": content}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
