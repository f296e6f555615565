"""Constraints, tool calls, infill and edits over HTTP and with the official client."""

import json
import re
from pathlib import Path

import pytest

from tests.schemas import assert_valid
from tests.serving import QUICK, server_fixture

LONGER = QUICK | {"canvas_length": 32}
EXTRA = {"diffusion": LONGER}
HELLO = [{"role": "user", "content": "Hello"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in (("save", PERSON), ("ping", {"type": "object", "properties": {}}))
]


server = server_fixture()


def chat(client, **options):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 96, "seed": 1, "extra_body": EXTRA} | options
    return client.chat.completions.create(**asked)


# --- constraints ------------------------------------------------------------------------------------------------------


def test_json_schema_is_in_the_prompt_unless_turned_off(server):
    def prompt_tokens(path, **body):
        usage = server.http.post(path, json=body).json()["usage"]
        return usage.get("prompt_tokens") or usage["input_tokens"]

    format = {"type": "json_schema", "json_schema": {"schema": PERSON}}
    asked = {"messages": [{"role": "user", "content": "Hi"}], "response_format": format, "max_tokens": 60}
    shown = prompt_tokens("/v1/chat/completions", **asked)
    assert shown > prompt_tokens("/v1/chat/completions", **asked, schema_in_prompt=False) + 20
    text = {"format": {"type": "json_schema", "schema": PERSON}}
    assert prompt_tokens("/v1/responses", input="Hi", text=text, max_output_tokens=60) == shown


def test_json_schema_answers_are_valid_streamed_or_not(client):
    asked = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for seed in range(2):
        text = chat(client, response_format=asked, seed=seed).choices[0].message.content
        assert_valid(json.loads(text), PERSON)
        chunks = chat(client, response_format=asked, seed=seed, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_json_object_format_gives_an_object(client):
    text = chat(client, response_format={"type": "json_object"}).choices[0].message.content
    assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"regex": "[a-c]{3,9}"}, "[a-c]{3,9}"),
        ({"grammar": 'root ::= "x"+'}, "x+"),
    ],
    ids=["choice", "regex", "grammar"],
)
def test_choice_regex_and_grammar_have_their_python_names(client, server, constraint, pattern):
    text = chat(client, extra_body=EXTRA | constraint).choices[0].message.content
    assert re.fullmatch(pattern, text)
    body = {"prompt": "Hello", "max_tokens": 40, "seed": 1, "diffusion": LONGER} | constraint
    assert re.fullmatch(pattern, server.http.post("/v1/completions", json=body).json()["choices"][0]["text"])


def test_responses_with_a_schema_are_valid(client):
    form = {"type": "json_schema", "name": "person", "schema": PERSON}
    found = client.responses.create(
        model="tiny", input="Hello", max_output_tokens=96, text={"format": form}, extra_body=EXTRA
    )
    assert_valid(json.loads(found.output_text), PERSON)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "save"}}])
def test_a_required_tool_call_has_valid_arguments(client, choice):
    asked = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    for stream in (False, True):
        answer = chat(client, stream=stream, **asked)
        choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
        said = [choice.delta if stream else choice.message for choice in choices]
        (call,) = [call for part in said for call in part.tool_calls or []]
        assert choices[-1].finish_reason == "tool_calls"
        assert call.function.name in ("save", "ping") if choice == "required" else call.function.name == "save"
        if call.function.name == "save":
            assert_valid(json.loads(call.function.arguments), PERSON)


def test_a_free_call_has_valid_arguments_and_a_free_text_stays_free(server):
    """The constraint is not seen in an answer. `gesso.serve` compiles it, so that the tools' schemas are checked."""
    body = {"messages": HELLO, "tools": TOOLS, "max_tokens": 64, "seed": 1, "diffusion": LONGER}
    found = server.http.post("/v1/chat/completions", json=body)
    assert found.status_code == 200, found.text
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"properties": {"a": {"$ref": "http://x/y"}}}}}
    found = server.http.post("/v1/chat/completions", json=body | {"tools": [*TOOLS, odd]})
    assert found.status_code == 200, found.text
    assert "odd" in found.json()["warnings"][0]
    assert "odd" in found.headers["x-gesso-warnings"]


def test_a_constraint_begins_after_the_thoughts(server):
    body = {"messages": HELLO, "choice": ["yes", "no"], "thinking": True, "max_tokens": 64, "diffusion": LONGER}
    for seed in range(3):
        message = server.http.post("/v1/chat/completions", json=body | {"seed": seed}).json()["choices"][0]["message"]
        assert message["content"] in ("yes", "no")
    text = {"format": {"type": "json_schema", "schema": PERSON}}
    body = {
        "input": "Hello",
        "text": text,
        "reasoning": {"effort": "high"},
        "max_output_tokens": 96,
        "diffusion": LONGER,
    }
    answer = server.http.post("/v1/responses", json=body).json()
    if answer["status"] == "completed":
        assert_valid(json.loads(answer["output"][-1]["content"][0]["text"]), PERSON)


def test_ignored_keywords_and_formats_are_warnings_of_an_answer(server):
    schema = {"type": "boolean", "x-mine\r\n\u00e4": 1, "format": "someday"}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = {"messages": HELLO, "response_format": form, "max_tokens": 64, "diffusion": LONGER}
    for _ in range(2):  # the second time, the constraint is in the cache
        found = server.http.post("/v1/chat/completions", json=body)
        assert found.json()["choices"][0]["message"]["content"] in ("true", "false")
        for text in (" ".join(found.json()["warnings"]), found.headers["x-gesso-warnings"]):
            assert "x-mine" in text and "someday" in text and text.isascii() and text.isprintable()
    first = next(server.events("/v1/chat/completions", body))
    assert any("someday" in warning for warning in first["warnings"])


def test_schema_options_over_http(server):
    members = {"a": {"const": 1}, "b": {"const": 2}}
    schema = {"type": "object", "properties": members, "required": ["a", "b"]}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = {"messages": HELLO, "response_format": form, "max_tokens": 64, "diffusion": LONGER}
    for option in ("any_order", "whitespace", "open"):
        found = server.http.post("/v1/chat/completions", json=body | {"schema_options": {option: True}, "seed": 3})
        assert found.status_code == 200, found.text
        choice = found.json()["choices"][0]
        if choice["finish_reason"] == "stop":
            assert_valid(json.loads(choice["message"]["content"]), schema)
    assert server.http.post("/v1/chat/completions", json=body | {"schema_options": {"x": True}}).status_code == 400


REJECTED = [
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "thing"}}}}, "thing"),
    ({"regex": "("}, "regular expression"),
    ({"regex": "a", "choice": ["a"]}, "one constraint"),
    ({"choice": []}, "choice"),
    ({"grammar": "root ::= other"}, "other"),
    ({"tool_choice": "required"}, "no tools"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "none"}}}, "'none'"),
    ({"tools": TOOLS, "tool_choice": "required", "regex": "a"}, "one constraint"),
    ({"regex": "a", "schema_options": {"open": True}}, "schema_options"),
    ({"regex": "a{50}", "max_tokens": 5}, "tokens"),
]


@pytest.mark.parametrize(("change", "message"), REJECTED, ids=[message for _, message in REJECTED])
def test_unsupported_constraints_are_rejected_with_the_reason(server, change, message):
    response = server.http.post("/v1/chat/completions", json={"messages": HELLO} | change)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


# --- infill and edits -------------------------------------------------------------------------------------------------


def test_completion_with_a_suffix(client):
    asked = {"model": "tiny", "prompt": "def f(x):", "suffix": "\nprint(f(2))", "max_tokens": 6, "seed": 1}
    plain = client.completions.create(**asked, extra_body=EXTRA).choices[0]
    assert plain.finish_reason in ("stop", "length")
    streamed = client.completions.create(**asked, extra_body=EXTRA, stream=True)
    assert "".join(choice.text for chunk in streamed for choice in chunk.choices) == plain.text
    several = client.completions.create(**asked, extra_body=EXTRA, n=2)
    assert several.choices[0].text == plain.text


def test_infill_over_http_equals_python(server, served_model):
    import gesso

    g = gesso.load(served_model)
    here = g.infill("abc ", " xyz", max_new_tokens=4, seed=3, settle=1, **LONGER)
    body = {"prompt": "abc ", "suffix": " xyz", "max_tokens": 4, "seed": 3, "diffusion": LONGER}
    there = server.http.post("/v1/completions", json=body).json()
    assert there["choices"][0]["text"] == here.text
    assert there["usage"]["diffusion"]["steps"] == here.usage.denoising_steps


def test_best_of_over_http_equals_candidates_in_python(server, served_model):
    import gesso

    here = gesso.load(served_model).infill("abc ", " xyz", max_new_tokens=4, seed=3, settle=1, candidates=3, **LONGER)
    body = {"prompt": "abc ", "suffix": " xyz", "max_tokens": 4, "seed": 3, "best_of": 3, "diffusion": LONGER}
    there = server.http.post("/v1/completions", json=body).json()
    assert there["choices"][0]["text"] == here.text
    assert there["usage"]["diffusion"]["steps"] == here.usage.denoising_steps


def test_an_edit_rewrites_the_span_and_keeps_the_rest(server):
    text = "The quick brown fox jumps."
    for more in ({}, {"level": 0.5}, {"instruction": "Make it a cat."}):
        body = {"input": text, "span": [4, 9], "seed": 1, "diffusion": LONGER} | more
        if "level" not in more:
            body["max_tokens"] = 6
        response = server.http.post("/v1/edits", json=body)
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        assert choice["text"] == text[:4] + choice["replacement"] + text[9:]
        assert server.http.post("/v1/edits", json=body).json()["choices"] == [choice]


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("completions", {"prompt": ["a", "b"], "suffix": "c"}, "suffix"),
        ("completions", {"prompt": "a", "suffix": "c", "logprobs": 2}, "logprobs"),
        ("completions", {"prompt": "a", "suffix": "c", "regex": "x"}, "regex"),
        ("completions", {"prompt": "a", "best_of": 2}, "best_of needs a suffix"),
        ("completions", {"prompt": "a", "suffix": "c", "best_of": 2, "n": 2}, "n must be 1 with best_of"),
        ("completions", {"prompt": "a", "suffix": "c", "best_of": 10**6}, "best_of: at most"),
        ("edits", {"input": "abc", "span": [2, 9]}, "span"),
        ("edits", {"input": "abc", "span": [1, 2], "diffusion": {"pins": {"0": 5}}}, "pins"),
        ("completions", {"prompt": "a", "diffusion": {"drafts": {"candidates": 21}}}, "candidates"),
        ("edits", {"input": "abc", "span": [0, 3]}, "instruction"),
    ],
)
def test_invalid_infill_and_edits_are_rejected(server, path, change, message):
    response = server.http.post(f"/v1/{path}", json=change)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    server.wait_metric("gesso_requests_running", 0)


def test_the_prepare_process_imports_the_checker_of_schemas_once_for_its_children(server):
    (pid,) = server.children("gesso.serve.prepare.process")
    assert "/jsonschema_rs/" in Path(f"/proc/{pid}/maps").read_text()
