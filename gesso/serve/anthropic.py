"""Anthropic's Messages API: its fields as those of a chat, its answers, its streams and its errors."""

import json
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gesso.chat.answer import Answer, ToolCall
from gesso.chat.image_parts import REFUSED
from gesso.images.budgets import BUDGETS
from gesso.serve.deltas import AnswerDeltas, Delta
from gesso.serve.errors import ApiError
from gesso.serve.fields import ChatFields, Common, Count, Fields, Ignored, LenientFields, Stop, example
from gesso.serve.generation import Generation
from gesso.serve.http.sse import event
from gesso.serve.image_parts import base64_part, content_of, image_part
from gesso.serve.models import ServedModel
from gesso.serve.prepare.request import PreparedRequest
from gesso.serve.protocol import Ended

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
    return {"type": "error", "error": {"type": kind, "message": error.message}}


# --- fields -----------------------------------------------------------------------------------------------------------


def _blocks(*kinds: str) -> BeforeValidator:
    """Return a validator that turns text into a block and rejects blocks of other kinds, such as documents."""

    def check(value: Any) -> Any:
        if isinstance(value, str):
            return [{"type": "text", "text": value}]
        for index, block in enumerate(value if isinstance(value, list) else ()):
            kind = block.get("type") if isinstance(block, dict) else None
            if isinstance(kind, str) and kind not in kinds and kind in REFUSED:
                raise ValueError(f"block {index}: {REFUSED[kind]}")
            if kind not in kinds:
                raise ValueError(f"block {index} has the type {kind!r:.100}; supported are {', '.join(kinds)}")
        return value

    return BeforeValidator(check, json_schema_input_type=str | list[dict[str, Any]])


def _check_tokens(tokens: int) -> int:
    if tokens not in BUDGETS:
        raise ValueError(f"expected one of {', '.join(map(str, BUDGETS))}, got {tokens}")
    return tokens


Tokens = Annotated[int, AfterValidator(_check_tokens)]


class TextBlock(LenientFields):
    type: Literal["text"]
    text: str


TextBlocks = Annotated[list[TextBlock], Field(fail_fast=True), _blocks("text")]


class Base64Source(LenientFields):
    type: Literal["base64"]
    data: str
    media_type: str | None = Field(default=None, description="No effect: the contents decide.")


class UrlSource(LenientFields):
    type: Literal["url"]
    url: str


class ImageBlock(LenientFields):
    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]
    tokens: Tokens | None = Field(default=None, description="Tokens that the image may become.")

    def part(self, where: str) -> dict[str, Any]:
        """Return the image as a part of a chat message."""
        if isinstance(self.source, UrlSource):
            return image_part(self.source.url, f"{where}.source.url", self.tokens)
        return base64_part(self.source.data, f"{where}.source.data", self.tokens)


ResultBlock = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]


class ThinkingBlock(LenientFields):
    """A thought of an earlier turn. The model does not see it."""

    type: Literal["thinking", "redacted_thinking"]


class ToolUseBlock(LenientFields):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(LenientFields):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[list[ResultBlock], Field(fail_fast=True), _blocks("text", "image")] = []
    is_error: bool = False

    def parts(self, where: str) -> Iterator[dict[str, Any]]:
        """Yield the result as parts of a chat message."""
        if self.is_error:
            yield _text_block("Error: ")
        for index, block in enumerate(self.content):
            place = f"{where}.content[{index}]"
            yield block.part(place) if isinstance(block, ImageBlock) else _text_block(block.text)


Block = Annotated[TextBlock | ImageBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class MessageFields(LenientFields):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[Block],
        Field(fail_fast=True),
        _blocks("text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"),
    ]

    def chat_messages(self, where: str) -> Iterator[dict[str, Any]]:
        """Yield the messages of a chat: one per tool result, and one with texts, images and calls."""
        results, parts, calls = [], list[dict[str, Any]](), []
        for index, block in enumerate(self.content):
            place = f"{where}.content[{index}]"
            match block:
                case TextBlock():
                    parts.append(_text_block(block.text))
                case ImageBlock():
                    parts.append(block.part(place))
                case ToolUseBlock():
                    function = {"name": block.name, "arguments": block.input}
                    calls.append({"id": block.id, "type": "function", "function": function})
                case ToolResultBlock():
                    content = content_of(block.parts(place))
                    results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
        yield from results
        if parts or calls or not results:
            yield {"role": self.role, "content": content_of(parts), "tool_calls": calls}


class ToolFields(LenientFields):
    type: Literal["custom"] = "custom"
    name: str
    description: str = ""
    input_schema: dict[str, Any]

    def chat_tool(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ToolChoiceFields(Fields):
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("give name if and only if type is tool")
        return self

    def chat_choice(self) -> str | dict[str, Any]:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class ThinkingFields(LenientFields):
    """Whether to think before the answer: with `enabled` and `adaptive`. A budget is ignored."""

    type: Literal["enabled", "adaptive", "disabled"] = "disabled"


class OutputFormat(LenientFields):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputFields(LenientFields):
    format: OutputFormat | None = Field(default=None, description="A JSON schema for the answer.")


class MessagesFields(Common):
    model_config = example({"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 64})

    messages: Annotated[list[MessageFields], Field(fail_fast=True)]
    system: TextBlocks = []
    max_tokens: Count | None = None
    stop_sequences: Stop = []
    tools: Annotated[list[ToolFields], Field(fail_fast=True)] = []
    tool_choice: ToolChoiceFields = ToolChoiceFields()
    thinking: ThinkingFields = ThinkingFields()
    output_config: OutputFields = OutputFields()
    metadata: Ignored = None
    service_tier: Ignored = None
    cache_control: Ignored = None
    context_management: Ignored = None

    def to_chat(self) -> ChatFields:
        system = [{"role": "system", "content": _text(self.system)}] if self.system else []
        messages = [
            each for index, message in enumerate(self.messages) for each in message.chat_messages(f"messages[{index}]")
        ]
        chat = {name: getattr(self, name) for name in (*Common.model_fields, "max_tokens")}
        chat |= {
            "messages": [*system, *messages],
            "stop": self.stop_sequences,
            "tools": [tool.chat_tool() for tool in self.tools],
            "tool_choice": self.tool_choice.chat_choice(),
            "thinking": self.thinking.type != "disabled",
        }
        if self.tool_choice.disable_parallel_tool_use:
            chat["parallel_tool_calls"] = False
        if (output := self.output_config.format) is not None:
            chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": output.schema_}}
        return ChatFields.model_validate(chat)


def _text(blocks: Sequence[TextBlock]) -> str:
    return "".join(block.text for block in blocks)


# --- answers ----------------------------------------------------------------------------------------------------------


def answer(model: ServedModel, request: PreparedRequest, generation: Generation) -> dict[str, Any]:
    read = AnswerDeltas(model.tokenizer, chat=True, tools=request.tools, one_call=request.one_call).answer(
        generation.ended[0]
    )
    content = [_thinking_block(read.thinking)] if read.thinking else []
    content += [_text_block(read.text)] if read.text else []
    content += [_tool_use_block(call, call.arguments) for call in read.tool_calls]
    return {
        **_head(request),
        "content": content or [_text_block("")],
        **_end(generation.ended[0], read),
        "usage": _usage(generation),
    }


async def stream(model: ServedModel, request: PreparedRequest, generation: Generation) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(_events(model, request, generation)) as events:
            async for data in events:
                yield event(data, data["type"])
    except ApiError as error:
        yield event(error_body(error), "error")


async def _events(
    model: ServedModel, request: PreparedRequest, generation: Generation
) -> AsyncGenerator[dict[str, Any]]:
    usage = {"input_tokens": generation.jobs[0].prepared.prompt_tokens, "output_tokens": 0}
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield {"type": "message_start", "message": {**_head(request), **begun}}
    answer, blocks = AnswerDeltas(model.tokenizer, chat=True, tools=request.tools, one_call=request.one_call), _Blocks()
    async with aclosing(generation.deltas(answer)) as deltas:
        async for delta in deltas:
            for part in blocks.write(delta):
                yield part
    for part in blocks.end():
        yield part
    end = _end(generation.ended[0], answer.sent)
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


def _head(request: PreparedRequest) -> dict[str, Any]:
    return {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": request.model}


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
