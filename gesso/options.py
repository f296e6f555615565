"""Keyword arguments of `Gesso.generate` and its relatives, for type checkers and editors (PEP 692).

All are optional. `text_request` in `gesso/requests.py` has their defaults.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gesso.constraints.schema.options import SchemaOptions
from gesso.engine.events import Draft
from gesso.presets import Preset
from gesso.settings import DiffusionOptions

Method = Literal["auto", "prompt", "pinned"]


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
