"""Prepare a request in a child process: one function per endpoint, which reads a body and says what it asks for."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from gesso.chat.messages import tool_names
from gesso.constraints.stored import to_bytes
from gesso.engine.decision import choice_tokens
from gesso.errors import InputError, TextOverflow
from gesso.images.tokens import is_image
from gesso.infill.span import check_span
from gesso.printable import encodable
from gesso.request.build import characters
from gesso.request.spec import ChatSpec, DecisionSpec, EditSpec, HoleSpec, RequestSpec
from gesso.serve.adapter_files import LoadAdapterFields, UnloadAdapterFields
from gesso.serve.anthropic_fields import MessagesFields
from gesso.serve.entry import ModelEntry, entry_of
from gesso.serve.errors import THREAD_UNSUPPORTED, ApiError, from_input
from gesso.serve.fields import Common, Fields
from gesso.serve.form import ChatForm, DecisionForm, Details, EditForm, OllamaForm, ResponseForm
from gesso.serve.leniency import warnings_of, warnings_of_schema, without_unsupported
from gesso.serve.llama_cpp import InfillFields, LlamaCppCompletionFields, LlamaCppTokenizeFields
from gesso.serve.ollama import OllamaChatFields, OllamaGenerateFields, PullFields, ShowFields, description
from gesso.serve.openai.chat_fields import ChatFields
from gesso.serve.openai.response_fields import ItemsQuery, ResponseFields
from gesso.serve.openai.text_fields import CompletionFields, DecideFields, DetokenizeFields, EditFields, TokenizeFields
from gesso.serve.openai.vllm_constraints import with_own_constraints
from gesso.serve.prepare import llama_cpp
from gesso.serve.prepare.builder import ClientRequest, Preparation, text_too_long
from gesso.serve.prepare.images import ImageReader, NeedsRemoteImages
from gesso.serve.prepare.response_items import Fetch, chat_messages, conversation, with_contents
from gesso.serve.remote_images import fetch_all
from gesso.serve.validation import from_validation
from gesso.serve.wire import (
    Checked,
    CheckText,
    Compile,
    Compiled,
    FetchedImages,
    FetchImages,
    FromChild,
    NeedsImages,
    Prepare,
    Prepared,
    Reply,
    RequestRejected,
    check_of,
    constraint_of,
)

F = TypeVar("F", bound=Fields)
C = TypeVar("C", bound=Common)
Entries = Sequence[ModelEntry]


def run(work: Prepare | Compile | FetchImages | CheckText, entries: Entries, fetch: Fetch) -> FromChild:
    """Run the work of a task. `fetch` returns the stored items that a response continues."""
    try:
        try:
            match work:
                case Prepare():
                    return prepare(work, entries, fetch)
                case Compile():
                    return compile(work, entries)
                case FetchImages():
                    contents = fetch_all(work.images, entries[0].settings.limits.image_bytes)
                    return FetchedImages([memoryview(content) for content in contents])
                case CheckText():
                    return check(work, entries)
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
        return NeedsImages(list(needed.images))
    except ApiError as error:
        return RequestRejected.of(error)


def prepare(task: Prepare, entries: Entries, fetch: Fetch) -> FromChild:
    for entry in entries:  # of this child; the process that forked it knows only the adapters of its start
        entry.adapters = task.models[entry.name].adapters
    if task.endpoint == "responses":
        return responses(task, entries, fetch)
    return ENDPOINTS[task.endpoint](task, entries)


def parse(fields: type[F], body: memoryview) -> F:
    return fields.model_validate(read_json(body))


def parse_leniently(fields: type[C], body: memoryview, entries: Entries) -> tuple[C, list[str]]:
    """Return the fields, and a warning for each that is ignored. A strict server rejects those."""
    data, ignored = read_json(body), dict[str, str]()
    if isinstance(data, dict):
        data, ignored = without_unsupported(fields, with_own_constraints(data))
    parsed = fields.model_validate(data)
    return parsed, ignore(ignored | parsed.ignored, entries)


def ignore(ignored: dict[str, str], entries: Entries) -> list[str]:
    """Return a warning for each field that is ignored. A strict server rejects those."""
    if ignored and entries[0].settings.strict:
        name, reason = next(iter(ignored.items()))
        raise ApiError(400, f"{name}: {reason}; leave it out", param=name, code="unknown_parameter")
    return warnings_of(ignored)


def read_json(body: memoryview) -> Any:
    try:
        return json.loads(bytes(body))
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8") from None
    except RecursionError:
        raise ApiError(400, "the body is JSON nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ApiError(400, f"the body has a number that cannot be read: {error}") from None


def compile(work: Compile, entries: Entries) -> Compiled:
    """Compile a constraint. The term is the input of `Guides.restored`."""
    guide = entry_of(entries, work.model).info.guides.of(constraint_of(work.source))
    assert guide is not None, "the builder sends no constraint that allows every text"
    return Compiled(to_bytes(guide.automaton.term), warnings_of_schema(guide.warnings))


def check(work: CheckText, entries: Entries) -> Checked:
    decode = entry_of(entries, work.model).tokenizer.text_of
    problem = check_of(work.check).problem(work.tokens, work.text, decode)
    return Checked(None if problem is None else encodable(problem))


# --- texts ------------------------------------------------------------------------------------------------------------


def chat(task: Prepare, entries: Entries) -> Prepared:
    fields, warnings = parse_leniently(ChatFields, task.body, entries)
    return _chat(task, fields, entries, warnings, ChatForm(functions=bool(fields.functions)))


def _chat(
    task: Prepare, fields: ChatFields, entries: Entries, warnings: Sequence[str], details: Details | None
) -> Prepared:
    preparation = Preparation(task, fields, entries)
    form = preparation.form(
        stream=fields.stream,
        include_usage=fields.stream_options.include_usage,
        continuous_usage=fields.stream_options.continuous_usage_stats,
        logprobs=fields.logprobs,
        one_call=fields.parallel_tool_calls is False,
        warnings=list(warnings),
        tools=list(tool_names(fields.shown_tools)),
        details=details,
    )
    spec = _chat_spec(preparation, fields)
    return preparation.texts(fields, ClientRequest(specs=[spec], choices=fields.n, form=form))


def _chat_spec(preparation: Preparation, fields: ChatFields) -> RequestSpec:
    conversation = ChatSpec(
        messages=fields.messages[:-1] if fields.continue_final_message else fields.messages,
        tools=fields.tools,
        tool_choice=fields.chosen_tool,
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        thinking=fields.thinks,
        schema_in_prompt=fields.schema_in_prompt,
        begun=fields.messages[-1]["content"] if fields.continue_final_message else "",
    )
    return preparation.spec(
        fields,
        conversation,
        constraint=fields.constraint(),
        max_new_tokens=fields.most_tokens,
        stop=fields.stop,
        top_logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
    )


def completions(task: Prepare, entries: Entries) -> Prepared:
    fields, warnings = parse_leniently(CompletionFields, task.body, entries)
    return _completions(task, fields, entries, warnings, None)


def _completions(
    task: Prepare, fields: CompletionFields, entries: Entries, warnings: Sequence[str], details: Details | None
) -> Prepared:
    preparation = Preparation(task, fields, entries)
    form = preparation.form(
        stream=fields.stream,
        include_usage=fields.stream_options.include_usage,
        continuous_usage=fields.stream_options.continuous_usage_stats,
        logprobs=fields.logprobs is not None,
        warnings=list(warnings),
        details=details,
    )
    constraint = fields.constraint()
    hole: HoleSpec | None = None
    if fields.suffix:
        limit = preparation.limits.choices
        if fields.best_of > limit:
            raise ApiError(400, f"best_of: at most {limit} texts in one request", param="best_of")
        hole = HoleSpec(prefix=str(fields.prompt), suffix=fields.suffix, candidates=fields.best_of)
    prompts = _prompts(preparation, fields)
    if fields.echo:
        return preparation.echo(prompts, fields.logprobs or 0, fields.max_tokens or 0, form)
    specs = [
        preparation.spec(
            fields,
            prompt,
            constraint=constraint,
            max_new_tokens=fields.max_tokens,
            stop=fields.stop,
            top_logprobs=fields.logprobs,
        )
        for prompt in prompts
    ]
    return preparation.texts(fields, ClientRequest(specs=specs, choices=fields.n, hole=hole, form=form))


def _prompts(preparation: Preparation, fields: CompletionFields) -> list[list[int]]:
    """Return the tokens of each prompt. With a suffix, those of the text around the hole."""
    if fields.suffix:
        before = preparation.text_tokens(str(fields.prompt))
        return [[*before, *preparation.text_tokens(fields.suffix, bos=False)]]
    several = isinstance(fields.prompt, list) and bool(fields.prompt) and not isinstance(fields.prompt[0], int)
    prompts: Any = fields.prompt if several else [fields.prompt]
    limit = preparation.limits.choices
    if len(prompts) > limit:
        raise ApiError(400, f"prompt: at most {limit} prompts in one request, got {len(prompts)}", param="prompt")
    if not all(prompts):
        raise ApiError(400, "prompt: it is empty; give some text to continue", param="prompt")
    return [preparation.text_tokens(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]


def decide(task: Prepare, entries: Entries) -> Prepared:
    fields = parse(DecideFields, task.body)
    preparation = Preparation(task, fields, entries)
    if fields.messages is None and not fields.prompt:
        raise ApiError(400, "prompt: it is empty; give some text to continue", param="prompt")
    try:
        preparation.info.check_size(max(map(len, fields.choices)))
    except TextOverflow as error:
        raise text_too_long(error, "choices") from None
    spec = DecisionSpec(
        prompt=str(fields.prompt) if fields.messages is None else ChatSpec(messages=fields.messages),
        texts=choice_tokens(preparation.info.tokenizer, fields.choices),
        adapter=preparation.adapter,
    )
    return preparation.decision(spec, preparation.form(details=DecisionForm(fields.choices)))


def edits(task: Prepare, entries: Entries) -> Prepared:
    fields = parse(EditFields, task.body)
    preparation = Preparation(task, fields, entries)
    if fields.diffusion.pins:
        raise ApiError(400, "diffusion.pins is not supported by edits", param="diffusion.pins")
    start, end = check_span(fields.input, (fields.span[0], fields.span[1]), fields.level)
    shown = [
        *preparation.text_tokens(fields.input),
        *preparation.text_tokens(fields.instruction or "", bos=False),
    ]
    form = preparation.form(
        stream=fields.stream, include_usage=True, details=EditForm(text=fields.input, start=start, end=end)
    )
    change = EditSpec(text=fields.input, span=(start, end), instruction=fields.instruction, level=fields.level)
    spec = preparation.spec(fields, shown, max_new_tokens=fields.max_tokens)
    return preparation.texts(fields, ClientRequest(specs=[spec], choices=fields.n, hole=change, form=form))


def responses(task: Prepare, entries: Entries, fetch: Fetch) -> Prepared:
    fields = parse(ResponseFields, task.body)
    warnings = ignore(fields.ignored, entries)
    preparation = Preparation(task, fields, entries)
    constraint = fields.constraint()
    _reject_drafts(fields)
    items = conversation(fields, fetch)
    chat = ChatSpec(
        messages=chat_messages(items, fields.instructions),
        tools=fields.functions,
        tool_choice=fields.chosen_tool,
        parallel_tool_calls=fields.parallel_tool_calls,
        thinking=fields.thinks,
        schema_in_prompt=fields.schema_in_prompt,
    )
    spec = preparation.spec(fields, chat, constraint=constraint, max_new_tokens=fields.max_output_tokens)
    stored = b""
    if fields.store and preparation.limits.stored_responses > 0:
        contents = {url: bytes(content) for url, content in (task.fetched or {}).items()}
        stored = json.dumps(with_contents(items, contents)).encode()
        stored = stored if len(stored) <= preparation.limits.stored_bytes else b""
    echo = json.dumps({**fields.echo, "store": bool(stored)}).encode()
    form = preparation.form(
        stream=fields.stream,
        one_call=not fields.parallel_tool_calls,
        warnings=warnings,
        tools=list(tool_names(None if fields.tool_choice == "none" else fields.functions)),
        details=ResponseForm(echo=echo, items=stored),
    )
    return preparation.texts(fields, ClientRequest(specs=[spec], form=form))


def anthropic(task: Prepare, entries: Entries) -> Prepared:
    fields = parse(MessagesFields, task.body)
    if fields.thread is not None:
        message = "thread: this server keeps no threads; send the whole conversation without it"
        raise ApiError(400, message, param="thread", code=THREAD_UNSUPPORTED)
    _reject_drafts(fields)
    return _chat(task, fields.to_chat(), entries, ignore(fields.ignored, entries), None)


def ollama_chat(task: Prepare, entries: Entries) -> Prepared:
    return _ollama(task, parse(OllamaChatFields, task.body), entries)


def ollama_generate(task: Prepare, entries: Entries) -> Prepared:
    return _ollama(task, parse(OllamaGenerateFields, task.body), entries)


def _ollama(task: Prepare, fields: OllamaChatFields | OllamaGenerateFields, entries: Entries) -> Prepared:
    translated = fields.translated()
    is_message = isinstance(fields, OllamaChatFields)
    if translated is None:
        common = Common(model=fields.model, stream=fields.stream)
        preparation = Preparation(task, common, entries)
        details = OllamaForm(message=is_message, template=False, done_reason=fields.reason_without_prompt)
        form = preparation.form(stream=fields.stream, details=details)
        return preparation.texts(common, ClientRequest(specs=[], form=form))
    _reject_drafts(translated)
    warnings = ignore(fields.ignored, entries)
    if isinstance(translated, ChatFields):
        return _chat(task, translated, entries, warnings, OllamaForm(message=is_message, template=True))
    return _completions(task, translated, entries, warnings, OllamaForm(message=is_message, template=False))


def llama_cpp_infill(task: Prepare, entries: Entries) -> Prepared:
    fields, warnings = parse_leniently(InfillFields, task.body, entries)
    _reject_drafts(fields)
    return llama_cpp.infill(Preparation(task, fields, entries), fields, warnings)


def llama_cpp_completion(task: Prepare, entries: Entries) -> Prepared:
    fields, warnings = parse_leniently(LlamaCppCompletionFields, task.body, entries)
    _reject_drafts(fields)
    return llama_cpp.completion(Preparation(task, fields, entries), fields, warnings)


def _reject_drafts(fields: Common) -> None:
    if fields.diffusion.drafts:
        message = "diffusion.drafts: only chat, completions and edits of OpenAI's API stream drafts"
        raise ApiError(400, message, param="diffusion.drafts")


# --- answers without the engine ---------------------------------------------------------------------------------------


def tokenize(task: Prepare, entries: Entries) -> Reply:
    data = read_json(task.body)
    if isinstance(data, dict) and "content" in data:
        return llama_cpp.tokenize(task, LlamaCppTokenizeFields.model_validate(data), entries)
    fields = TokenizeFields.model_validate(data)
    entry = entry_of(entries, fields.model)
    readiness = task.models[entry.name].readiness
    info = entry.info_at(readiness)
    try:
        if fields.messages is not None:
            messages = ImageReader(entry, readiness, task.fetched).read(fields.messages)
            info.check_size(characters(messages) + characters(fields.tools))
            prompt = entry.tokenizer.chat(messages, tools=fields.tools).tokens
            tokens = [info.config.image_token_id if is_image(token) else token for token in prompt]
        else:
            info.check_size(len(fields.prompt or ""))
            tokens = entry.tokenizer.encode(fields.prompt or "", bos=fields.add_special_tokens)
    except TextOverflow as error:
        raise text_too_long(error, "prompt" if fields.messages is None else "messages") from None
    return _reply({"tokens": tokens, "count": len(tokens), "max_model_len": info.max_length})


def detokenize(task: Prepare, entries: Entries) -> Reply:
    fields = parse(DetokenizeFields, task.body)
    text = entry_of(entries, fields.model).tokenizer.decode(fields.tokens, special=not fields.skip_special_tokens)
    return _reply({"prompt": text, "content": text})  # `content`: llama.cpp's name


def count_tokens(task: Prepare, entries: Entries) -> Reply:
    fields = parse(MessagesFields, task.body).to_chat()
    preparation = Preparation(task, fields, entries)
    return _reply({"input_tokens": len(preparation.prompt(_chat_spec(preparation, fields)).tokens)})


def input_items(task: Prepare, entries: Entries) -> Reply:
    """Return a page of a stored list of items. The body has the query and the list, one per line."""
    query, _, stored = bytes(task.body).partition(b"\n")
    fields, items = parse(ItemsQuery, memoryview(query)), json.loads(stored)
    if fields.order == "desc":
        items.reverse()
    if fields.after is not None:
        after = [index for index, item in enumerate(items) if item["id"] == fields.after]
        items = items[after[0] + 1 :] if after else []
    page = items[: fields.limit]
    return _reply(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > len(page),
        }
    )


def load_lora_adapter(task: Prepare, entries: Entries) -> Reply:
    return _reply(parse(LoadAdapterFields, task.body).model_dump())


def unload_lora_adapter(task: Prepare, entries: Entries) -> Reply:
    return _reply(parse(UnloadAdapterFields, task.body).model_dump())


def show(task: Prepare, entries: Entries) -> Reply:
    entry = entry_of(entries, parse(ShowFields, task.body).model)
    readiness = task.models[entry.name].readiness
    capabilities = ["completion"]
    if entry.chats:
        capabilities += ["insert", "thinking"]
        capabilities += ["tools"] if entry.info.guides.has_tags else []
    capabilities += ["vision"] if entry.may_see and readiness.vision else []
    return _reply(description(readiness.max_length, capabilities))


def pull(task: Prepare, entries: Entries) -> Reply:
    fields = parse(PullFields, task.body)
    try:
        entry_of(entries, fields.model or fields.name)
    except ApiError as error:
        error.message += "; this server downloads no models: start another with gesso serve --model NAME"
        raise
    return Reply(b'{"status": "success"}\n')


def _reply(answer: dict[str, Any]) -> Reply:
    return Reply(json.dumps(answer).encode())


ENDPOINTS: dict[str, Callable[[Prepare, Entries], Prepared | Reply]] = {
    "chat": chat,
    "completions": completions,
    "decide": decide,
    "edits": edits,
    "anthropic": anthropic,
    "count_tokens": count_tokens,
    "ollama_chat": ollama_chat,
    "ollama_generate": ollama_generate,
    "llama_cpp_infill": llama_cpp_infill,
    "llama_cpp_completion": llama_cpp_completion,
    "input_items": input_items,
    "show": show,
    "pull": pull,
    "load_lora_adapter": load_lora_adapter,
    "unload_lora_adapter": unload_lora_adapter,
    "tokenize": tokenize,
    "detokenize": detokenize,
}
