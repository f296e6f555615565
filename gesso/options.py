"""Keyword arguments of `Gesso.generate` and its relatives, for type checkers and editors (PEP 692), and what they mean.

All are optional.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, Unpack

from gesso import renamed
from gesso.constraints.guide import Guide
from gesso.constraints.schema.options import SchemaOptions
from gesso.constraints.spec import ConstraintSpec
from gesso.engine.events import Draft
from gesso.errors import InputError
from gesso.presets import Preset
from gesso.request.spec import ChatSpec, RequestSpec, TextPrompt
from gesso.settings import SETTINGS, DiffusionOptions, unknown_settings

Method = Literal["auto", "prompt", "pinned"]
PLACEHOLDER = (0,)


class TextOptions(DiffusionOptions, total=False):
    """Options of every method that writes text, and every diffusion setting."""

    max_new_tokens: int | None  # None: the checkpoint's default, or less where the context ends
    seed: int | None  # None: random; `Result.seed` has the seed that was used
    temperature: float | None  # 0 to 2, as chat APIs have it: 0 is greedy; None or 1: the settings as they are
    preset: Preset | None  # settings to start from; None: the checkpoint's
    stop: str | Sequence[str]  # end the text before any of these strings
    adapter: str | None  # name of the adapter; None: the one of `Gesso.use_adapter`
    top_logprobs: int | None  # add the logprobs of tokens, and of this many alternatives, to commit events
    draft_logprobs: int | None  # the same for draft events; every step takes longer
    # A constraint on the text, one at most:
    choice: Sequence[str] | None  # one of these texts
    regex: str | None  # in Rust's syntax
    json_schema: Mapping[str, Any] | bool | None
    schema_options: SchemaOptions | None  # which texts of valid values are allowed; for json_schema
    grammar: str | None  # EBNF


class GenerateOptions(TextOptions, total=False):
    """Options of `generate`, `stream` and `request`."""

    pins: Mapping[int, int] | None  # token id by position in the new text
    resume: Draft | None  # draft event of an earlier run with the same arguments, to continue from


class ChatOptions(GenerateOptions, total=False):
    """Options of `chat`, `stream_chat` and `chat_request`."""

    tools: Sequence[Mapping[str, Any]] | None  # in OpenAI's format
    thinking: bool  # let the model think before the answer
    tool_choice: str | Mapping[str, Any]  # "auto", "none", "required", or the name of the tool to call
    parallel_tool_calls: bool  # allow several calls where `tool_choice` requires one
    schema_in_prompt: bool  # add `json_schema` to the last message, so that the model knows it


class InfillOptions(TextOptions, total=False):
    """Options of `infill` and `infill_holes`."""

    method: Method
    lengths: Sequence[int] | None
    context: int | None
    candidates: int


# The options that a `RequestSpec` and its constraint have under the same names.
_OF_REQUEST = {field.name for field in fields(RequestSpec)} & GenerateOptions.__annotations__.keys()
_OF_CONSTRAINT = {field.name for field in fields(ConstraintSpec)} & GenerateOptions.__annotations__.keys()


def text_spec(
    prompt: TextPrompt | ChatSpec,
    *,
    guide: Guide | None = None,
    thinking: bool = False,
    **options: Unpack[GenerateOptions],
) -> RequestSpec:
    """Return what `Gesso.request` with these arguments asks for."""
    given = renamed.translated(options)
    of_request = {name: given.pop(name) for name in _OF_REQUEST & given.keys()}
    of_constraint: dict[str, Any] = {name: given.pop(name) for name in _OF_CONSTRAINT & given.keys()}
    if unknown := given.keys() - SETTINGS.keys():
        also = [name for name in GenerateOptions.__annotations__ if name not in SETTINGS]
        raise InputError(unknown_settings(unknown, also))
    constraint = None
    if any(value is not None for value in of_constraint.values()):
        constraint = ConstraintSpec(**of_constraint, thinking=thinking)
    if constraint is not None and constraint.given and guide is not None:
        raise InputError("a text has one constraint, and a compiled one was given already; leave out the other")
    settings: Any = given
    return RequestSpec(prompt=prompt, settings=settings, constraint=constraint, guide=guide, **of_request)


def chat_spec(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = False,
    tool_choice: str | Mapping[str, Any] = "auto",
    parallel_tool_calls: bool = False,
    schema_in_prompt: bool = True,
    **options: Unpack[GenerateOptions],
) -> RequestSpec:
    """Return what `Gesso.chat` with these arguments asks for."""
    conversation = ChatSpec(
        messages=messages,
        tools=tools,
        tool_choice=tool_choice,
        # If the model is free to call none, it may then make several calls.
        parallel_tool_calls=parallel_tool_calls or tool_choice == "auto",
        thinking=thinking,
        schema_in_prompt=schema_in_prompt,
    )
    return text_spec(conversation, thinking=thinking, **options)


def hole_spec(**options: Unpack[TextOptions]) -> RequestSpec:
    """Return what the options of `infill` and `edit` ask for, of a prompt that each of their requests replaces."""
    for name in ("pins", "resume"):
        if name in options:
            raise InputError(f"{name} is an option of generate only; the text around the hole takes its place")
    return text_spec(PLACEHOLDER, **options)


def decision_prompt(prompt: TextPrompt | Sequence[Mapping[str, Any]]) -> TextPrompt | ChatSpec:
    """Return the prompt of `Gesso.decide`, which is a conversation if it has messages."""
    given: Any = prompt
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str)
    if is_list and any(isinstance(message, Mapping) for message in given):
        return ChatSpec(messages=given)
    text: TextPrompt = given
    return text
