"""Build engine requests from prompts and the options of the public methods."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Unpack, cast

from gesso import renamed
from gesso.chat.answer import read
from gesso.chat.messages import check_tools, with_schema
from gesso.chat.prompt import Prompt
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.generation import GenerationDefaults
from gesso.constraints.constraint import Guides
from gesso.constraints.guide import Guide
from gesso.constraints.schema.options import SchemaOptions
from gesso.constraints.validate import calls_problem, schema_problem
from gesso.engine import decision
from gesso.engine.events import Draft
from gesso.engine.request import Request
from gesso.engine.writing import Writing
from gesso.errors import InputError
from gesso.model.config import Config
from gesso.options import GenerateOptions
from gesso.presets import Preset, resolved
from gesso.settings import SETTINGS, DiffusionOptions, at_temperature, unknown_settings

TextPrompt = str | Sequence[int] | Prompt


class RequestModel(Protocol):
    """The parts of a loaded model on which its requests depend. `gesso.Gesso` implements it."""

    tokenizer: Tokenizer
    defaults: GenerationDefaults
    guides: Guides
    writing: Writing  # of requests that leave it open
    adapter: str | None  # of requests that name none
    never_first: frozenset[int]  # tokens with which no text begins

    @property
    def config(self) -> Config: ...

    @property
    def max_length(self) -> int:
        """Upper limit of the tokens of prompt and new text."""

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool = False,
    ) -> Prompt:
        """Return a conversation as the model reads it."""

    @property
    def request(self) -> Callable[..., Request]:
        """Builds the request of a text with `text_request`."""

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str: ...


def text_request(
    model: RequestModel,
    prompt: TextPrompt,
    *,
    guide: Guide | None = None,
    guide_optional: bool = False,
    thinking: bool = False,
    validate: Callable[[Sequence[int], str], str | None] | None = None,
    max_new_tokens: int | None = None,
    seed: int | None = None,
    temperature: float | None = None,
    preset: Preset | None = None,
    stop: str | Sequence[str] = (),
    pins: Mapping[int, int] | None = None,
    resume: Draft | None = None,
    top_logprobs: int | None = None,
    draft_logprobs: int | None = None,
    choice: Sequence[str] | None = None,
    regex: str | None = None,
    json_schema: Mapping[str, Any] | bool | None = None,
    schema_options: SchemaOptions | None = None,
    grammar: str | None = None,
    adapter: str | None = None,
    **diffusion: Unpack[DiffusionOptions],
) -> Request:
    """Return the engine request of a text. `Gesso.generate` and `Gesso.request` describe the arguments."""
    options: Any = renamed.translated({"preset": preset, **diffusion})
    preset, diffusion = options.pop("preset"), options
    if unknown := diffusion.keys() - SETTINGS.keys():
        also = [name for name in GenerateOptions.__annotations__ if name not in SETTINGS]
        raise InputError(unknown_settings(unknown, also))
    read = _prompt(model, prompt)
    constraint = {"choice": choice, "regex": regex, "json_schema": json_schema, "grammar": grammar}
    constraint_guide = model.guides.guide(**constraint, thinking=thinking, schema_options=schema_options)
    needs_canvas = bool(pins or constraint_guide or resume or (guide and not guide_optional))
    settings = model.writing.settings(model.defaults.diffusion, resolved(preset), diffusion, needs_canvas=needs_canvas)
    if temperature is not None:
        settings = replace(settings, **at_temperature(settings, temperature))
    if guide_optional and (constraint_guide or pins or settings.by_token):
        guide = None
    if constraint_guide and guide:
        raise InputError("a text has one constraint, and a tool call is required already; leave out the other")
    if validate is None and json_schema is not None:
        validate = _under(json_schema)
    if max_new_tokens is None:
        max_new_tokens = max(1, min(model.defaults.max_new_tokens, model.max_length - len(read.tokens)))
    if seed is None:
        seed = secrets.randbits(32) if resume is None else resume.request.seed
    constrained = constraint_guide or guide
    return Request(
        prompt=tuple(read.tokens),
        images=read.images,
        max_new_tokens=max_new_tokens,
        diffusion=settings,
        seed=seed,
        eos=frozenset(model.defaults.eos_token_ids),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        pins=dict(pins or {}),
        guide=constrained,
        validate=validate if constrained else None,
        warnings=constrained.warnings if constrained else (),
        free_first=True,
        never_first=model.never_first,
        byte_tokens=model.tokenizer.byte_ids,
        top_logprobs=top_logprobs,
        draft_logprobs=draft_logprobs,
        resume=resume,
        adapter=model.adapter if adapter is None else adapter,
    )


def chat_request(
    model: RequestModel,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = False,
    tool_choice: str | Mapping[str, Any] = "auto",
    parallel_tool_calls: bool = False,
    schema_in_prompt: bool = True,
    **options: Unpack[GenerateOptions],
) -> Request:
    """Return the engine request of `Gesso.chat` with these arguments."""
    optional = tool_choice == "auto"  # to call a tool; the model may then make several calls
    guide = model.guides.calls(check_tools(tools) or (), tool_choice, optional or parallel_tool_calls, thinking)
    shown = None if tool_choice == "none" else tools
    schema = options.get("json_schema")
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in check_tools(shown) or ()}

    def validate(tokens: Sequence[int], text: str) -> str | None:
        answer = read(tokens, text, model.decode, parameters)
        if schema is not None:
            return schema_problem(schema, answer.text)
        return calls_problem(parameters, answer.tool_calls, required=not optional)

    if schema_in_prompt:
        messages = with_schema(messages, schema)
    prompt = model.prompt(messages, tools=shown, thinking=thinking)
    checked = validate if guide or schema is not None else None
    return model.request(prompt, guide=guide, guide_optional=optional, thinking=thinking, validate=checked, **options)


def decision_request(
    model: RequestModel,
    prompt: TextPrompt | Sequence[Mapping[str, Any]],
    texts: Sequence[Sequence[int]],
    adapter: str | None = None,
) -> Request:
    """Return the engine request of `Gesso.decide`, with choices as token ids."""
    messages = _messages(prompt)
    read = _prompt(model, cast(TextPrompt, prompt)) if messages is None else model.prompt(messages)
    eos = frozenset(() if messages is None else model.defaults.eos_token_ids)
    usual, adapter = model.defaults.max_new_tokens, model.adapter if adapter is None else adapter
    made = decision.decision_request(read.tokens, texts, eos, model.config, usual, model.max_length, adapter)
    return replace(made, images=read.images)


def _prompt(model: RequestModel, prompt: TextPrompt) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if not isinstance(prompt, Sequence):
        raise InputError(f"the prompt must be text or a list of token ids, got {type(prompt).__name__}")
    if not isinstance(prompt, str):
        return Prompt(list(prompt))
    if not prompt:  # the bos token alone would be a valid request, but nobody means it
        raise InputError("the prompt is empty; give some text to continue")
    return Prompt(model.tokenizer.encode(prompt))


def _messages(prompt: Any) -> Sequence[Mapping[str, Any]] | None:
    """Return the prompt if it is a conversation, or None."""
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str)
    return (
        cast(Sequence[Mapping[str, Any]], prompt) if is_list and any(isinstance(m, Mapping) for m in prompt) else None
    )


def _under(schema: Mapping[str, Any] | bool) -> Callable[[Sequence[int], str], str | None]:
    """Return the check of a text under a schema."""
    return lambda tokens, text: schema_problem(schema, text)
