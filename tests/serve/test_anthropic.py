"""Anthropic's Messages API: a live server with a key, and the translation of its fields."""

import asyncio
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from gesso.chat.tokenizer import Tokenizer
from gesso.serve import anthropic
from gesso.serve.anthropic_fields import MessagesFields
from gesso.serve.errors import ApiError
from gesso.serve.form import AnswerForm
from tests.serve import preparing
from tests.serve.preparing import request_of
from tests.serving import QUICK

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


@pytest.fixture(scope="module")
def server(server_with_keys):
    with server_with_keys.as_client(x_api_key="one") as client:
        yield client


def body(**fields):
    return {"model": "tiny", "messages": HELLO, "max_tokens": 24, "seed": 1, "diffusion": QUICK} | fields


def ask(server, **fields):
    response = server.http.post("/v1/messages", json=body(**fields))
    assert response.status_code == 200, response.text
    return response.json()


def pinned(server, text, **fields):
    """Return a body whose answer is this text: the tiny model neither thinks nor calls tools by itself."""
    tokens = server.http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    pins = {str(at): token for at, token in enumerate(tokens)}
    return body(max_tokens=len(tokens) + 8, diffusion=QUICK | {"pins": pins}, **fields)


def prepare(tiny, **fields):
    """Return a prepared request, or the error of a rejected one."""
    return preparing.prepare([preparing.entry(tiny.directory)], "anthropic", {"messages": HELLO} | fields)


def read_blocks(events):
    """Return the content blocks that a stream's events describe, after checking their order."""
    blocks, is_open = [], False
    assert [events[0]["type"], events[-2]["type"], events[-1]["type"]] == [
        "message_start", "message_delta", "message_stop",
    ]  # fmt: skip
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open and event["index"] == len(blocks)
                blocks.append(dict(event["content_block"]))
                is_open = True
            case "content_block_delta":
                assert is_open and event["index"] == len(blocks) - 1
                name, value = next((name, value) for name, value in event["delta"].items() if name != "type")
                blocks[-1][name] = blocks[-1].get(name, "") + value
            case "content_block_stop":
                assert is_open and event["index"] == len(blocks) - 1
                is_open = False
    assert not is_open
    return blocks


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_stream_has_the_blocks_of_the_plain_answer(server):
    plain = ask(server)
    events = list(server.events("/v1/messages", body()))
    assert read_blocks(events) == plain["content"]
    assert events[-2]["delta"] == {name: plain[name] for name in ("stop_reason", "stop_sequence", "seed")}
    assert events[-2]["usage"]["output_tokens"] == plain["usage"]["output_tokens"] > 0
    assert events[0]["message"]["usage"]["input_tokens"] == plain["usage"]["input_tokens"]


def test_events_are_named_by_their_type(server):
    lines = server.http.post("/v1/messages", json=body(max_tokens=4, stream=True)).text.splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert names == [event["type"] for event in server.events("/v1/messages", body(max_tokens=4))]


def test_thinking_text_and_a_call_are_blocks_streamed_or_not(server):
    call = '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>'
    asked = pinned(server, f"<|channel>thought hm<channel|>Yes{call}<turn|>", tools=[WEATHER])
    plain = server.http.post("/v1/messages", json=asked).json()
    thinking, text, use = plain["content"]
    assert (thinking["thinking"], text) == ("hm", {"type": "text", "text": "Yes"})
    assert (use["name"], use["input"], plain["stop_reason"]) == ("weather", {"city": "Rome"}, "tool_use")
    streamed = read_blocks(list(server.events("/v1/messages", asked)))
    assert streamed[:2] == [thinking, text]
    assert streamed[2]["input"] == {} and streamed[2]["partial_json"] == '{"city": "Rome"}'


def test_stop_reasons(server):
    whole = ask(server, max_tokens=12)
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("max_tokens", None)
    text = whole["content"][0]["text"]
    cut = ask(server, max_tokens=12, stop_sequences=["never", text[4:6]])
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", text[4:6])
    assert cut["content"][0]["text"] == text[: text.find(text[4:6])]
    assert server.http.post("/v1/messages", json=pinned(server, "Yes<turn|>")).json()["stop_reason"] == "end_turn"


def test_a_required_call_is_made(server):
    """`tool_choice` is a constraint, which begins after thoughts."""
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    asked = {"tools": [WEATHER | {"input_schema": {"type": "object"}}], "tool_choice": choice}
    assert [block["type"] for block in ask(server, **asked)["content"]] == ["tool_use"]
    after = ask(server, **asked, thinking={"type": "enabled", "budget_tokens": 9})["content"]
    assert [block["type"] for block in after if block["type"] != "thinking"] == ["tool_use"]


def test_counted_tokens_are_the_prompt_tokens_of_an_answer(server):
    asked = {"model": "tiny", "messages": HELLO, "system": "Be brief.", "tools": [WEATHER]}
    counted = server.http.post("/v1/messages/count_tokens", json=asked).json()
    usage = ask(server, **asked)["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_a_limit_beyond_the_context_is_lowered(tiny):
    (prompt,) = prepare(tiny, max_tokens=10**6).prompts
    assert prompt.prompt_tokens + prompt.max_new_tokens == 256


def test_a_last_message_of_the_assistant_is_continued(tiny):
    def prompt(messages):
        return request_of(prepare(tiny, messages=messages)).prompt

    begun = Tokenizer.from_directory(tiny.directory).encode("My name is", bos=False)
    prefill = {"role": "assistant", "content": [{"type": "text", "text": "My name is"}]}
    assert prompt([*HELLO, prefill]) == [*prompt(HELLO), *begun]


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "enabled"}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "integer"}}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_continued_message_excludes_thinking_and_a_schema(tiny, fields):
    error = prepare(tiny, messages=[*HELLO, {"role": "assistant", "content": "{"}], **fields)
    assert error.status == 400 and "leave thinking and the constraint out" in error.message


# --- errors -----------------------------------------------------------------------------------------------------------


ERRORS = [
    ({"model": "claude"}, 404, "not_found_error", "there is no model 'claude'"),
    ({"nonsense": 1}, 400, "invalid_request_error", "nonsense"),
    (
        {"messages": [{"role": "user", "content": "word " * 4000}]},
        400,
        "invalid_request_error",
        "prompt is too long: messages",
    ),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "invalid_request_error", "'tiny' sees no images"),
    ({"diffusion": {"drafts": True}}, 400, "invalid_request_error", "drafts"),
]


@pytest.mark.parametrize(("change", "status", "kind", "message"), ERRORS, ids=[each[3] for each in ERRORS])
def test_errors_have_anthropics_form(server, change, status, kind, message):
    response = server.http.post("/v1/messages", json=body(**change))
    assert response.status_code == status
    found = response.json()
    assert (found["type"], found["error"]["type"]) == ("error", kind) and message in found["error"]["message"]


def test_a_thread_is_rejected_by_the_code_on_which_clients_send_the_whole_conversation(tiny):
    error = prepare(tiny, thread={"type": "create"})
    body = anthropic.error_body(error)
    assert (error.status, body["error"]["type"]) == (400, "invalid_request_error")
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def test_a_key_is_needed_as_x_api_key_or_as_a_bearer(server):
    def status(**headers):
        sent = {"x-api-key": "", **{name.replace("_", "-"): value for name, value in headers.items()}}
        return server.http.post("/v1/messages/count_tokens", json={"messages": HELLO}, headers=sent)

    assert status(x_api_key="one").status_code == status(authorization="Bearer one").status_code == 200
    for refused in (status(), status(x_api_key="other"), status(authorization="Bearer x", x_api_key="one")):
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"


def test_an_error_in_a_stream_is_its_last_event():
    async def deltas(answer):
        raise ApiError(504, "too late")
        yield

    async def read():
        jobs = [SimpleNamespace(prompt=SimpleNamespace(prompt_tokens=3))]
        generation = SimpleNamespace(
            jobs=jobs, deltas=deltas, form=AnswerForm(served="tiny", model="tiny", adapter=None)
        )
        return [event async for event in anthropic.stream(SimpleNamespace(tokenizer=None), generation)]

    start, error = asyncio.run(read())
    assert start.startswith(b"event: message_start\n")
    assert error.startswith(b"event: error\n") and b'"error":{"type":"timeout_error","message":"too late"}' in error


# --- fields -----------------------------------------------------------------------------------------------------------


def chat_of(**fields):
    return MessagesFields.model_validate({"messages": HELLO} | fields).to_chat()


def test_a_conversation_with_tools_becomes_the_same_chat():
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    cached = {"cache_control": {"type": "ephemeral"}}
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": "sunny", **cached},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "none"}], "is_error": True},
        {"type": "text", "text": "And now?"},
    ]
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    found = chat_of(
        system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief.", **cached}],
        messages=[
            *HELLO,
            {"role": "assistant", "content": [thought, {"type": "text", "text": "Yes"}, use]},
            {"role": "user", "content": results},
        ],
        tools=[WEATHER | cached],
    )
    call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    assert found.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello", "tool_calls": []},
        {"role": "assistant", "content": "Yes", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "t1", "content": "Error: none"},
        {"role": "user", "content": "And now?", "tool_calls": []},
    ]
    function = {"name": "weather", "description": "", "parameters": WEATHER["input_schema"]}
    assert found.tools == [{"type": "function", "function": function}]


CHOICES = {"auto": "auto", "any": "required", "none": "none"}


@pytest.mark.parametrize(("given", "expected"), CHOICES.items())
def test_tool_choice_becomes_that_of_a_chat(given, expected):
    assert chat_of(tools=[WEATHER], tool_choice={"type": given}).tool_choice == expected


def test_a_named_tool_and_no_parallel_calls_become_those_of_a_chat():
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    found = chat_of(tools=[WEATHER], tool_choice=choice)
    assert found.chosen_tool["function"] == {"name": "weather"} and found.parallel_tool_calls is False


def test_thinking_and_a_schema_become_those_of_a_chat():
    kinds = ("enabled", "adaptive", "disabled")
    assert [chat_of(thinking={"type": kind}).thinks for kind in kinds] == [True, True, False]
    output = {"format": {"type": "json_schema", "schema": {"type": "integer"}}, "effort": "low"}
    assert chat_of(output_config=output).constraint().given == {"json_schema": {"type": "integer"}}


def test_top_p_and_top_k_become_those_of_a_chat():
    fields = chat_of(top_p=0.9, top_k=5)
    assert (fields.top_p, fields.top_k) == (0.9, 5)


def test_fields_without_an_effect_are_accepted():
    ignored = {"metadata": {"user_id": "a"}, "service_tier": "auto", "cache_control": {}}
    assert chat_of(**ignored) == chat_of()


def test_transformations_of_an_image_give_a_warning_also_in_the_result_of_a_tool():
    image = IMAGE | {"transformations": {"oversized_image": "error"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    for block in (image, result):
        fields = MessagesFields.model_validate({"messages": [{"role": "user", "content": [block]}]})
        assert list(fields.ignored) == ["messages.content.transformations"]
    assert not MessagesFields.model_validate({"messages": [{"role": "user", "content": [IMAGE]}]}).ignored


REJECTED = [
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages.0.content", "files are not read"),
    ({"messages": [{"role": "user", "content": [{"type": "video_clip"}]}]}, "messages.0.content", "'video_clip'"),
    ({"system": [IMAGE]}, "system", "'image'"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type", "custom"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice", "name"),
]


@pytest.mark.parametrize(("change", "place", "message"), REJECTED, ids=[each[2] for each in REJECTED])
def test_unsupported_values_are_rejected_by_name(change, place, message):
    with pytest.raises(ValidationError) as caught:
        chat_of(**change)
    first = caught.value.errors()[0]
    assert ".".join(map(str, first["loc"])) == place and message in first["msg"]
