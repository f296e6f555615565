"""Read a request: parse its body, check it, tokenize it, and turn it into jobs for the engine.

All work whose size a client chooses is done here, in child processes with limits on CPU time and memory
(`prepare_process`). The event loop handles only the outcome, whose size the context bounds.
"""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from gesso.errors import InputError
from gesso.infill.edit import check_span
from gesso.serve.errors import ApiError, from_input, from_validation
from gesso.serve.fields import (
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    EditFields,
    Fields,
    ResponseFields,
    TokenizeFields,
    thinks,
)
from gesso.serve.prepare.builder import Reading
from gesso.serve.prepare.frontend import ModelFrontend, characters, frontend_of

TEXT_PARTS = ("input_text", "output_text", "text")

F = TypeVar("F", bound=Fields)


def run(task: dict[str, Any], body: bytes, frontends: Sequence[ModelFrontend]) -> tuple[bytes, bytes]:
    """Carry out a task and return its outcome, or an error, as two byte strings: a JSON head and a blob.

    `endpoint` names the task; `contexts` has the context of each model by name. Errors are {"error": …}.
    """
    try:
        try:
            return _TASKS[task["endpoint"]](task, body, frontends)
        except ValidationError as error:
            raise from_validation(error) from None
        except InputError as error:
            raise from_input(error) from None
        except RecursionError:
            raise ApiError(400, "this request is nested too deeply; make it simpler", code="too_complex") from None
        except MemoryError:
            raise ApiError(
                400, "reading this request takes too much memory; make it smaller", code="too_complex"
            ) from None
    except ApiError as error:
        refusal = {"status": error.status, "message": error.message, "param": error.param, "code": error.code}
        return json.dumps({"error": refusal}).encode(), b""


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


def compile(task: dict[str, Any], body: bytes, frontends: Sequence[ModelFrontend]) -> tuple[bytes, bytes]:
    """Compile a constraint; the blob is what `Guides.restored` reads."""
    frontend = frontend_of(frontends, task["model"])
    guide = frontend.guides.compiled(body.decode("utf-8", "surrogatepass"), tools=task["tools"])
    return b"{}", guide.to_bytes(pinned=task["pinned"])


def tokenize(task: dict[str, Any], body: bytes, frontends: Sequence[ModelFrontend]) -> tuple[bytes, bytes]:
    asked = parse(TokenizeFields, body)
    frontend = frontend_of(frontends, asked.model)
    context = task["contexts"][frontend.name]
    if asked.messages is not None:
        frontend.check_size(characters(asked.messages) + characters(asked.tools), context)
        tokens = frontend.tokenizer.chat(asked.messages, tools=asked.tools)
    else:
        frontend.check_size(len(asked.prompt or ""), context)
        tokens = frontend.tokenizer.encode(asked.prompt or "", bos=asked.add_special_tokens)
    answer = {"tokens": tokens, "count": len(tokens), "max_model_len": context}
    return b"{}", json.dumps(answer).encode()


def detokenize(task: dict[str, Any], body: bytes, frontends: Sequence[ModelFrontend]) -> tuple[bytes, bytes]:
    asked = parse(DetokenizeFields, body)
    text = frontend_of(frontends, asked.model).tokenizer.decode(asked.tokens, special=not asked.skip_special_tokens)
    return b"{}", json.dumps({"prompt": text}).encode()


def chat(task: dict[str, Any], body: bytes, frontends: Sequence[ModelFrontend]) -> tuple[bytes, bytes]:
    asked = parse(ChatFields, body)
    reading = Reading(task, asked, frontends)
    source = reading.source(asked.constraint())
    tools = None if asked.tool_choice == "none" else asked.tools
    prompt = reading.chat(asked.messages, tools=tools, thinking=asked.thinks)
    jobs, constraint = reading.jobs(
        [prompt],
        n=asked.n,
        max_tokens=asked.max_completion_tokens or asked.max_tokens,
        stop=asked.stop,
        top_logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        source=source,
    )
    return reading.accept(
        jobs=jobs,
        include_usage=asked.stream_options.include_usage,
        logprobs=asked.logprobs,
        constraint=constraint,
        source=source,
    )


def completions(task: dict[str, Any], body: bytes, frontends: Sequence[ModelFrontend]) -> tuple[bytes, bytes]:
    asked = parse(CompletionFields, body)
    reading = Reading(task, asked, frontends)
    limit, hole = reading.limits.choices, None
    source = reading.source(asked.constraint())
    prompts: list[Any]
    if asked.suffix:
        if asked.best_of > limit:
            raise ApiError(400, f"best_of: at most {limit} texts in one request", param="best_of")
        hole = {"prefix": asked.prompt, "suffix": asked.suffix, "candidates": asked.best_of}
        prompts = [[*reading.ids(str(asked.prompt)), *reading.ids(asked.suffix, bos=False)]]
    else:
        several = isinstance(asked.prompt, list) and bool(asked.prompt) and not isinstance(asked.prompt[0], int)
        prompts = list(asked.prompt) if several else [asked.prompt]
        if len(prompts) > limit:
            raise ApiError(400, f"prompt: at most {limit} prompts in one request, got {len(prompts)}", param="prompt")
        if not all(prompts):
            raise ApiError(400, "prompt: it is empty; give some text to continue", param="prompt")
        prompts = [reading.ids(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    jobs, constraint = reading.jobs(
        prompts,
        n=asked.n,
        max_tokens=asked.max_tokens,
        stop=asked.stop,
        top_logprobs=asked.logprobs,
        source=source,
        hole=hole,
    )
    return reading.accept(
        jobs=jobs,
        include_usage=asked.stream_options.include_usage,
        logprobs=asked.logprobs is not None,
        constraint=constraint,
        source=source,
    )


def edits(task: dict[str, Any], body: bytes, frontends: Sequence[ModelFrontend]) -> tuple[bytes, bytes]:
    asked = parse(EditFields, body)
    reading = Reading(task, asked, frontends)
    if asked.diffusion.pins:
        raise ApiError(400, "diffusion.pins is not supported by edits", param="diffusion.pins")
    check_span(asked.input, (asked.span[0], asked.span[1]), asked.level)
    text = [*reading.ids(asked.input), *reading.ids(asked.instruction or "", bos=False)]
    hole = {"text": asked.input, "span": asked.span, "instruction": asked.instruction, "level": asked.level}
    jobs, _ = reading.jobs([text], n=asked.n, max_tokens=asked.max_tokens, hole=hole)
    return reading.accept(jobs=jobs, echo={"input": asked.input, "span": asked.span})


def responses(task: dict[str, Any], body: bytes, frontends: Sequence[ModelFrontend]) -> tuple[bytes, bytes]:
    asked = parse(ResponseFields, body)
    reading = Reading(task, asked, frontends)
    if asked.diffusion.drafts:
        raise ApiError(
            400, "diffusion.drafts: only chat, completions and edits stream drafts", param="diffusion.drafts"
        )
    schema, thinking = asked.text.format.wanted, thinks(asked.reasoning.effort)
    if schema is not None and thinking:
        raise InputError("thinking and a constraint cannot be combined: the whole answer keeps to the constraint")
    source = reading.source(None if schema is None else {"json_schema": schema})
    prompt = reading.chat(_messages(asked), thinking=thinking)
    jobs, constraint = reading.jobs([prompt], max_tokens=asked.max_output_tokens, source=source)
    echo = {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "text": asked.text.model_dump(exclude_none=True, by_alias=True),
    }
    return reading.accept(jobs=jobs, constraint=constraint, source=source, echo=echo)


def _messages(asked: ResponseFields) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    if isinstance(asked.input, str):
        return [*messages, {"role": "user", "content": asked.input}]
    for index, item in enumerate(asked.input):
        if item.get("type", "message") != "message":
            message = f"input[{index}].type: only messages are read, got {item['type']!r:.100}"
            raise ApiError(400, message, param=f"input[{index}].type")
        content = item.get("content")
        if isinstance(content, list):  # this API has other names for the parts of a message
            content = [
                {**part, "type": "text"} if isinstance(part, dict) and part.get("type") in TEXT_PARTS else part
                for part in content
            ]
        messages.append({"role": item.get("role"), "content": content})
    return messages


_TASKS = {
    "chat": chat,
    "completions": completions,
    "edits": edits,
    "responses": responses,
    "tokenize": tokenize,
    "detokenize": detokenize,
    "compile": compile,
}
