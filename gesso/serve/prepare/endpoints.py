"""Prepare a request in a child process: one function per endpoint, and one that compiles constraints."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from pydantic import ValidationError

from gesso.chat.messages import tool_names
from gesso.chat.prompt import Prompt
from gesso.constraints.stored import to_bytes
from gesso.constraints.validate import calls_problem, schema_problem
from gesso.errors import InputError
from gesso.images.tokens import is_image
from gesso.infill.span import check_span
from gesso.serve.adapter_files import LoadAdapterFields, UnloadAdapterFields
from gesso.serve.anthropic_fields import MessagesFields
from gesso.serve.deltas import AnswerDeltas
from gesso.serve.errors import THREAD_UNSUPPORTED, ApiError, from_input, from_validation
from gesso.serve.fields import Common, Fields
from gesso.serve.leniency import warnings_of, warnings_of_schema, without_unsupported
from gesso.serve.llama_cpp import InfillFields, LlamaCppCompletionFields, LlamaCppTokenizeFields
from gesso.serve.ollama import OllamaChatFields, OllamaGenerateFields, PullFields, ShowFields, description
from gesso.serve.openai.chat_fields import ChatFields
from gesso.serve.openai.response_fields import ItemsQuery, ResponseFields
from gesso.serve.openai.text_fields import CompletionFields, DecideFields, DetokenizeFields, EditFields, TokenizeFields
from gesso.serve.openai.vllm_constraints import with_own_constraints
from gesso.serve.prepare import llama_cpp, scores
from gesso.serve.prepare.builder import Builder, RequestBuilder, checked_by, image_reader
from gesso.serve.prepare.frontend import ModelFrontend, characters, frontend_of
from gesso.serve.prepare.images import NeedsRemoteImages
from gesso.serve.prepare.response_items import chat_messages, conversation, with_contents
from gesso.serve.protocol import Ended
from gesso.serve.remote_images import RemoteImage, fetch_all

F = TypeVar("F", bound=Fields)
C = TypeVar("C", bound=Common)
# `endpoint`; by the name of a model, `contexts`, `adapters` (their names) and `accepts_images`; `fetch`
# (returns stored items); and `fetched` (the contents of URLs)
Task = dict[str, Any]
Frontends = Sequence[ModelFrontend]
Outcome = tuple[bytes, bytes]  # a JSON head and a blob


def run(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    """Run a task. The head of the outcome is {"error": …} if the request is rejected.

    It is {"remote": …} if images must be fetched first. The task then runs again, with their contents before the body.
    """
    for frontend in frontends:  # of this child; the process that forked it knows only the adapters of its start
        frontend.adapters = task.get("adapters", {}).get(frontend.name, frontend.adapters)
    if "fetched" in task:
        contents, start = dict[str, bytes](), 0
        for url, size in task["fetched"]:
            contents[url] = body[start : start + size]
            start += size
        task["fetched"], body = contents, body[start:]
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
    except NeedsRemoteImages as needed:
        return json.dumps({"remote": [asdict(image) for image in needed.images]}).encode(), b""
    except ApiError as error:
        fields = {"status": error.status, "message": error.message, "param": error.param, "code": error.code}
        return json.dumps({"error": fields}).encode(), b""


def parse(fields: type[F], body: bytes) -> F:
    return fields.model_validate(read_json(body))


def parse_leniently(fields: type[C], body: bytes, frontends: Frontends) -> tuple[C, list[str]]:
    """Return the fields, and a warning for each that is ignored. A strict server rejects those."""
    data, ignored = read_json(body), dict[str, str]()
    if isinstance(data, dict):
        data, ignored = without_unsupported(fields, with_own_constraints(data))
    parsed = fields.model_validate(data)
    return parsed, ignore(ignored | parsed.ignored, frontends)


def ignore(ignored: dict[str, str], frontends: Frontends) -> list[str]:
    """Return a warning for each field that is ignored. A strict server rejects those."""
    if ignored and frontends[0].settings.strict:
        name, reason = next(iter(ignored.items()))
        raise ApiError(400, f"{name}: {reason}; leave it out", param=name, code="unknown_parameter")
    return warnings_of(ignored)


def read_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8") from None
    except RecursionError:
        raise ApiError(400, "the body is JSON nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ApiError(400, f"the body has a number that cannot be read: {error}") from None


def compile(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    """Compile a constraint. The head has its warnings, and the blob is the input of `Guides.restored`."""
    frontend = frontend_of(frontends, task["model"])
    guide = frontend.guides.compile(json.loads(body))
    return json.dumps(warnings_of_schema(guide.warnings)).encode(), to_bytes(guide.automaton.term)


def remote_images(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    """Fetch images. The head has their sizes, and the blob their contents."""
    images = [RemoteImage(**fields) for fields in json.loads(body)]
    contents = fetch_all(images, frontends[0].settings.limits.image_bytes)
    return json.dumps([len(one) for one in contents]).encode(), b"".join(contents)


def check(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    """Return what is wrong with an answer. The body has `PreparedRequest.checked_by` and the answer, one per line."""
    source, _, ended = body.partition(b"\n")
    by, answer = json.loads(source), json.loads(ended)
    tokenizer, one_call = frontend_of(frontends, task["model"]).tokenizer, task["one_call"]
    deltas = AnswerDeltas(tokenizer, chat=True, tools=task["tools"], one_call=one_call)
    read = deltas.answer(Ended(id=0, finish_reason="stop", seed=0, usage={}, **answer))
    if "schema" in by:
        problem = schema_problem(by["schema"], read.text)
    else:
        problem = calls_problem(by["parameters"], read.tool_calls, required=by["required"])
    return b"{}", b"" if problem is None else problem.encode("utf-8", "replace")


def tokenize(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    data = read_json(body)
    if isinstance(data, dict) and "content" in data:
        return llama_cpp.tokenize(task, LlamaCppTokenizeFields.model_validate(data), frontends)
    fields = TokenizeFields.model_validate(data)
    frontend = frontend_of(frontends, fields.model)
    context = task["contexts"][frontend.name]
    if fields.messages is not None:
        messages = image_reader(task, frontend).read(fields.messages)
        frontend.check_size(characters(messages) + characters(fields.tools), context, "messages")
        found = frontend.tokenizer.chat(messages, tools=fields.tools).tokens
        tokens = [frontend.config.image_token_id if is_image(token) else token for token in found]
    else:
        frontend.check_size(len(fields.prompt or ""), context, "prompt")
        tokens = frontend.tokenizer.encode(fields.prompt or "", bos=fields.add_special_tokens)
    answer = {"tokens": tokens, "count": len(tokens), "max_model_len": context}
    return b"{}", json.dumps(answer).encode()


def detokenize(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields = parse(DetokenizeFields, body)
    tokenizer = frontend_of(frontends, fields.model).tokenizer
    text = tokenizer.decode(fields.tokens, special=not fields.skip_special_tokens)
    return b"{}", json.dumps({"prompt": text, "content": text}).encode()  # `content`: llama.cpp's name


def chat(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields, warnings = parse_leniently(ChatFields, body, frontends)
    return _chat(task, fields, frontends, warnings, {"functions": bool(fields.functions)})


def _chat(
    task: Task,
    fields: ChatFields,
    frontends: Frontends,
    warnings: Sequence[str] = (),
    echo: dict[str, Any] | None = None,
) -> Outcome:
    builder = RequestBuilder(task, fields, frontends)
    requested = fields.constraint()
    constraint = builder.constraint(requested)
    return builder.build(
        [_chat_prompt(builder, fields)],
        n=fields.n,
        max_tokens=fields.most_tokens,
        stop=fields.stop,
        top_logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        constraint=constraint,
        include_usage=fields.stream_options.include_usage,
        continuous_usage=fields.stream_options.continuous_usage_stats,
        one_call=fields.parallel_tool_calls is False,
        warnings=warnings,
        echo=echo,
        tools=tool_names(_tools(fields)),
        checked_by=checked_by(requested),
    )


def _chat_prompt(builder: RequestBuilder, fields: ChatFields) -> Prompt:
    schema = fields.response_format.requested_schema if fields.schema_in_prompt else None
    messages = fields.messages[:-1] if fields.continue_final_message else fields.messages
    prompt = builder.chat_prompt(messages, tools=_tools(fields), thinking=fields.thinks, schema=schema)
    if not fields.continue_final_message:
        return prompt
    return prompt + builder.text_tokens(fields.messages[-1]["content"], bos=False)


def _tools(fields: ChatFields) -> list[dict[str, Any]] | None:
    return None if fields.tool_choice == "none" else fields.tools


def completions(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields, warnings = parse_leniently(CompletionFields, body, frontends)
    return _completions(task, fields, frontends, warnings)


def _completions(
    task: Task,
    fields: CompletionFields,
    frontends: Frontends,
    warnings: Sequence[str] = (),
    echo: dict[str, Any] | None = None,
) -> Outcome:
    builder = RequestBuilder(task, fields, frontends)
    limit, hole = builder.limits.choices, None
    requested = fields.constraint()
    constraint = builder.constraint(requested)
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
        list(map(Prompt, prompts)),
        n=fields.n,
        max_tokens=fields.max_tokens,
        stop=fields.stop,
        top_logprobs=fields.logprobs,
        constraint=constraint,
        hole=hole,
        include_usage=fields.stream_options.include_usage,
        continuous_usage=fields.stream_options.continuous_usage_stats,
        warnings=warnings,
        echo=echo,
        checked_by=checked_by(requested),
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
    return builder.build(
        [Prompt(tokens)], n=fields.n, max_tokens=fields.max_tokens, hole=hole, include_usage=True, echo=echo
    )


def responses(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields = parse(ResponseFields, body)
    warnings = ignore(fields.ignored, frontends)
    builder = RequestBuilder(task, fields, frontends)
    requested = fields.constraint()
    _reject_drafts(fields)
    constraint = builder.constraint(requested)
    items = conversation(fields, task["fetch"])
    tools = None if fields.tool_choice == "none" else fields.functions
    schema = fields.text.format.requested_schema if fields.schema_in_prompt else None
    messages = chat_messages(items, fields.instructions)
    prompt = builder.chat_prompt(messages, tools=tools, thinking=fields.thinks, schema=schema)
    stored = b""
    if fields.store and builder.limits.stored_responses > 0:
        stored = json.dumps(with_contents(items, task.get("fetched", {}))).encode()
        stored = stored if len(stored) <= builder.limits.stored_bytes else b""
    echo = json.dumps({**fields.echo, "store": bool(stored)}).encode()
    return builder.build(
        [prompt],
        max_tokens=fields.max_output_tokens,
        constraint=constraint,
        tools=tool_names(tools),
        one_call=not fields.parallel_tool_calls,
        warnings=warnings,
        checked_by=checked_by(requested),
        attached=echo + b"\n" + stored,
    )


def input_items(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    """Return a page of a stored list of items. The body has the query and the list, one per line."""
    query, _, stored = body.partition(b"\n")
    fields, items = parse(ItemsQuery, query), json.loads(stored)
    if fields.order == "desc":
        items.reverse()
    if fields.after is not None:
        after = [index for index, item in enumerate(items) if item["id"] == fields.after]
        items = items[after[0] + 1 :] if after else []
    page = items[: fields.limit]
    answer = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }
    return b"{}", json.dumps(answer).encode()


def anthropic(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields = parse(MessagesFields, body)
    if fields.thread is not None:
        message = "thread: this server keeps no threads; send the whole conversation without it"
        raise ApiError(400, message, param="thread", code=THREAD_UNSUPPORTED)
    _reject_drafts(fields)
    return _chat(task, fields.to_chat(), frontends, ignore(fields.ignored, frontends))


def count_tokens(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields = parse(MessagesFields, body).to_chat()
    prompt = _chat_prompt(RequestBuilder(task, fields, frontends), fields)
    return b"{}", json.dumps({"input_tokens": len(prompt.tokens)}).encode()


def ollama_chat(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    return _ollama(task, parse(OllamaChatFields, body), frontends)


def ollama_generate(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    return _ollama(task, parse(OllamaGenerateFields, body), frontends)


def _ollama(task: Task, fields: OllamaChatFields | OllamaGenerateFields, frontends: Frontends) -> Outcome:
    translated = fields.translated()
    echo: dict[str, Any] = {
        "message": isinstance(fields, OllamaChatFields),
        "template": isinstance(translated, ChatFields),
    }
    if translated is None:
        common = Common(model=fields.model, stream=fields.stream)
        echo["done_reason"] = fields.reason_without_prompt
        return RequestBuilder(task, common, frontends).build([], echo=echo)
    _reject_drafts(translated)
    warnings = ignore(fields.ignored, frontends)
    if isinstance(translated, ChatFields):
        return _chat(task, translated, frontends, warnings, echo)
    return _completions(task, translated, frontends, warnings, echo)


def llama_cpp_infill(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields, warnings = parse_leniently(InfillFields, body, frontends)
    _reject_drafts(fields)
    return llama_cpp.infill(task, fields, warnings, frontends)


def llama_cpp_completion(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields, warnings = parse_leniently(LlamaCppCompletionFields, body, frontends)
    _reject_drafts(fields)
    return llama_cpp.completion(task, fields, warnings, frontends)


def load_lora_adapter(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    return b"{}", json.dumps(parse(LoadAdapterFields, body).model_dump()).encode()


def unload_lora_adapter(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    return b"{}", json.dumps(parse(UnloadAdapterFields, body).model_dump()).encode()


def show(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    frontend = frontend_of(frontends, parse(ShowFields, body).model)
    capabilities = ["completion"]
    if frontend.chats:
        capabilities += ["insert", "thinking"]
        capabilities += ["tools"] if frontend.guides.has_tags else []
    capabilities += ["vision"] if task["accepts_images"][frontend.name] else []
    return b"{}", json.dumps(description(task["contexts"][frontend.name], capabilities)).encode()


def pull(task: Task, body: bytes, frontends: Frontends) -> Outcome:
    fields = parse(PullFields, body)
    try:
        frontend_of(frontends, fields.model or fields.name)
    except ApiError as error:
        error.message += "; this server downloads no models: start another with gesso serve --model NAME"
        raise
    return b"{}", b'{"status": "success"}\n'


def _reject_drafts(fields: Common) -> None:
    if fields.diffusion.drafts:
        message = "diffusion.drafts: only chat, completions and edits of OpenAI's API stream drafts"
        raise ApiError(400, message, param="diffusion.drafts")


TASKS: dict[str, Callable[[Task, bytes, Frontends], Outcome]] = {
    function.__name__: function
    for function in (
        chat,
        completions,
        decide,
        edits,
        responses,
        input_items,
        anthropic,
        count_tokens,
        ollama_chat,
        ollama_generate,
        llama_cpp_infill,
        llama_cpp_completion,
        show,
        pull,
        load_lora_adapter,
        unload_lora_adapter,
        tokenize,
        detokenize,
        compile,
        check,
        remote_images,
    )
}
