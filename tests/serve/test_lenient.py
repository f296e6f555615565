"""Fields that other servers have: accepted silently, ignored with a warning, or rejected."""

import json
import os
import subprocess
import sys

import pytest

from gesso.serve.errors import ApiError
from gesso.serve.leniency import (
    HARMLESS,
    REASONS,
    REJECTED,
    UNSUPPORTED,
    warning_headers,
    warnings_of,
    without_unsupported,
)
from gesso.serve.openai.chat_fields import ChatFields
from gesso.serve.openai.response_fields import ResponseFields
from gesso.serve.openai.text_fields import CompletionFields
from gesso.serve.wire import constraint_of
from tests.serve.preparing import entry, prepare, request_of
from tests.serving import QUICK, server_fixture
from tests.test_renamed import NAMES
from tests.waiting import bounded, wait_until

HELLO = [{"role": "user", "content": "Hello"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WEATHER = {"type": "function", "function": {"name": "weather"}}
CONTEXT = 200
OVERFLOW = "200 tokens, and at least 1 for the answer. This model's maximum context length is 200 tokens"

SILENT = [
    dict.fromkeys(sorted(HARMLESS), {"key": "value"}),
    {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": {}, "top_p": 1},
    {"functions": [], "function_call": "none", "bad_words": [], "ignore_eos": False, "min_tokens": 0, "suffix": ""},
    {"skip_special_tokens": True, "verbosity": "medium", "modalities": ["text"], "anything": None, "logit_bias": None},
    {"stream_options": {"include_usage": True, "include_obfuscation": False}},  # without stream
    {"parallel_tool_calls": False, "tools": [WEATHER]},
    {"max_tokens": 4, "max_completion_tokens": 8},
]
WARNED = {
    "frequency_penalty": 0.5,
    "presence_penalty": 1,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "ignore_eos": True,
    "verbosity": "low",
    "skip_special_tokens": False,
    "chat_template_kwargs": {"enable_thinking": False},
    "nonsense": "x",
}


@pytest.fixture(scope="module")
def entries(served_model):
    """The served model as the prepare process has it, lenient and strict."""
    return {strict: entry(served_model, strict=strict, request_tokens=180) for strict in (False, True)}


def prepared(entries, body, strict=False, endpoint="chat"):
    """Return a prepared request, or the error of a rejected one."""
    asked = ({"messages": HELLO} if endpoint == "chat" else {"prompt": "Hello"}) | {"max_tokens": 8} | body
    return prepare([entries[strict]], endpoint, asked, context=CONTEXT)


# --- which fields -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", SILENT, ids=lambda body: next(iter(body)))
def test_fields_that_change_nothing_are_accepted_silently_strict_or_not(entries, body):
    for strict in (False, True):
        assert prepared(entries, body, strict).form.warnings == []


@pytest.mark.parametrize("name", WARNED)
def test_fields_without_an_equivalent_are_ignored_with_a_warning_unless_strict(entries, name):
    body = {"metadata": {"key": "value"}, name: WARNED[name], "seed": 1}
    found = prepared(entries, body)
    assert found.form.warnings == [f"{name} was ignored: {REASONS.get(name, UNSUPPORTED)}"]
    assert found.prompts == prepared(entries, {"seed": 1}).prompts
    refused = prepared(entries, body, strict=True)
    assert (refused.status, refused.param, refused.code) == (400, name, "unknown_parameter")


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("completions", {"functions": [{"name": "f"}]}),
        ("chat", {"functions": [{"name": "f"}], "tools": [WEATHER]}),
        ("chat", {"function_call": {"name": "f"}}),
        ("chat", {"best_of": 2}),
        ("chat", {"modalities": ["text", "audio"]}),
        ("chat", {"web_search_options": {"search_context_size": "low"}}),
        ("chat", {"web_search_options": {}}),
        ("chat", {"json_schema": {}}),
        ("completions", {"prompt_logprobs": 0}),
        ("chat", {"guided_json": "{"}),
        ("chat", {"guided_regex": "a", "regex": "b"}),
        ("chat", {"guided_regex": "a", "guided_choice": ["a", "b"]}),
        ("chat", {"structured_outputs": {"structural_tag": "x"}}),
        ("chat", {"structured_outputs": "x"}),
        ("completions", {"tools": [WEATHER]}),
        ("completions", {"echo": True}),
        ("completions", {"guided_json": {"type": "object"}, "suffix": "x"}),
        ("completions", {"n": 2, "best_of": 2, "suffix": "x"}),
        ("chat", {"diffusion": {"nonsense": 1}}),
        ("chat", {"tool_choice": {"type": "function", "function": {"name": "f"}, "nonsense": 1}}),
        ("chat", {"response_format": {"type": "json_object", "nonsense": 1}}),
        ("chat", {"frequency_penalty": 1, "temperature": "hot"}),
    ],
    ids=str,
)
def test_fields_whose_loss_would_matter_and_wrong_values_are_rejected(entries, endpoint, body):
    assert prepared(entries, body, endpoint=endpoint).status == 400


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"])
def test_the_warning_of_a_penalty_explains_it(entries, name):
    (warning,) = prepared(entries, {name: WARNED[name]}).form.warnings
    assert "canvas" in warning


def test_at_temperature_0_the_seed_is_fixed(entries):
    def seed(**fields):
        return prepared(entries, fields).prompts[0].seed

    assert seed(temperature=0) == seed(temperature=0) == 0
    assert seed(temperature=0, seed=7) == 7
    assert seed(temperature=0.1) != seed(temperature=0.1)


def test_a_content_of_null_is_empty_for_the_assistant_and_explained_otherwise(entries):
    null = {"role": "assistant", "content": None}
    empty = {"role": "assistant", "content": ""}
    first, second = (prepared(entries, {"messages": [*HELLO, each, *HELLO]}) for each in (null, empty))
    assert first.prompts[0].prompt_tokens == second.prompts[0].prompt_tokens
    refused = prepared(entries, {"messages": [{"role": "user", "content": None}]})
    assert refused.message == "messages[0].content: it is missing or null; give text, or a list of parts"


def test_a_refusal_is_the_text_of_its_message(entries):
    texts = [
        {"content": "No."},
        {"content": None, "refusal": "No."},
        {"content": [{"type": "refusal", "refusal": "No."}]},
    ]
    answers = [{"role": "assistant", **text} for text in texts]
    text, field, part = (prepared(entries, {"messages": [*HELLO, answer, *HELLO], "seed": 1}) for answer in answers)
    assert text.prompts == field.prompts == part.prompts


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}
CONSTRAINTS = [
    ("guided_json", SCHEMA, {"json_schema": SCHEMA}),
    ("guided_json", json.dumps(SCHEMA), {"json_schema": SCHEMA}),
    ("guided_regex", "[ab]+", {"regex": "[ab]+"}),
    ("guided_choice", ["yes", "no"], {"choice": ["yes", "no"]}),
    ("guided_grammar", 'root ::= "a"', {"grammar": 'root ::= "a"'}),
    ("structured_outputs", {"json": SCHEMA, "regex": None}, {"json_schema": SCHEMA}),
    ("structured_outputs", {"json_object": True}, {"json_schema": {"type": "object"}}),
    ("structured_outputs", {"regex": "[ab]+", "disable_any_whitespace": False}, {"regex": "[ab]+"}),
]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize(("name", "value", "expected"), CONSTRAINTS)
def test_constraints_of_vllm_are_ours(entries, endpoint, name, value, expected):
    for strict in (False, True):
        found = prepared(entries, {name: value}, strict, endpoint)
        assert constraint_of(found.constraint.source).given == expected and found.form.warnings == []


@pytest.mark.parametrize(
    ("endpoint", "body", "name"),
    [
        ("ollama_chat", {"messages": HELLO, "options": {"repeat_penalty": 1.1}}, "options.repeat_penalty"),
        ("ollama_generate", {"prompt": "Hello", "options": {"mirostat": 2}}, "options.mirostat"),
        ("ollama_generate", {"prompt": "Hello", "raw": True, "options": {"tfs_z": 2}}, "options.tfs_z"),
        ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ("anthropic", {"output_config": {"effort": "low"}}, "output_config.effort"),
        ("anthropic", {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
    ],
)
def test_no_dialect_ignores_a_field_silently(entries, endpoint, body, name):
    common = {"messages": HELLO, "max_tokens": 8} if endpoint == "anthropic" else {}
    (warning,) = prepare([entries[False]], endpoint, common | body).form.warnings
    assert warning.startswith(f"{name} was ignored: ")
    assert prepare([entries[True]], endpoint, common | body).param == name


def test_functions_are_tools(entries):
    tools = {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    functions = {"functions": [WEATHER["function"]], "function_call": {"name": "weather"}}
    expected = prepared(entries, {**tools, "parallel_tool_calls": False, "seed": 1})
    found = prepared(entries, functions | {"seed": 1})
    assert constraint_of(found.constraint.source) == constraint_of(expected.constraint.source)
    assert found.prompts == expected.prompts and found.form.details.functions and not expected.form.details.functions


def test_a_conversation_about_functions_is_one_about_tools(entries):
    call = {"name": "weather", "arguments": "{}"}
    new = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
    ]
    former = [
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "weather", "content": "sunny"},
    ]
    both = [prepared(entries, {"messages": [*HELLO, *messages], "seed": 1}) for messages in (new, former)]
    assert both[0].prompts == both[1].prompts


def test_the_work_for_unknown_fields_is_bounded_by_their_number():
    unknown = {f"field_{number}": number for number in range(1, 40_001)}
    with bounded():
        kept, ignored = without_unsupported(ChatFields, {**unknown, "n": 1, "stream_options": dict(unknown)})
    assert kept == {"n": 1, "stream_options": {}}
    assert list(ignored) == [*unknown, *(f"stream_options.{name}" for name in unknown)]


def test_every_rejected_name_is_unknown_to_some_endpoint_and_rejected_there():
    for name in REJECTED:
        unknown_to = [
            fields for fields in (ChatFields, CompletionFields, ResponseFields) if name not in fields.model_fields
        ]
        assert unknown_to, f"{name} is a field of every endpoint"
        for fields in unknown_to:
            assert name in without_unsupported(fields, {name: "x"})[0]


def test_an_unknown_stream_option_is_ignored_with_a_warning(entries):
    found = prepared(entries, {"stream": True, "stream_options": {"include_usage": True, "nonsense": 1}})
    assert found.form.include_usage and found.form.warnings == [
        "stream_options.nonsense was ignored: this server does not support it"
    ]


def test_top_logprobs_without_logprobs_is_a_warning(entries):
    found = prepared(entries, {"top_logprobs": 3})
    assert not found.form.logprobs and found.form.warnings == ["top_logprobs was ignored: it needs logprobs: true"]
    assert prepared(entries, {"top_logprobs": 3}, strict=True).param == "top_logprobs"
    assert prepared(entries, {"top_logprobs": 3, "logprobs": True}).form.warnings == []


def test_the_smaller_of_max_tokens_and_max_completion_tokens_counts(entries):
    for limits in ((4, 8), (8, 4)):
        body = dict(zip(("max_tokens", "max_completion_tokens"), limits, strict=True))
        assert prepared(entries, body).prompts[0].max_new_tokens == 4


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_that_does_not_fit_is_lowered_with_a_warning(entries, name):
    found = prepared(entries, {"max_tokens": None, name: 300})
    (prompt,) = found.prompts
    assert prompt.prompt_tokens + prompt.max_new_tokens == 180
    assert found.form.warnings == [f"{name} was lowered to {prompt.max_new_tokens}: more do not fit after messages"]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_limit_or_seed_of_minus_one_is_none(entries, endpoint):
    plain = prepared(entries, {"max_tokens": None}, endpoint=endpoint)
    unlimited = prepared(entries, {"max_tokens": -1, "seed": -1}, endpoint=endpoint)
    assert unlimited.prompts[0].max_new_tokens == plain.prompts[0].max_new_tokens
    assert unlimited.form.warnings == []


def test_top_k_top_p_and_min_p_are_diffusion_settings(entries):
    given = {"top_k": 5, "top_p": 0.9, "min_p": 0.1}
    for endpoint in ("chat", "completions"):
        assert request_of(prepared(entries, given, endpoint=endpoint)).settings.items() >= given.items()
    assert request_of(prepared(entries, given | {"diffusion": {"top_k": 7}})).settings["top_k"] == 7
    assert "top_k" not in request_of(prepared(entries, {"top_k": -1})).settings, "the default, from all"


def test_warnings_are_bounded_ascii_without_control_characters():
    names = ["Zaehler\n", "\u00e4\ud800\r\nSet-Cookie: a", "x" * 10_000, *(f"field{i}" for i in range(1000))]
    warnings = warnings_of(dict.fromkeys(names, "reason"))
    (header,) = warning_headers(warnings).values()
    assert len(warnings) == 17 and warnings[-1] == "987 more fields were ignored"
    assert max(map(len, warnings)) < 200 and len(header) <= 1000
    assert all(text.isascii() and text.isprintable() for text in (*warnings, header))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "endpoint", "code", "param", "message"),
    [
        ({"prompt": [1] * CONTEXT, "max_tokens": None}, "completions", "context_length_exceeded", "prompt", OVERFLOW),
        ({"prompt": "x" * 9000}, "completions", "context_length_exceeded", "prompt", "shorten prompt"),
        ({"prompt": [1] * 190}, "completions", "request_too_long", "prompt", "limit is 180"),
        ({"model": "gpt-5"}, "chat", "model_not_found", "model", "available: tiny"),
        ({"messages": None}, "chat", "missing_required_parameter", "messages", "messages"),
        ({"max_tokens": "4"}, "chat", "invalid_type", "max_tokens", "max_tokens"),
        ({"max_tokens": 0}, "chat", "invalid_value", "max_tokens", "max_tokens"),
        ({"top_p": 2}, "chat", "invalid_value", "top_p", "from 0 to 1"),
        ({"messages": []}, "chat", "invalid_value", "messages", "at least one message"),
    ],
)
def test_errors_have_the_codes_of_openai_and_the_names_of_the_client(entries, body, endpoint, code, param, message):
    error = prepared(entries, body, endpoint=endpoint)
    assert (error.code, error.param) == (code, param)
    assert message in error.message and "max_new_tokens" not in error.message


@pytest.mark.parametrize(
    "message",
    [
        "messages[0].role: expected one of user, assistant, got 'secret \\'words'",
        "there is no model 'secret'; available: tiny",
        'the pattern "secret" is not supported',
        "the regular expression cannot be compiled (regex parse error:\n  secret)",
        "/items is {secret: expected a schema",
    ],
)
def test_the_logged_reason_ends_before_the_values_that_a_message_quotes(message):
    reason = ApiError(400, message).log_fields["reason"]
    assert len(reason) > 5 and message.startswith(reason) and "secret" not in reason


def test_the_logged_reason_keeps_apostrophes_within_words():
    assert ApiError(400, "exceeds this server's limit; shorten it").log_fields["reason"].endswith("shorten it")


# --- the server -------------------------------------------------------------------------------------------------------


server = server_fixture()


def post(server, path, **body):
    asked = {"messages": HELLO} if path == CHAT else {"prompt": "Hello"}
    return server.http.post(path, json=asked | {"max_tokens": 16, "seed": 1, "diffusion": QUICK} | body)


def log_line(server, response):
    """Return the log line of a request. It may be written after the response has arrived."""

    def lines():
        return [line for line in server.log.read_text().splitlines() if response.headers["x-request-id"] in line]

    wait_until(lines)
    return json.loads(lines()[-1])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_warnings_are_in_the_header_the_body_the_log_and_the_first_chunk(server, path):
    plain, warned = post(server, path), post(server, path, nonsense=1)
    warnings = ["nonsense was ignored: this server does not support it"]
    assert "warnings" not in plain.json() and "x-gesso-warnings" not in plain.headers
    assert warned.json()["warnings"] == warnings == [warned.headers["x-gesso-warnings"]]
    assert warned.json()["choices"] == plain.json()["choices"]
    assert log_line(server, warned)["warnings"] == warnings
    streamed = post(server, path, nonsense=1, stream=True)
    data = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert [json.loads(chunk).get("warnings") for chunk in data] == [warnings] + [None] * (len(data) - 1)
    assert streamed.headers["x-gesso-warnings"] == warnings[0]


def test_a_rejected_request_logs_its_field_and_reason_and_no_text(server):
    secret = "xyzzy plugh"
    refused = post(server, CHAT, messages=[{"role": secret, "content": secret}])
    line = log_line(server, refused)
    assert (line["status"], line["param"], line["code"]) == (400, "messages[0].role", "invalid_value")
    assert line["reason"].startswith("messages[0].role: expected one of")
    assert secret in refused.json()["error"]["message"] and secret not in server.log.read_text()
    unknown = server.http.get("/nowhere")
    assert log_line(server, unknown)["reason"] == "there is no endpoint"


def test_continuous_usage_counts_up_to_the_usage_of_the_answer(server):
    body = {"messages": HELLO, "max_tokens": 32, "seed": 1, "n": 2, "diffusion": QUICK}
    options = {"include_usage": True, "continuous_usage_stats": True}
    usages = [event["usage"] for event in server.events(CHAT, body | {"stream_options": options})]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    counts = [[usage[name] for name in names] for usage in usages]
    assert counts == sorted(counts) and counts[0][1] == 0 < counts[-1][1]
    assert counts[-1] == counts[-2] and all(prompt + new == total for prompt, new, total in counts)


def test_parallel_tool_calls_false_keeps_the_first_call_streamed_or_not(server):
    """Pins force two calls."""
    calls = "".join(f'<|tool_call>call:weather{{city:<|"|>{city}<|"|>}}<tool_call|>' for city in ("Rome", "Oslo"))
    asked = {"prompt": f"{calls}<turn|>", "add_special_tokens": False}
    tokens = server.http.post("/tokenize", json=asked).json()["tokens"]
    pins = {str(at): token for at, token in enumerate(tokens)}
    body = {"tools": [WEATHER], "max_tokens": len(tokens) + 8, "diffusion": QUICK | {"steps": 1, "pins": pins}}
    for parallel, cities in ((True, ["Rome", "Oslo"]), (False, ["Rome"])):
        choice = post(server, CHAT, parallel_tool_calls=parallel, **body).json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        found = [json.loads(call["function"]["arguments"])["city"] for call in choice["message"]["tool_calls"]]
        chat = {"messages": HELLO, "seed": 1, "parallel_tool_calls": parallel} | body
        deltas = [choice["delta"] for event in server.events(CHAT, chat) for choice in event["choices"]]
        streamed = [json.loads(c["function"]["arguments"])["city"] for d in deltas for c in d.get("tool_calls", [])]
        assert found == streamed == cities


def test_an_answer_to_functions_has_function_call_streamed_or_not(server):
    asked = {"functions": [WEATHER["function"]], "function_call": {"name": "weather"}, "max_tokens": 48}
    choice = post(server, CHAT, **asked).json()["choices"][0]
    call = choice["message"]["function_call"]
    assert (choice["finish_reason"], call["name"]) == ("function_call", "weather")
    assert "tool_calls" not in choice["message"]
    chat = {"messages": HELLO, "seed": 1, "diffusion": QUICK} | asked
    choices = [choice for event in server.events(CHAT, chat) for choice in event["choices"]]
    calls = [choice["delta"]["function_call"] for choice in choices if "function_call" in choice["delta"]]
    assert calls == [call] and choices[-1]["finish_reason"] == "function_call"


# --- startup ----------------------------------------------------------------------------------------------------------


def test_an_adapter_that_cannot_be_loaded_ends_the_server_with_the_reason_in_one_line(main, served_model):
    ended = main("serve", "--port", "0", "--device", "cpu", "--model", str(served_model), "--adapter", "foo=/nope")
    reasons = [line for line in ended.err.splitlines() if not line.startswith("{")]
    assert ended.code == 1 and len(reasons) == 1 and "/nope" in reasons[0]


def test_an_engine_whose_server_is_gone_ends_without_a_crash():
    """While a thread waits for stdin, a shutdown of the interpreter would abort it."""
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "gesso.serve.worker", json.dumps({"model": "/nope"})]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE, text=True) as engine:
        os.close(writer)
        reported = engine.stderr.read()  # its stdin stays open
    assert engine.returncode == 3 and "Fatal Python error" not in reported


def test_former_names_are_answered_with_a_warning(server):
    body = {"prompt": "abc", "max_tokens": 4, "seed": 1}
    for former, present in NAMES[3:]:
        found, expected = (
            server.http.post("/v1/completions", json=body | {"diffusion": diffusion}) for diffusion in (former, present)
        )
        (warning,) = found.json()["warnings"]
        assert warning in found.headers["X-Gesso-Warnings"] and f"write={present['write']!r}" in warning
        assert found.json()["choices"] == expected.json()["choices"]
        assert "warnings" not in expected.json()
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "seed": 1, "model": "tiny"}
    former = {"diffusion": {"sampler": "verified"}}
    for path in ("/v1/chat/completions", "/v1/messages"):
        assert "write='verified'" in server.http.post(path, json=chat | former).headers["X-Gesso-Warnings"]
