"""Answers of /v1/responses in its text form: one message. Nothing is stored."""

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from gesso.chat.answer import Answer
from gesso.serve.generation import Generation
from gesso.serve.http.sse import Writing, event
from gesso.serve.models import ServedModel
from gesso.serve.prepare.request import Accepted
from gesso.serve.protocol import Ended, Settled


def answer(model: ServedModel, asked: Accepted, generation: Generation) -> dict[str, Any]:
    ended = generation.ended[0]
    read = Writing(model.tokenizer, chat=True).answer(ended)
    return _finished(_response(asked), read, ended, generation, f"msg_{uuid.uuid4().hex}")


async def stream(model: ServedModel, asked: Accepted, generation: Generation) -> AsyncGenerator[bytes]:
    response, message_id, number = _response(asked), f"msg_{uuid.uuid4().hex}", -1
    writing = Writing(model.tokenizer, chat=True)
    here = {"item_id": message_id, "output_index": 0, "content_index": 0}

    def tell(kind: str, **data: Any) -> bytes:
        nonlocal number
        number += 1
        return event({"type": kind, "sequence_number": number, **data}, kind)

    yield tell("response.created", response=response)
    yield tell("response.in_progress", response=response)
    yield tell("response.output_item.added", output_index=0, item=_message(message_id, None))
    yield tell("response.content_part.added", **here, part=_part(""))
    events = generation.events()
    try:
        async for job, happened in events:
            new = writing.settle(happened.tokens) if isinstance(happened, Settled) else None
            if isinstance(happened, Ended):
                new = writing.end(happened)
            if new and new.text:
                generation.note_text(job)
                yield tell("response.output_text.delta", **here, delta=new.text, logprobs=[])
    finally:
        await events.aclose()
    text = writing.sent.text
    finished = _finished(response, writing.sent, generation.ended[0], generation, message_id)
    yield tell("response.output_text.done", **here, text=text, logprobs=[])
    yield tell("response.content_part.done", **here, part=_part(text))
    yield tell("response.output_item.done", output_index=0, item=_message(message_id, text))
    kind = "response.completed" if finished["status"] == "completed" else "response.incomplete"
    yield tell(kind, response=finished)


def _response(asked: Accepted) -> dict[str, Any]:
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": asked.model,
        **asked.echo,
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


def _finished(
    response: dict[str, Any], read: Answer, ended: Ended, generation: Generation, message_id: str
) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if read.thinking:
        summary = [{"type": "summary_text", "text": read.thinking}]
        output.append({"type": "reasoning", "id": f"rs_{uuid.uuid4().hex}", "summary": summary})
    output.append(_message(message_id, read.text))
    whole = ended.finish_reason != "length"
    usage = generation.usage()
    return {
        **response,
        "status": "completed" if whole else "incomplete",
        "incomplete_details": None if whole else {"reason": "max_output_tokens"},
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
    """None: it is only being begun."""
    status, content = ("in_progress", []) if text is None else ("completed", [_part(text)])
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
