"""Every field that the other projects document: it has an effect, gives a warning, or is rejected by its name.

A field without an effect, and without a warning, is named on the page of its API.
"""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gesso.serve.errors import ApiError
from gesso.serve.form import LlamaCppForm, ResponseForm
from tests.serve import preparing

GUIDES = Path("docs/guides")
CONTEXT = 800
USER = {"role": "user", "content": "Hello"}
MESSAGES = {"messages": [USER]}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
CACHE = {"type": "ephemeral"}
SCHEMA = {"type": "object"}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER | fields]}


def answered(**fields: Any) -> dict[str, Any]:
    """Return messages with an answer of the assistant that has these fields."""
    return {"messages": [USER, {"role": "assistant", "content": "Hi"} | fields, USER]}


def response_tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", **FUNCTION, **fields}]}


def messages_tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"name": "weather", "input_schema": SCHEMA, **fields}]}


# The first body is the request; each of the others is added to it, under the name that a warning, an error or the page
# gives the field. A list has the body to compare with first.
CHAT = {
    "audio": {"audio": {"voice": "alloy", "format": "wav"}},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "function_call": [{"functions": [FUNCTION]}, {"functions": [FUNCTION], "function_call": {"name": "weather"}}],
    "functions": {"functions": [FUNCTION]},
    "logit_bias": {"logit_bias": {"5": 1}},
    "logprobs": {"logprobs": True},
    "max_completion_tokens": {"max_completion_tokens": 9},
    "max_tokens": {"max_tokens": 9},
    "messages.audio": [answered(), answered(audio={"id": "a"})],
    "messages.function_call": [answered(), answered(function_call=CALL["function"])],
    "messages.name": [message(), message(name="Ada")],
    "messages.refusal": [answered(content=None), answered(content=None, refusal="No.")],
    "messages.tool_calls": [answered(), answered(tool_calls=[CALL])],
    "metadata": {"metadata": {"a": "b"}},
    "modalities": {"modalities": ["text", "audio"]},
    "moderation": {"moderation": {"model": "x"}},
    "n": {"n": 2},
    "parallel_tool_calls": [{"tools": [TOOL]}, {"tools": [TOOL], "parallel_tool_calls": False}],
    "prediction": {"prediction": {"type": "content", "content": "Hello"}},
    "presence_penalty": {"presence_penalty": 0.5},
    "prompt_cache_key": {"prompt_cache_key": "k"},
    "prompt_cache_options": {"prompt_cache_options": {"ttl": "30m"}},
    "prompt_cache_retention": {"prompt_cache_retention": "24h"},
    "reasoning_effort": {"reasoning_effort": "max"},
    "response_format": {"response_format": {"type": "json_object"}},
    "safety_identifier": {"safety_identifier": "x"},
    "seed": {"seed": 7},
    "service_tier": {"service_tier": "flex"},
    "stop": {"stop": ["a"]},
    "store": {"store": True},
    "stream": {"stream": True},
    "stream_options.include_obfuscation": {"stream_options": {"include_obfuscation": True}},
    "stream_options.include_usage": {"stream_options": {"include_usage": True}},
    "temperature": {"temperature": 0.5},
    "tool_choice": [{"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "required"}],
    "tools": {"tools": [TOOL]},
    "tools.strict": [{"tools": [TOOL]}, {"tools": [{"type": "function", "function": FUNCTION | {"strict": True}}]}],
    "top_logprobs": {"top_logprobs": 3},
    "top_p": {"top_p": 0.5},
    "user": {"user": "u"},
    "verbosity": {"verbosity": "low"},
    "web_search_options": {"web_search_options": {}},
}
COMPLETIONS = {
    "best_of": {"best_of": 2},
    "echo": {"echo": True},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "logit_bias": {"logit_bias": {"5": 1}},
    "logprobs": {"logprobs": 2},
    "max_tokens": {"max_tokens": 9},
    "n": {"n": 2},
    "presence_penalty": {"presence_penalty": 0.5},
    "seed": {"seed": 7},
    "stop": {"stop": "a"},
    "stream": {"stream": True},
    "stream_options": {"stream_options": {"include_usage": True}},
    "suffix": {"suffix": "x"},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "user": {"user": "u"},
}
RESPONSES = {
    "access_programs": {"access_programs": {"a": {"b": 1}}},
    "background": {"background": True},
    "context_management": {"context_management": [{"type": "compaction"}]},
    "conversation": {"conversation": "c"},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "image": {"image": {"a": 1}},
    "include": {"include": ["message.output_text.logprobs"]},
    "reasoning.encrypted_content": {"include": ["reasoning.encrypted_content"]},
    "phase": [
        {"input": [USER, {"role": "assistant", "content": "Hi", "id": "msg_1"}]},
        {"input": [USER, {"role": "assistant", "content": "Hi", "id": "msg_1", "phase": "commentary"}]},
    ],
    "instructions": {"instructions": "x"},
    "max_output_tokens": {"max_output_tokens": 9},
    "max_tool_calls": {"max_tool_calls": 2},
    "metadata": {"metadata": {"a": "b"}},
    "moderation": {"moderation": {"model": "x"}},
    "parallel_tool_calls": [response_tool(), response_tool() | {"parallel_tool_calls": False}],
    "presence_penalty": {"presence_penalty": 0.5},
    "previous_response_id": {"previous_response_id": "resp_" + "0" * 32},
    "prompt": {"prompt": {"id": "a"}},
    "prompt_cache_key": {"prompt_cache_key": "k"},
    "prompt_cache_options": {"prompt_cache_options": {"ttl": "30m"}},
    "prompt_cache_retention": {"prompt_cache_retention": "24h"},
    "reasoning.context": {"reasoning": {"context": "all_turns"}},
    "reasoning.effort": {"reasoning": {"effort": "max"}},
    "reasoning.generate_summary": {"reasoning": {"generate_summary": "auto"}},
    "reasoning.mode": {"reasoning": {"mode": "pro"}},
    "reasoning.summary": {"reasoning": {"summary": "concise"}},
    "safety_identifier": {"safety_identifier": "x"},
    "service_tier": {"service_tier": "flex"},
    "store": {"store": False},
    "stream": {"stream": True},
    "stream_options.include_obfuscation": {"stream_options": {"include_obfuscation": True}},
    "temperature": {"temperature": 0.5},
    "text.format": {"text": {"format": {"type": "json_object"}}},
    "text.verbosity": {"text": {"verbosity": "low"}},
    "tool_choice": [response_tool(), response_tool() | {"tool_choice": "required"}],
    "tools": response_tool(),
    "tools.allowed_callers": [response_tool(), response_tool(allowed_callers=["programmatic"])],
    "tools.defer_loading": [response_tool(), response_tool(defer_loading=True)],
    "tools.output_schema": [response_tool(), response_tool(output_schema=SCHEMA)],
    "tools.web_search": {"tools": [{"type": "web_search"}]},
    "top_logprobs": {"top_logprobs": 3},
    "top_p": {"top_p": 0.5},
    "truncation": {"truncation": "auto"},
    "user": {"user": "u"},
}
ANTHROPIC = {
    "billing_policy": {"billing_policy": {"type": "x"}},
    "cache_control": {"cache_control": CACHE},
    "compaction": {"compaction": {"type": "x"}},
    "container": {"container": "x"},
    "context_management": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    "diagnostics": {"diagnostics": {"a": 1}},
    "fallbacks": {"fallbacks": [{"model": "x"}]},
    "inference_geo": {"inference_geo": "us"},
    "max_tokens": {"max_tokens": 9},
    "mcp_servers": {"mcp_servers": [{"type": "url", "url": "https://example.org", "name": "a"}]},
    "messages.content.cache_control": [
        message(content=[{"type": "text", "text": "Hello"}]),
        message(content=[{"type": "text", "text": "Hello", "cache_control": CACHE}]),
    ],
    "messages.content.citations": [
        answered(content=[{"type": "text", "text": "Hi"}]),
        answered(content=[{"type": "text", "text": "Hi", "citations": [{"type": "char_location"}]}]),
    ],
    "messages.content.signature": [
        answered(content=[{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi"}]),
        answered(content=[{"type": "thinking", "thinking": "So.", "signature": "s"}, {"type": "text", "text": "Hi"}]),
    ],
    "metadata": {"metadata": {"user_id": "u"}},
    "output_config.effort": {"output_config": {"effort": "max"}},
    "output_config.format": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "output_config.task_budget": {"output_config": {"task_budget": {"type": "tokens", "total": 1000}}},
    "service_tier": {"service_tier": "auto"},
    "speed": {"speed": "fast"},
    "stop_sequences": {"stop_sequences": ["a"]},
    "stream": {"stream": True},
    "system": {"system": [{"type": "text", "text": "x"}]},
    "temperature": {"temperature": 0.5},
    "thinking": {"thinking": {"type": "adaptive"}},
    "thinking.budget_tokens": [
        {"thinking": {"type": "enabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    ],
    "thinking.display": [
        {"thinking": {"type": "adaptive"}},
        {"thinking": {"type": "adaptive", "display": "omitted"}},
    ],
    "thread": {"thread": {"type": "create"}},
    "tool_choice": [messages_tool(), messages_tool() | {"tool_choice": {"type": "any"}}],
    "disable_parallel_tool_use": [
        messages_tool() | {"tool_choice": {"type": "any"}},
        messages_tool() | {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    ],
    "tools": messages_tool(),
    "tools.allowed_callers": [messages_tool(), messages_tool(allowed_callers=["code_execution_20260521"])],
    "tools.cache_control": [messages_tool(), messages_tool(cache_control=CACHE)],
    "tools.defer_loading": [messages_tool(), messages_tool(defer_loading=True)],
    "tools.description": [messages_tool(), messages_tool(description="The weather.")],
    "tools.eager_input_streaming": [messages_tool(), messages_tool(eager_input_streaming=True)],
    "tools.input_examples": [messages_tool(), messages_tool(input_examples=[{}])],
    "tools.strict": [messages_tool(), messages_tool(strict=True)],
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.5},
    "user_profile_id": {"user_profile_id": "x"},
    "workspace_id": {"workspace_id": "x"},
}
OLLAMA_OPTIONS = {
    "num_keep": 5, "num_predict": 100, "top_k": 20, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.7, "repeat_last_n": 33,
    "temperature": 0.8, "repeat_penalty": 1.2, "presence_penalty": 1.5, "frequency_penalty": 1.0, "seed": 42,
    "penalize_newline": True, "stop": ["a"], "numa": True, "num_ctx": 1024, "num_batch": 2, "num_gpu": 1, "main_gpu": 0,
    "use_mmap": True, "num_thread": 8, "draft_num_predict": 4, "mirostat": 1, "mirostat_tau": 4.0, "mirostat_eta": 0.2,
    "tfs_z": 0.5, "nonsense": 1,
}  # fmt: skip
OLLAMA = {
    "format": {"format": SCHEMA},
    "keep_alive": {"keep_alive": "5m"},
    "logprobs": {"logprobs": True},
    "shift": {"shift": True},
    "stream": {"stream": False},
    "think": {"think": "max"},
    "top_logprobs": {"top_logprobs": 2},
    "truncate": {"truncate": True},
    **{f"options.{name}": {"options": {name: value}} for name, value in OLLAMA_OPTIONS.items()},
}
OLLAMA_CHAT = OLLAMA | {
    "images": message(images=["aGk="]),
    "messages.thinking": [answered(), answered(thinking="Hm.")],
    "messages.tool_calls": [answered(), answered(tool_calls=[CALL])],
    "tools": {"tools": [TOOL]},
}
OLLAMA_GENERATE = OLLAMA | {
    "context": {"context": [1, 2]},
    "height": {"height": 5},
    "images": {"images": ["aGk="]},
    "raw": {"raw": True},
    "steps": {"steps": 5},
    "suffix": {"suffix": "x"},
    "system": {"system": "x"},
    "template": {"template": "x"},
    "width": {"width": 5},
}
LLAMA_CPP_FIELDS = {
    "cache_prompt": False, "dry_allowed_length": 3, "dry_base": 1.5, "dry_multiplier": 0.8, "dry_penalty_last_n": 9,
    "dry_sequence_breakers": ["\n"], "dynatemp_exponent": 2.0, "dynatemp_range": 0.5, "frequency_penalty": 0.5,
    "grammar": 'root ::= "a"', "id_slot": 0, "ignore_eos": True, "image_data": [{"id": 1, "data": "x"}],
    "json_schema": {}, "logit_bias": [[5, 1.0]], "lora": [{"id": 0, "scale": 1.0}], "min_keep": 2, "min_p": 0.1,
    "mirostat": 2, "mirostat_eta": 0.2, "mirostat_tau": 4.0, "n_cache_reuse": 5, "n_cmpl": 2, "n_discard": 5,
    "n_indent": 4, "n_keep": 5, "n_predict": 9, "n_probs": 2, "post_sampling_probs": True, "presence_penalty": 0.5,
    "repeat_last_n": 5, "repeat_penalty": 1.2, "response_fields": ["content"], "return_progress": True,
    "return_tokens": True, "samplers": ["top_k"], "seed": 7, "sse_ping_interval": 5, "stop": ["a"], "stream": True,
    "t_max_predict_ms": 100, "t_max_prompt_ms": 100, "temperature": 0.5, "timings_per_token": True, "top_k": 20,
    "top_p": 0.9, "typical_p": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.2,
}  # fmt: skip
LLAMA_CPP: dict[str, Any] = {name: {name: value} for name, value in LLAMA_CPP_FIELDS.items()}
LLAMA_CPP_COMPLETION = LLAMA_CPP | {"prompt": {"prompt": [300, 301]}}
LLAMA_CPP_INFILL = LLAMA_CPP | {
    "input_extra": {"input_extra": [{"text": "a", "filename": "b"}]},
    "input_suffix": {"input_suffix": "z"},
    "prompt": {"prompt": "x"},
}

DIALECTS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("chat", "openai.md", MESSAGES, CHAT),
    ("completions", "openai.md", {"prompt": "Hello"}, COMPLETIONS),
    ("responses", "openai.md", {"input": "Hello"}, RESPONSES),
    ("anthropic", "anthropic.md", MESSAGES | {"max_tokens": 20}, ANTHROPIC),
    ("ollama_chat", "ollama.md", MESSAGES, OLLAMA_CHAT),
    ("ollama_generate", "ollama.md", {"prompt": "Hello"}, OLLAMA_GENERATE),
    ("llama_cpp_completion", "llama-cpp.md", {"prompt": "Hello"}, LLAMA_CPP_COMPLETION),
    ("llama_cpp_infill", "llama-cpp.md", {"input_prefix": "Hello", "input_suffix": "x"}, LLAMA_CPP_INFILL),
]
CASES = [
    pytest.param(endpoint, page, base, name, change, id=f"{endpoint}-{name}")
    for endpoint, page, base, fields in DIALECTS
    for name, change in fields.items()
]


@pytest.fixture(scope="module")
def entry(served_model):
    return preparing.entry(served_model)


def prepared(entry, endpoint, body):
    """Return the prepared request, or the error of a rejected one."""
    body = {"options": {"seed": 1}, **body} if endpoint.startswith("ollama") else {"seed": 1, **body}
    return preparing.prepare([entry], endpoint, body, context=CONTEXT)


def without_echo(request):
    """Return what a request asks the engine for and the form of its answer, without the fields that it repeats."""
    details = request.form.details
    if isinstance(details, ResponseForm):
        details = replace(details, echo=b"")
    if isinstance(details, LlamaCppForm):
        details = replace(details, settings={})
    return replace(request, form=replace(request.form, details=details, warnings=[]))


@pytest.mark.parametrize(("endpoint", "page", "base", "name", "change"), CASES)
def test_no_documented_field_is_ignored_silently(entry, endpoint, page, base, name, change):
    before, after = change if isinstance(change, list) else ({}, change)
    if "options" in after:
        after = {"options": {"seed": 1} | after["options"]}
    plain = prepared(entry, endpoint, base | before)
    changed = prepared(entry, endpoint, base | after)
    last_name = name.rpartition(".")[2]
    if isinstance(changed, ApiError):
        assert changed.status in (400, 404) and last_name in changed.message, changed
    elif changed.form.warnings != plain.form.warnings:
        (warning,) = set(changed.form.warnings) - set(plain.form.warnings)
        assert warning.startswith(f"{name} was ignored: ")
    elif without_echo(changed) == without_echo(plain):
        text = (GUIDES / page).read_text(encoding="utf-8")
        assert f"`{name}`" in text or f"`{last_name}`" in text, f"{page} does not say that {name} has no effect"


OFF = [
    ("ollama_chat", MESSAGES, {"logprobs": False, "top_logprobs": 0}),
    ("anthropic", MESSAGES, {"mcp_servers": [], "speed": "standard"}),
    ("llama_cpp_completion", {"prompt": "Hello"}, {"repeat_penalty": 1.0, "typical_p": 1.0, "logit_bias": []}),
]


@pytest.mark.parametrize(("endpoint", "base", "fields"), OFF)
def test_a_field_that_is_off_is_accepted_without_a_warning(entry, endpoint, base, fields):
    assert prepared(entry, endpoint, base | fields) == prepared(entry, endpoint, base)
