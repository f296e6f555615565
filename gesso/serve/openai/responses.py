"""Answers of /v1/responses."""

import json
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from gesso.chat.answer import Answer
from gesso.chat.tokenizer import Tokenizer
from gesso.serve.deltas import AnswerDeltas
from gesso.serve.errors import ApiError
from gesso.serve.form import AnswerForm, ResponseForm
from gesso.serve.generation import Generation
from gesso.serve.http.sse import event, event_of_json
from gesso.serve.models import ServedModel
from gesso.serve.openai.response_output import Output
from gesso.serve.stored import StoredResponse


def answer(model: ServedModel, generation: Generation) -> bytes:
    form = generation.form
    response, deltas = (
        Response(form),
        AnswerDeltas(model.tokenizer, chat=True, tools=form.tools, one_call=form.one_call),
    )
    list(response.output.add(deltas.end(generation.ended[0])))  # its events are for streams
    list(response.output.end(complete=_is_complete(generation)))
    return response.finished(model, deltas.final, generation)


async def stream(model: ServedModel, generation: Generation) -> AsyncGenerator[bytes]:
    form = generation.form
    response, deltas, number = (
        Response(form),
        AnswerDeltas(model.tokenizer, chat=True, tools=form.tools, one_call=form.one_call),
        -1,
    )

    def numbered(kind: str, fields: dict[str, Any]) -> bytes:
        nonlocal number
        number += 1
        return event({"type": f"response.{kind}", "sequence_number": number, **fields}, f"response.{kind}")

    def with_response(kind: str, body: bytes) -> bytes:
        nonlocal number
        number += 1
        head = b'{"type":"response.%s","sequence_number":%d,"response":' % (kind.encode(), number)
        return event_of_json(head + body + b"}", f"response.{kind}")

    for kind in ("created", "in_progress"):
        yield with_response(kind, response.body("in_progress"))
    try:
        async with aclosing(generation.deltas(deltas)) as added:
            async for delta in added:
                for kind, fields in response.output.add(delta):
                    yield numbered(kind, fields)
    except ApiError as error:
        code = "invalid_prompt" if error.status < 500 else "server_error"
        output = json.dumps(response.output.items).encode()
        yield with_response("failed", response.body("failed", output, error={"code": code, "message": error.message}))
        return
    complete = _is_complete(generation)
    for kind, fields in response.output.end(complete=complete):
        yield numbered(kind, fields)
    yield with_response("completed" if complete else "incomplete", response.finished(model, deltas.final, generation))


class Response:
    """One response, as JSON. The fields that it repeats stay the bytes that preparing wrote."""

    def __init__(self, form: AnswerForm) -> None:
        hex_id = uuid.uuid4().hex
        self.id, self.created_at, self.model = f"resp_{hex_id}", int(time.time()), form.model
        self.warnings = form.warnings
        assert isinstance(form.details, ResponseForm)
        self.echo, self.items = form.details.echo, form.details.items
        self.output = Output(hex_id)

    def body(self, status: str, output: bytes = b"[]", **given: Any) -> bytes:
        fields = {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "model": self.model,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "warnings": self.warnings,
            **given,
        }
        own = json.dumps(fields).encode()
        return b'%s,"output":%s,%s' % (own[:-1], output, self.echo[1:])

    def finished(self, model: ServedModel, read: Answer, generation: Generation) -> bytes:
        """Return the finished response, and store it unless the request said not to."""
        complete, output = _is_complete(generation), json.dumps(self.output.items).encode()
        body = self.body(
            "completed" if complete else "incomplete",
            output,
            incomplete_details=None if complete else {"reason": "max_output_tokens"},
            usage=_usage(model.tokenizer, read, generation),
            malformed_tool_calls=list(read.malformed),  # not text, but the caller must know of calls it cannot run
        )
        if self.items:
            model.stored.put(generation.jobs[0].client, self.id, StoredResponse(self.items, output, body))
        return body


def _is_complete(generation: Generation) -> bool:
    return generation.ended[0].finish_reason != "length"


def _usage(tokenizer: Tokenizer, read: Answer, generation: Generation) -> dict[str, Any]:
    usage, tokens = generation.usage(), generation.ended[0].tokens
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": _thinking_tokens(tokenizer, tokens) if read.thinking else 0},
        "total_tokens": usage["total_tokens"],
        "diffusion": usage["diffusion"],
    }


def _thinking_tokens(tokenizer: Tokenizer, tokens: Sequence[int]) -> int:
    """Count the tokens of thoughts, with the tags around them."""
    begin, end = tokenizer.id_of("<|channel>"), tokenizer.id_of("<channel|>")
    count, inside = 0, False
    for token in tokens:
        inside = inside or token == begin
        count += inside
        inside = inside and token != end
    return count
