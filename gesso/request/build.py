"""Build the engine request that a caller asks for: resolve what was left open, and check all of it.

Every request of a client is built here, whether Python, the command line or an endpoint of the server asks for it. A
constraint is chosen here, but compiled elsewhere, since that may take long: `attach` adds it before the request runs.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gesso.chat.messages import check_tools, with_schema
from gesso.chat.prompt import Prompt
from gesso.constraints.answer_check import AnswerCheck
from gesso.constraints.guide import Guide
from gesso.constraints.spec import ConstraintSpec
from gesso.constraints.tools import chosen
from gesso.engine.request import Request, Score
from gesso.errors import ContextOverflow, InputError
from gesso.presets import resolved
from gesso.request.info import ModelInfo
from gesso.request.spec import ChatSpec, DecisionSpec, RequestSpec, TextPrompt
from gesso.settings import SHORT, Diffusion, at_temperature

# Returns messages in which every image is read, see `gesso.chat.image_parts`.
ReadImages = Callable[[Any], Any]


def build(spec: RequestSpec, info: ModelInfo, read_images: ReadImages) -> Request:
    """Return the request that a spec means. Raise InputError for one that cannot run."""
    constraint = _constraint(spec, info)
    prompt = prompt_of(spec, info, read_images)
    settings = _settings(spec, info, constraint)
    if constraint is not None and constraint.is_optional and (spec.pins or settings.by_token):
        constraint = None
    seed = spec.seed
    if seed is None:
        seed = secrets.randbits(32) if spec.resume is None else spec.resume.request.seed
    request = Request(
        prompt=tuple(prompt.tokens),
        images=prompt.images,
        max_new_tokens=info.length_after(len(prompt.tokens), spec.max_new_tokens),
        diffusion=settings,
        seed=seed,
        eos=frozenset(info.defaults.eos_token_ids),
        stop=(spec.stop,) if isinstance(spec.stop, str) else tuple(spec.stop),
        pins=dict(spec.pins or {}),
        constraint=constraint,
        guide=spec.guide,
        validate=None if constraint is None else _answer_check(spec, constraint),
        warnings=spec.guide.warnings if spec.guide else (),
        free_first=_prompt_names_form(spec, constraint),
        never_first=info.never_first,
        byte_tokens=info.tokenizer.byte_ids,
        top_logprobs=spec.top_logprobs,
        draft_logprobs=spec.draft_logprobs,
        resume=spec.resume,
        adapter=info.adapter if spec.adapter is None else spec.adapter,
    )
    _check_limits(request, info)
    request.check(info.config, info.max_length)
    return request


def attach(request: Request, guide: Guide | None) -> Request:
    """Return a request with its compiled constraint, after which all of it has been checked."""
    if request.constraint is None and guide is None:
        request.check_guide()
        return request
    warnings = () if guide is None else guide.warnings
    complete = replace(request, constraint=None, guide=guide, warnings=(*request.warnings, *warnings))
    complete.check_guide()
    return complete


def build_base(spec: RequestSpec, info: ModelInfo) -> Request:
    """Return the request that those for a hole are variations of: of prompt, length, pins and constraint.

    The constraint of the spec applies to the hole only, so it is not that of the request.
    """
    settings = spec.settings
    if spec.preset in (None, SHORT):  # only a canvas can use the text after the hole, whatever its speed
        settings = {"write": "canvas", **settings}
    return build(replace(spec, settings=settings, constraint=None), info, _without_images)


def build_decision(spec: DecisionSpec, info: ModelInfo, read_images: ReadImages) -> Request:
    """Return the request that compares texts after a prompt.

    After a conversation, a text is a whole answer, and its end counts. After another prompt, it may continue, so none
    may begin another. The canvas is as long as that of a usual answer: a model predicts a shorter canvas less reliably
    than the lengths it was trained with. It ends where the context ends.
    """
    is_answer = isinstance(spec.prompt, ChatSpec)
    prompt = prompt_of(spec, info, read_images)
    eos = frozenset(info.defaults.eos_token_ids if is_answer else ())
    texts = tuple(map(tuple, spec.texts))
    longest = max(map(len, texts))
    canvas = info.config.canvas_length
    needed = longest + bool(eos)
    if needed > canvas:
        raise InputError(f"a choice has {longest} tokens; at most {canvas - bool(eos)} fit a canvas: shorten it")
    ordered = sorted(texts)
    if not eos and any(after[: len(text)] == text for text, after in zip(ordered, ordered[1:], strict=False)):
        raise InputError("one choice begins another; add the text that distinguishes them, or give messages as prompt")
    usual = min(canvas, info.defaults.max_new_tokens, info.max_length - len(prompt.tokens))
    request = Request(
        prompt=tuple(prompt.tokens),
        images=prompt.images,
        max_new_tokens=max(needed, usual),
        diffusion=Diffusion(steps=1),
        eos=eos,
        compared=texts,
        adapter=info.adapter if spec.adapter is None else spec.adapter,
    )
    _check_limits(request, info)
    request.check(info.config, info.max_length)
    return request


def check_echo(prompt: Sequence[int], new_tokens: int, info: ModelInfo) -> None:
    """Reject a prompt whose log-probabilities cannot be computed, with the tokens after it."""
    if len(prompt) + new_tokens > info.room:
        raise ContextOverflow(len(prompt), new_tokens, info.room)
    Score(prompt=tuple(prompt), texts=((0,),)).check(info.config, info.max_length)


# --- parts of a request -----------------------------------------------------------------------------------------------


def prompt_of(spec: RequestSpec | DecisionSpec, info: ModelInfo, read_images: ReadImages) -> Prompt:
    """Return the tokens and images that the model reads."""
    if isinstance(spec.prompt, ChatSpec):
        constraint = spec.constraint if isinstance(spec, RequestSpec) else None
        return _chat_prompt(spec.prompt, constraint, info, read_images)
    return _text_prompt(spec.prompt, info)


def _text_prompt(prompt: TextPrompt, info: ModelInfo) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if not isinstance(prompt, Sequence):
        raise InputError(f"the prompt must be text or a list of token ids, got {type(prompt).__name__}")
    if not isinstance(prompt, str):
        return Prompt(list(prompt))
    if not prompt:  # the bos token alone would be a valid request, but nobody means it
        raise InputError("the prompt is empty; give some text to continue")
    info.check_size(len(prompt))
    return Prompt(info.tokenizer.encode(prompt))


def _chat_prompt(chat: ChatSpec, constraint: ConstraintSpec | None, info: ModelInfo, read_images: ReadImages) -> Prompt:
    messages = chat.messages
    if chat.schema_in_prompt and constraint is not None:
        messages = with_schema(messages, constraint.json_schema)
    messages = read_images(messages)
    tools = None if chat.tool_choice == "none" else chat.tools
    info.check_size(characters(messages) + characters(tools))
    prompt = info.tokenizer.chat(messages, tools=tools, thinking=chat.thinking)
    return prompt + info.tokenizer.encode(chat.begun, bos=False) if chat.begun else prompt


def _constraint(spec: RequestSpec, info: ModelInfo) -> ConstraintSpec | None:
    """Return the constraint on the text or else on the tool calls, or None."""
    given = None if spec.constraint is None or not spec.constraint.given else spec.constraint
    if spec.constraint is not None and spec.constraint.schema_options is not None:
        name = next(iter(spec.constraint.given), None)
        if name not in (None, "json_schema"):
            raise InputError(f"schema_options are for json_schema, not for {name}; leave them out")
    if not isinstance(spec.prompt, ChatSpec):
        return given
    chat = spec.prompt
    tools = check_tools(chat.tools) or []
    required = chosen(tools, chat.tool_choice)
    if required:
        info.guides.check_tags()
        if given is not None:
            raise InputError("a text has one constraint, and a tool call is required already; leave out the other")
    if given is not None:
        return replace(given, thinking=chat.thinking)
    if not required and (chat.tool_choice != "auto" or not tools or not info.guides.has_tags):
        return None
    return ConstraintSpec(
        tools=tools,
        tool_choice=chat.tool_choice,
        parallel=chat.parallel_tool_calls,
        thinking=chat.thinking,
    )


def _prompt_names_form(spec: RequestSpec, constraint: ConstraintSpec | None) -> bool:
    """Return whether the prompt tells the model the form of the answer, which it may then have without a correction."""
    if constraint is None or not isinstance(spec.prompt, ChatSpec):
        return False
    return bool(constraint.tools) or (constraint.json_schema is not None and spec.prompt.schema_in_prompt)


def _answer_check(spec: RequestSpec, constraint: ConstraintSpec) -> AnswerCheck | None:
    if not isinstance(spec.prompt, ChatSpec):
        return None if constraint.json_schema is None else AnswerCheck(json_schema=constraint.json_schema)
    if constraint.json_schema is None and not constraint.tools:
        return None
    shown = None if spec.prompt.tool_choice == "none" else spec.prompt.tools
    functions = [tool["function"] for tool in check_tools(shown) or ()]
    return AnswerCheck(
        json_schema=constraint.json_schema,
        parameters={function["name"]: function["parameters"] for function in functions},
        required=bool(constraint.tools) and not constraint.is_optional,
        chat=True,
    )


def _settings(spec: RequestSpec, info: ModelInfo, constraint: ConstraintSpec | None) -> Diffusion:
    is_constrained = spec.guide is not None or (constraint is not None and not constraint.is_optional)
    settings = info.writing.settings(
        info.defaults.diffusion,
        resolved(spec.preset),
        spec.settings,
        needs_canvas=bool(spec.pins or spec.resume or is_constrained),
    )
    if spec.temperature is None:
        return settings
    return replace(settings, **at_temperature(settings, spec.temperature))


def _check_limits(request: Request, info: ModelInfo) -> None:
    """Reject a request that exceeds the limits of a server on its clients."""
    if info.limits is None:
        return
    if len(request.prompt) + request.max_new_tokens > info.room:
        raise ContextOverflow(len(request.prompt), request.max_new_tokens, info.room)
    longest = info.config.canvas_length
    canvas = request.diffusion.canvas_length
    if canvas is not None and canvas > longest:
        # A longer canvas than the model was trained with would also lengthen the steps of other requests.
        raise InputError(f"diffusion.canvas_length: at most {longest}, the model's own, on this server; got {canvas}")


def characters(value: Any) -> int:
    """Count the characters of all strings in a JSON value."""
    total, pending = 0, [value]
    while pending:
        match pending.pop():
            case str() as text:
                total += len(text)
            case dict() as fields:
                pending += fields.values()
                total += sum(map(len, fields))
            case list() as items:
                pending += items
    return total


def _without_images(messages: Any) -> Any:
    return messages
