"""Ollama's API: its fields as those of a chat or a completion, its answers, its streams and its errors."""

import hashlib
import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from gesso.chat.answer import Answer
from gesso.errors import InputError
from gesso.serve.deltas import AnswerDeltas, Delta
from gesso.serve.errors import ApiError
from gesso.serve.fields import (
    DRAWS,
    UNLIMITED,
    DiffusionFields,
    DrawFields,
    Fields,
    Ignored,
    LenientFields,
    Objects,
    Stop,
    Temperature,
    example,
)
from gesso.serve.form import AnswerForm, OllamaForm
from gesso.serve.generation import Generation
from gesso.serve.image_parts import base64_part, content_of
from gesso.serve.leniency import REASONS, UNSUPPORTED
from gesso.serve.models import ServedModel
from gesso.serve.openai.chat_fields import ChatFields
from gesso.serve.openai.text_fields import CompletionFields

VERSION = "0.12.0"  # of Ollama: clients check that a server is recent enough for the features they use
FAMILY = "diffusion_gemma"


def error_body(error: ApiError) -> dict[str, Any]:
    return {"error": error.message}


# --- fields -----------------------------------------------------------------------------------------------------------


Images = Annotated[
    list[str], Field(fail_fast=True, description="Image files in base64. The model sees them before the text.")
]
LOAD, UNLOAD = "load", "unload"  # why a request without a prompt ends
_NO_TIME = re.compile(r"0+(\.0+)?(ns|us|µs|ms|s|m|h)?")


# Options of Ollama's runner, which change no text here: memory and threads, the length of a context that this server
# never shifts, and the details of penalties.
MACHINE_OPTIONS = frozenset(
    {
        "num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "low_vram",
        "numa", "f16_kv", "vocab_only", "logits_all", "draft_num_predict", "repeat_last_n", "penalize_newline",
    }
)  # fmt: skip
OFF_OPTIONS = {
    "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0,
    "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "typical_p": 1, "tfs_z": 1,
}  # fmt: skip


class OptionFields(DrawFields, LenientFields):  # type: ignore[valid-type, misc]
    """Options of the generation. Others that Ollama has give a warning, unless they concern its runner."""

    model_config = ConfigDict(extra="allow")

    num_predict: int | None = Field(default=None, description="Most tokens of the answer. Below 1: all that fit.")
    seed: Annotated[int, Field(lt=2**64)] | None = Field(default=None, description="Below 0: a random seed.")
    temperature: Temperature = 1.0
    stop: Stop = []
    diffusion: DiffusionFields = DiffusionFields()

    @property
    def ignored(self) -> dict[str, str]:
        """The options that have no effect, with the reason."""
        names = [
            name
            for name, value in (self.model_extra or {}).items()
            if name not in MACHINE_OPTIONS and value != OFF_OPTIONS.get(name)
        ]
        return {f"options.{name}": REASONS.get(name, UNSUPPORTED) for name in names}

    @property
    def most_tokens(self) -> int | None:
        """The limit on the answer, or None for the checkpoint's."""
        if self.num_predict is None:
            return None
        return self.num_predict if self.num_predict > 0 else UNLIMITED


class OllamaFields(Fields):
    model: str | None = None
    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] = Field(default="", description='"json", or a JSON schema.')
    options: OptionFields = OptionFields()
    think: Literal[False, True, "low", "medium", "high", "max"] = False
    truncate: Any = Field(default=None, description="No effect: a prompt that does not fit is rejected.")
    shift: Any = Field(default=None, description="No effect: an answer ends at the context.")
    keep_alive: Any = Field(default=None, description="The engine stays loaded. 0 without a prompt gives `unload`.")

    @property
    def ignored(self) -> dict[str, str]:
        """The fields that have no effect, with the reason."""
        return self.options.ignored

    @property
    def reason_without_prompt(self) -> str:
        """How the answer ends if the request has no prompt."""
        return UNLOAD if _NO_TIME.fullmatch(str(self.keep_alive)) else LOAD

    def common(self) -> dict[str, Any]:
        """Return the fields that chats and completions share."""
        options = self.options
        return {
            "model": self.model,
            "stream": self.stream,
            "max_tokens": options.most_tokens,
            "seed": options.seed if (options.seed or 0) >= 0 else None,
            "temperature": options.temperature,
            "stop": options.stop,
            **{name: value for name in DRAWS if (value := getattr(options, name)) is not None},
            "diffusion": options.diffusion,
        }

    def chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ChatFields:
        kind: dict[str, Any] = {"type": "json_object" if self.format else "text"}
        if isinstance(self.format, dict):
            kind = {"type": "json_schema", "json_schema": {"schema": self.format}}
        asked = {"messages": messages, "tools": tools, "response_format": kind, "thinking": bool(self.think)}
        return ChatFields.model_validate({**self.common(), **asked})


class OllamaMessage(LenientFields):
    role: str
    content: str = ""
    images: Images = []
    tool_calls: Objects = []
    tool_name: str | None = Field(default=None, description="Of a result. Without it, results follow their calls.")
    name: str | None = Field(default=None, description="An older form of tool_name.")
    tool_call_id: str | None = Field(default=None, description="The id of the call, or the name of its tool.")

    def chat_message(self, where: str) -> dict[str, Any]:
        content = _content(self.images, self.content, f"{where}.images")
        name = self.tool_name or self.name
        return {"role": self.role, "content": content, "tool_calls": self.tool_calls, "name": name}


class UnansweredCalls:
    """The tool calls of a conversation that have no result yet, in their order.

    Ollama's own clients send a result without a name or an id: LangChain's and LlamaIndex's results arrive like this.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Any, str]] = []  # id, if the client sent one, and the tool's name

    def add(self, calls: list[dict[str, Any]]) -> None:
        for call in calls:
            function = call.get("function")
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                self._calls.append((call.get("id"), function["name"]))

    def answer(self, result: OllamaMessage) -> str | None:
        """Return the name of the tool whose result this is, and take its call off the list."""
        name = result.tool_name or result.name
        reference = result.tool_call_id
        by_id = [call for call in self._calls if reference is not None and call[0] == reference]
        by_name = [call for call in self._calls if call[1] in (name, reference)]
        in_order = self._calls if name is None and not self._belongs_to_another(reference) else []
        call = next(iter(by_id or by_name or in_order), None)
        if call is None:
            return name
        self._calls.remove(call)
        return name or call[1]

    def _belongs_to_another(self, reference: str | None) -> bool:
        """Return whether a result names a call that is not among these, all of which have an id."""
        return reference is not None and all(call_id is not None for call_id, _ in self._calls)


class OllamaChatFields(OllamaFields):
    model_config = example({"messages": [{"role": "user", "content": "Who are you?"}], "options": {"num_predict": 64}})

    messages: Annotated[list[OllamaMessage], Field(fail_fast=True)] = []
    tools: Objects = []

    def translated(self) -> ChatFields | None:
        """Return the request as a chat, or None if it only loads the model."""
        unanswered = UnansweredCalls()
        messages: list[dict[str, Any]] = []
        for index, sent in enumerate(self.messages):
            where = f"messages[{index}]"
            message = sent.chat_message(where)
            if sent.role == "tool":
                message["name"] = unanswered.answer(sent)
                if message["name"] is None:
                    raise InputError(f"{where}.tool_name: no earlier call is left for this result; name its tool")
            unanswered.add(sent.tool_calls)
            messages.append(message)
        return self.chat(messages, self.tools) if messages else None


class OllamaGenerateFields(OllamaFields):
    model_config = example({"prompt": "Who are you?", "options": {"num_predict": 64}})

    prompt: str = ""
    suffix: str = Field(default="", description="Text after the missing text: the prompt is the text before it.")
    system: str = ""
    raw: bool = Field(default=False, description="Continue the prompt as it is, without the chat template.")
    images: Images = []
    template: str = ""
    context: Ignored = None

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        if template:
            message = (
                "prompts have the checkpoint's own chat template; leave it out, or send a finished prompt with raw"
            )
            raise ValueError(message)
        return template

    @model_validator(mode="after")
    def _check_plain(self) -> Self:
        plain = "raw" if self.raw else "suffix"
        given = [name for name in ("system", "format", "think", "images") if getattr(self, name)]
        if (self.raw or self.suffix) and given:
            raise ValueError(f"{given[0]} is not supported together with {plain}")
        return self

    def translated(self) -> ChatFields | CompletionFields | None:
        """Return the request as a chat or a completion, or None if it only loads the model."""
        if self.raw or self.suffix:
            texts = {"prompt": self.prompt, "suffix": self.suffix}
            completion = CompletionFields.model_validate({**self.common(), **texts})
            if self.suffix and completion.max_tokens == UNLIMITED:
                completion.max_tokens = None  # the length of the text for a hole is chosen by its context
            return completion
        system = [{"role": "system", "content": self.system}] if self.system else []
        if not self.prompt and not self.images:
            return None
        return self.chat([*system, {"role": "user", "content": _content(self.images, self.prompt, "images")}], [])


def _content(images: list[str], text: str, where: str) -> str | list[dict[str, Any]]:
    """Return the content of a chat message."""
    parts = [base64_part(data, f"{where}[{index}]") for index, data in enumerate(images)]
    return content_of([*parts, {"type": "text", "text": text}] if text else parts)


class ShowFields(LenientFields):
    model_config = example({"model": "gesso"})

    model: str | None = None


class PullFields(LenientFields):
    model_config = example({"model": "gesso"})

    model: str | None = None
    name: str | None = Field(default=None, description="An older form of model.")


# --- models -----------------------------------------------------------------------------------------------------------

DETAILS = {
    "parent_model": "",
    "format": "safetensors",
    "family": FAMILY,
    "families": [FAMILY],
    "parameter_size": "",
    "quantization_level": "",
}
NEVER = "9999-12-31T23:59:59Z"  # when a model is unloaded


def list_entry(name: str, since: float) -> dict[str, Any]:
    """Return the entry of a model in /api/tags."""
    tagged = name if ":" in name else f"{name}:latest"
    digest = hashlib.sha256(name.encode()).hexdigest()  # clients show its first digits
    entry = {"name": tagged, "model": tagged, "modified_at": _written(since), "size": 0, "digest": digest}
    return entry | {"details": DETAILS}


def running_entry(name: str, context: int) -> dict[str, Any]:
    """Return the entry of a model in /api/ps."""
    entry = list_entry(name, 0)
    del entry["modified_at"]
    return entry | {"expires_at": NEVER, "size_vram": 0, "context_length": context}


def description(context: int, capabilities: list[str]) -> dict[str, Any]:
    """Return the answer of /api/show for a model with this context."""
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": DETAILS,
        "model_info": {"general.architecture": FAMILY, f"{FAMILY}.context_length": context},
        "capabilities": capabilities,
    }


# --- answers ----------------------------------------------------------------------------------------------------------


def answer(model: ServedModel, generation: Generation) -> dict[str, Any]:
    form = generation.form
    answer = AnswerDeltas(model.tokenizer, chat=_details(form).template, tools=form.tools)
    whole = answer.end(generation.ended[0]) if generation.jobs else Delta()
    return {**_part(form, whole), **_end(form, generation, answer.final)}


async def stream(model: ServedModel, generation: Generation) -> AsyncGenerator[bytes]:
    form = generation.form
    answer = AnswerDeltas(model.tokenizer, chat=_details(form).template, tools=form.tools)
    try:
        async with aclosing(generation.deltas(answer)) as deltas:
            async for delta in deltas:
                yield _line({**_part(form, delta), "done": False})
        yield _line({**_part(form, Delta()), **_end(form, generation, answer.final)})
    except ApiError as error:
        yield _line(error_body(error))


def _details(form: AnswerForm) -> OllamaForm:
    assert isinstance(form.details, OllamaForm)
    return form.details


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def _part(form: AnswerForm, delta: Delta) -> dict[str, Any]:
    """Return a part of an answer, or a whole one: a message of /api/chat, or a text of /api/generate."""
    head = {"model": form.model, "created_at": _written(time.time())}
    thinking = {"thinking": delta.thinking} if delta.thinking else {}
    if not _details(form).message:
        return {**head, "response": delta.text, **thinking}
    message: dict[str, Any] = {"role": "assistant", "content": delta.text, **thinking}
    if delta.calls:
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in delta.calls]
        message["tool_calls"] = calls
    return {**head, "message": message}


def _end(form: AnswerForm, generation: Generation, read: Answer) -> dict[str, Any]:
    """Return the fields of the last part. Prompt and answer have one duration: a batch's passes run both.

    Ollama's API has neither the seed nor calls that cannot be read.
    """
    if not generation.jobs:
        return {"done": True, "done_reason": _details(form).done_reason}
    ended, usage = generation.ended[0], generation.usage()
    nanoseconds = int(1e9 * (time.monotonic() - generation.jobs[0].created_at))
    return {
        "done": True,
        "done_reason": ended.finish_reason,
        "total_duration": nanoseconds,
        "load_duration": 0,
        "prompt_eval_count": usage["prompt_tokens"],
        "prompt_eval_duration": 0,
        "eval_count": usage["completion_tokens"],
        "eval_duration": nanoseconds,
        "seed": ended.seed,
        **({"malformed_tool_calls": list(read.malformed)} if read.malformed else {}),
    }


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
