"""Anthropic's Messages API: its answers, its streams and its errors."""

import json
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from gesso.chat.answer import Answer
from gesso.chat.calls import ToolCall
from gesso.serve.deltas import AnswerDeltas, Delta
from gesso.serve.errors import THREAD_UNSUPPORTED, ApiError
from gesso.serve.form import AnswerForm
from gesso.serve.generation import Generation
from gesso.serve.http.sse import event
from gesso.serve.models import ServedModel
from gesso.serve.wire import Ended

ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    kind = ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = error.message
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # by which Claude Code recognizes that it must compact
    body: dict[str, Any] = {"type": kind, "message": message}
    if error.code == THREAD_UNSUPPORTED:
        body["details"] = {"error_code": THREAD_UNSUPPORTED, "unsupported": ["thread"]}
    return {"type": "error", "error": body}


# --- answers ----------------------------------------------------------------------------------------------------------


def answer(model: ServedModel, generation: Generation) -> dict[str, Any]:
    form = generation.form
    read = AnswerDeltas(model.tokenizer, chat=True, tools=form.tools, one_call=form.one_call).answer(
        generation.ended[0]
    )
    content = [_thinking_block(read.thinking)] if read.thinking else []
    content += [_text_block(read.text)] if read.text else []
    content += [_tool_use_block(call, call.arguments) for call in read.tool_calls]
    return {
        **_head(form),
        "content": content or [_text_block("")],
        **_end(generation.ended[0], read),
        "usage": _usage(generation),
    }


async def stream(model: ServedModel, generation: Generation) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(_events(model, generation)) as events:
            async for data in events:
                yield event(data, data["type"])
    except ApiError as error:
        yield event(error_body(error), "error")


async def _events(model: ServedModel, generation: Generation) -> AsyncGenerator[dict[str, Any]]:
    form = generation.form
    usage = {"input_tokens": generation.jobs[0].prompt.prompt_tokens, "output_tokens": 0}
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield {"type": "message_start", "message": {**_head(form), **begun}}
    answer, blocks = AnswerDeltas(model.tokenizer, chat=True, tools=form.tools, one_call=form.one_call), _Blocks()
    async with aclosing(generation.deltas(answer)) as deltas:
        async for delta in deltas:
            for part in blocks.write(delta):
                yield part
    for part in blocks.end():
        yield part
    end = _end(generation.ended[0], answer.final)
    yield {"type": "message_delta", "delta": end, "usage": _usage(generation)}
    yield {"type": "message_stop"}


class _Blocks:
    """The content blocks of a stream. One is open at a time."""

    def __init__(self) -> None:
        self.index, self.kind = -1, ""

    def write(self, delta: Delta) -> Iterator[dict[str, Any]]:
        if delta.thinking:
            yield from self._open(_thinking_block(""))
            yield self._delta("thinking_delta", thinking=delta.thinking)
        if delta.text:
            yield from self._open(_text_block(""))
            yield self._delta("text_delta", text=delta.text)
        for call in delta.calls:
            yield from self._open(_tool_use_block(call, {}))
            yield self._delta("input_json_delta", partial_json=json.dumps(call.arguments))

    def end(self) -> Iterator[dict[str, Any]]:
        if not self.kind:
            yield from self._open(_text_block(""))
        yield {"type": "content_block_stop", "index": self.index}

    def _open(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Open a block, unless one of the same kind is open. Every tool call has its own block."""
        if self.kind == block["type"] != "tool_use":
            return
        if self.kind:
            yield {"type": "content_block_stop", "index": self.index}
        self.index, self.kind = self.index + 1, block["type"]
        yield {"type": "content_block_start", "index": self.index, "content_block": block}

    def _delta(self, kind: str, **fields: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self.index, "delta": {"type": kind, **fields}}


def _head(form: AnswerForm) -> dict[str, Any]:
    return {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": form.model}


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _thinking_block(thinking: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": thinking, "signature": ""}


def _tool_use_block(call: ToolCall, input: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": call.name, "input": input}


def _end(ended: Ended, read: Answer) -> dict[str, Any]:
    """Return why the answer ended. Anthropic's API has neither the seed nor calls that cannot be read."""
    if ended.finish_reason == "length":
        reason = "max_tokens"
    elif read.tool_calls:
        reason = "tool_use"
    else:
        reason = "end_turn" if ended.stop is None else "stop_sequence"
    malformed = {"malformed_tool_calls": list(read.malformed)} if read.malformed else {}
    return {"stop_reason": reason, "stop_sequence": ended.stop, "seed": ended.seed, **malformed}


def _usage(generation: Generation) -> dict[str, Any]:
    """Return the usage. `input_tokens` are the prompt tokens that were not in the cache."""
    usage = generation.usage()
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
        "diffusion": usage["diffusion"],
    }
