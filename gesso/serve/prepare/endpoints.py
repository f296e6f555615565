"""Prepare a request in a child process: one function per endpoint, and one that compiles constraints."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from gesso.errors import InputError
from gesso.infill.span import check_span
from gesso.serve.errors import ApiError, from_input, from_validation
from gesso.serve.fields import (
    THINKING_AND_CONSTRAINT,
    ChatFields,
    CompletionFields,
    DecideFields,
    DetokenizeFields,
    EditFields,
    Fields,
    ResponseFields,
    TokenizeFields,
    thinks,
)
from gesso.serve.prepare import scores
from gesso.serve.prepare.builder import Builder, RequestBuilder
from gesso.serve.prepare.frontend import ModelFrontend, characters, frontend_of

TEXT_PARTS = ("input_text", "output_text", "text")

F = TypeVar("F", bound=Fields)
Task = dict[str, Any]  # `endpoint`, and `contexts`: the context of each model by name
Frontends = Sequence[ModelFrontend]
Outcome = tuple[bytes, bytes]  # a JSON head and a blob


def run(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    """Run a task. The head of the outcome is {"error": …} if the request is rejected."""
    try:
        try:
            return TASKS[task["endpoint"]](task, body, frontends)
        except ValidationError as error:
            raise from_validation(error) from None
        except InputError as error:
            raise from_input(error) from None
        except RecursionError:
            raise ApiError(400, "the request is nested too deeply; simplify it", code="too_complex") from None
        except MemoryError:
            message = "preparing this request takes too much memory; make it smaller"
            raise ApiError(400, message, code="too_complex") from None
    except ApiError as error:
        fields = {"status": error.status, "message": error.message, "param": error.param, "code": error.code}
        return json.dumps({"error": fields}).encode(), b""


def parse(fields: type[F], body: bytes) -> F:
    try:
        data = json.loads(body)
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8") from None
    except RecursionError:
        raise ApiError(400, "the body is JSON nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ApiError(400, f"the body has a number that cannot be read: {error}") from None
    return fields.model_validate(data)


def compile(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    """Compile a constraint. The blob is the input of `Guides.restored`."""
    frontend = frontend_of(frontends, task["model"])
    guide = frontend.guides.compiled(body.decode("utf-8", "surrogatepass"), tools=task["tools"])
    return b"{}", guide.to_bytes(pinned=task["pinned"])


def tokenize(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields = parse(TokenizeFields, body)
    frontend = frontend_of(frontends, fields.model)
    context = task["contexts"][frontend.name]
    if fields.messages is not None:
        frontend.check_size(characters(fields.messages) + characters(fields.tools), context)
        tokens = frontend.tokenizer.chat(fields.messages, tools=fields.tools)
    else:
        frontend.check_size(len(fields.prompt or ""), context)
        tokens = frontend.tokenizer.encode(fields.prompt or "", bos=fields.add_special_tokens)
    answer = {"tokens": tokens, "count": len(tokens), "max_model_len": context}
    return b"{}", json.dumps(answer).encode()


def detokenize(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields = parse(DetokenizeFields, body)
    tokenizer = frontend_of(frontends, fields.model).tokenizer
    text = tokenizer.decode(fields.tokens, special=not fields.skip_special_tokens)
    return b"{}", json.dumps({"prompt": text}).encode()


def chat(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields = parse(ChatFields, body)
    builder = RequestBuilder(task, fields, frontends)
    constraint = builder.constraint(fields.constraint())
    tools = None if fields.tool_choice == "none" else fields.tools
    return builder.build(
        [builder.chat_tokens(fields.messages, tools=tools, thinking=fields.thinks)],
        n=fields.n,
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        stop=fields.stop,
        top_logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        constraint=constraint,
        include_usage=fields.stream_options.include_usage,
    )


def completions(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields = parse(CompletionFields, body)
    builder = RequestBuilder(task, fields, frontends)
    limit, hole = builder.limits.choices, None
    constraint = builder.constraint(fields.constraint())
    prompts: list[Any]
    if fields.suffix:
        if fields.best_of > limit:
            raise ApiError(400, f"best_of: at most {limit} texts in one request", param="best_of")
        hole = {"prefix": fields.prompt, "suffix": fields.suffix, "candidates": fields.best_of}
        prompts = [[*builder.text_tokens(str(fields.prompt)), *builder.text_tokens(fields.suffix, bos=False)]]
    else:
        several = isinstance(fields.prompt, list) and bool(fields.prompt) and not isinstance(fields.prompt[0], int)
        prompts = list(fields.prompt) if several else [fields.prompt]
        if len(prompts) > limit:
            raise ApiError(400, f"prompt: at most {limit} prompts in one request, got {len(prompts)}", param="prompt")
        if not all(prompts):
            raise ApiError(400, "prompt: it is empty; give some text to continue", param="prompt")
        prompts = [builder.text_tokens(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    if fields.echo:
        return scores.echo(Builder(task, fields, frontends), prompts)
    return builder.build(
        prompts,
        n=fields.n,
        max_tokens=fields.max_tokens,
        stop=fields.stop,
        top_logprobs=fields.logprobs,
        constraint=constraint,
        hole=hole,
        include_usage=fields.stream_options.include_usage,
    )


def decide(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    return scores.decision(Builder(task, parse(DecideFields, body), frontends))


def edits(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields = parse(EditFields, body)
    builder = RequestBuilder(task, fields, frontends)
    if fields.diffusion.pins:
        raise ApiError(400, "diffusion.pins is not supported by edits", param="diffusion.pins")
    check_span(fields.input, (fields.span[0], fields.span[1]), fields.level)
    tokens = [*builder.text_tokens(fields.input), *builder.text_tokens(fields.instruction or "", bos=False)]
    echo = {"input": fields.input, "span": fields.span}
    hole = {"text": fields.input, "span": fields.span, "instruction": fields.instruction, "level": fields.level}
    return builder.build([tokens], n=fields.n, max_tokens=fields.max_tokens, hole=hole, echo=echo)


def responses(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields = parse(ResponseFields, body)
    builder = RequestBuilder(task, fields, frontends)
    if fields.diffusion.drafts:
        message = "diffusion.drafts: only chat, completions and edits stream drafts"
        raise ApiError(400, message, param="diffusion.drafts")
    schema, thinking = fields.text.format.requested_schema, thinks(fields.reasoning.effort)
    if schema is not None and thinking:
        raise InputError(THINKING_AND_CONSTRAINT)
    constraint = builder.constraint(None if schema is None else {"json_schema": schema})
    prompt = builder.chat_tokens(_messages(fields), thinking=thinking)
    echo = {
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "temperature": fields.temperature,
        "text": fields.text.model_dump(exclude_none=True, by_alias=True),
    }
    return builder.build([prompt], max_tokens=fields.max_output_tokens, constraint=constraint, echo=echo)


def _messages(fields: ResponseFields) -> list[dict[str, Any]]:
    """Return the input of a response as messages of a chat."""
    messages: list[dict[str, Any]] = []
    if fields.instructions:
        messages.append({"role": "system", "content": fields.instructions})
    if isinstance(fields.input, str):
        return [*messages, {"role": "user", "content": fields.input}]
    for index, item in enumerate(fields.input):
        if item.get("type", "message") != "message":
            message = f"input[{index}].type: only message is supported, got {item['type']!r:.100}"
            raise ApiError(400, message, param=f"input[{index}].type")
        content = item.get("content")
        if isinstance(content, list):  # this API has other names for the parts of a message
            content = [
                {**part, "type": "text"} if isinstance(part, dict) and part.get("type") in TEXT_PARTS else part
                for part in content
            ]
        messages.append({"role": item.get("role"), "content": content})
    return messages


TASKS: dict[str, Callable[[Task, bytes, Frontends], Outcome]] = {
    function.__name__: function
    for function in (chat, completions, decide, edits, responses, tokenize, detokenize, compile)
}
