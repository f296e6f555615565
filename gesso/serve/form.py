"""The form of an answer: what the server needs to form and check it, and neither the builder nor the engine reads."""

from typing import Any

from msgspec import Struct


class ChatForm(Struct, frozen=True, tag=True):
    functions: bool  # calls are named by `functions`, the former name of `tools`


class EditForm(Struct, frozen=True, tag=True):
    text: str
    start: int  # of the span
    end: int


class DecisionForm(Struct, frozen=True, tag=True):
    choices: list[str]


class ResponseForm(Struct, frozen=True, tag=True):
    echo: bytes  # the fields that a response repeats, as JSON
    items: bytes  # the conversation to store, as JSON; empty: it is not stored


class OllamaForm(Struct, frozen=True, tag=True, kw_only=True):
    message: bool  # the answer is a message of /api/chat
    template: bool  # the prompt has the chat template
    done_reason: str | None = None  # of a request without a prompt


class LlamaCppForm(Struct, frozen=True, tag=True, kw_only=True):
    settings: dict[str, Any]
    truncated: bool  # the text around the hole was cut
    n_indent: int
    response_fields: list[str]


Details = ChatForm | EditForm | DecisionForm | ResponseForm | OllamaForm | LlamaCppForm


class AnswerForm(Struct, frozen=True, kw_only=True):
    served: str  # name of the model whose engine answers
    model: str  # name in the answer, possibly of an adapter
    adapter: str | None
    stream: bool = False
    user: str | None = None
    include_usage: bool = False
    continuous_usage: bool = False  # in every chunk of a stream
    logprobs: bool = False
    one_call: bool = False  # drop every tool call but the first
    warnings: list[str] = []
    tools: list[str] = []  # names of the tools that the model may call
    image_count: int = 0
    check: bytes = b""  # an `AnswerCheck` as JSON; empty: the answer is not checked
    details: Details | None = None  # of one dialect
