"""/v1/responses with the official client and plain HTTP: tools, stored conversations, and events."""

import asyncio
import json

import pytest

from gesso.serve.errors import ApiError
from gesso.serve.openai import responses
from tests.schemas import assert_valid
from tests.serve import preparing
from tests.serving import QUICK

LONGER = QUICK | {"canvas_length": 32}
EXTRA = {"diffusion": LONGER, "seed": 1}
PATH = "/v1/responses"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SAVE = {"type": "function", "name": "save", "description": "Save a person.", "parameters": PERSON, "strict": True}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "parameters": CITY}
THOUGHT, TEXT = "<|channel>thought hm<channel|>", "Well"
CALL = '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>'
ONE, TWO = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))


@pytest.fixture(scope="module")
def server(server_with_keys):
    return server_with_keys


@pytest.fixture(scope="module")
def client(server):
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="one", max_retries=0) as client:
        yield client


def create(client, input="Hello", **options):
    asked = {"model": "tiny", "input": input, "max_output_tokens": 16, "extra_body": EXTRA} | options
    return client.responses.create(**asked)


def written(server, text):
    """Return the options of a request whose answer is this text. The tiny model does not write it by itself."""
    tokens = server.http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    pins = {str(at): token for at, token in enumerate(tokens)}
    return {"max_output_tokens": len(tokens) + 8, "extra_body": EXTRA | {"diffusion": LONGER | {"pins": pins}}}


def without_ids(items):
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


# --- stored conversations ---------------------------------------------------------------------------------------------


def test_a_previous_response_or_its_items_continue_the_conversation(client):
    first = create(client)
    again = {"role": "user", "content": "Again"}
    whole = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": first.output_text}, again]
    referred = [whole[0], {"type": "item_reference", "id": first.output[0].id}, again]
    expected = create(client, whole)
    for found in (create(client, [again], previous_response_id=first.id), create(client, referred)):
        assert found.output_text == expected.output_text
        assert found.usage.input_tokens == expected.usage.input_tokens > first.usage.input_tokens
    assert create(client, "More", previous_response_id=found.id).usage.input_tokens > found.usage.input_tokens


def test_instructions_are_not_carried_over(client):
    first = create(client, instructions="Be brief. " * 14)
    second = create(client, previous_response_id=first.id)
    assert first.instructions == "Be brief. " * 14 and second.instructions is None
    assert second.usage.input_tokens < first.usage.input_tokens


def test_a_stored_response_can_be_read_listed_and_deleted(client, server):
    first = create(client, metadata={"topic": "greeting"})
    second = create(client, "Again", previous_response_id=first.id)
    assert client.responses.retrieve(first.id).model_dump() == first.model_dump()
    for limit in (1, 20):  # the client reads all pages
        items = list(client.responses.input_items.list(second.id, order="asc", limit=limit))
        assert [item.content[0].text for item in items] == ["Hello", first.output_text, "Again"]
    assert [item.id for item in client.responses.input_items.list(second.id)] == [item.id for item in reversed(items)]
    client.responses.delete(first.id)
    assert server.http.get(f"{PATH}/{first.id}").status_code == 404
    assert create(client, "More", previous_response_id=second.id).output, "it does not need the deleted one"


def test_responses_belong_to_the_key_that_made_them(client, server):
    made = create(client)
    again = [{"role": "user", "content": "Hello"}]
    other = {"headers": TWO}
    answers = [
        server.http.get(f"{PATH}/{made.id}", **other),
        server.http.get(f"{PATH}/{made.id}/input_items", **other),
        server.http.delete(f"{PATH}/{made.id}", **other),
        server.http.post(PATH, json={"input": again, "previous_response_id": made.id}, **other),
        server.http.post(PATH, json={"input": [*again, {"id": made.output[0].id}]}, **other),
    ]
    assert [answer.status_code for answer in answers] == [404] * 5
    assert answers[3].json()["error"]["code"] == "previous_response_not_found"
    assert answers[3].json()["error"]["param"] == "previous_response_id"
    assert client.responses.retrieve(made.id).id == made.id


@pytest.mark.parametrize("stream", [False, True])
def test_store_false_keeps_nothing(client, server, stream):
    made = create(client, store=False, stream=stream)
    response = list(made)[-1].response if stream else made
    assert response.store is False
    assert server.http.get(f"{PATH}/{response.id}").status_code == 404


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "save"}])
def test_a_required_call_is_valid_streamed_or_not(client, choice):
    asked = {"tools": [SAVE], "tool_choice": choice, "parallel_tool_calls": False, "max_output_tokens": 96}
    plain = create(client, **asked)
    (call,) = plain.output
    assert (call.type, call.name, call.status, plain.status) == ("function_call", "save", "completed", "completed")
    assert_valid(json.loads(call.arguments), PERSON)
    events = list(create(client, stream=True, **asked))
    (streamed,) = events[-1].response.output
    assert streamed.arguments == call.arguments
    assert "".join(event.delta for event in events if event.type.endswith("arguments.delta")) == call.arguments


def test_the_output_of_a_call_continues_the_conversation(client, server):
    """The prompt equals that of chat completions, with the previous response or with all items."""
    asked = {"tools": [WEATHER], **written(server, f"{TEXT}{CALL}<turn|>")}
    first = create(client, **asked)
    message, call = first.output
    assert (message.content[0].text, json.loads(call.arguments)) == (TEXT, {"city": "Rome"})
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    parts = output | {"output": [{"type": "input_text", "text": "sun"}, {"type": "input_text", "text": "ny"}]}
    items = [{"role": "user", "content": "Hello"}, *(item.model_dump(exclude_none=True) for item in first.output)]
    found = [
        create(client, [output], previous_response_id=first.id, tools=[WEATHER]),
        create(client, [*items, parts], tools=[WEATHER]),
    ]
    called = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": call.arguments}}
    chat = client.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": TEXT, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c", "content": "sunny"},
        ],
        tools=[{"type": "function", "function": {"name": "weather", "parameters": CITY}}],
        max_tokens=16,
        extra_body=EXTRA,
    )
    for response in found:
        assert response.usage.input_tokens == chat.usage.prompt_tokens
        assert response.output_text == (chat.choices[0].message.content or "")


def test_without_parallel_calls_only_the_first_call_is_returned(client, server):
    asked = {"tools": [WEATHER], **written(server, f"{CALL}{CALL}<turn|>")}
    assert [item.type for item in create(client, **asked).output] == ["function_call"] * 2
    assert [item.type for item in create(client, parallel_tool_calls=False, **asked).output] == ["function_call"]
    events = list(create(client, parallel_tool_calls=False, stream=True, **asked))
    assert len(events[-1].response.output) == 1


def test_other_tools_are_ignored_with_a_warning_in_the_response_its_header_and_every_event(server):
    body = {"input": "Hello", "max_output_tokens": 4, **EXTRA, "tools": [{"type": "web_search"}, WEATHER], "top_p": 0.5}
    answer = server.http.post(PATH, json=body)
    warning = "tools.web_search was ignored: only functions are supported"
    assert answer.json()["tools"] == [{"description": None, "strict": True, **WEATHER}]
    assert answer.json()["warnings"] == [warning] == [answer.headers["x-gesso-warnings"]]
    streamed = server.http.post(PATH, json=body | {"stream": True})
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert streamed.headers["x-gesso-warnings"] == warning
    assert all(event["response"]["warnings"] == [warning] for event in events if "response" in event)


def test_a_request_of_a_coding_agent_is_accepted(server):
    """All fields that such clients send, most of which change nothing here."""
    body = {
        "model": "tiny",
        "instructions": "You are an agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandboxed."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List files"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "name": "weather", "arguments": "{}", "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
        ],
        "tools": [WEATHER, {"type": "local_shell"}, {"type": "custom", "name": "patch"}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "stream": True,
        "prompt_cache_key": "key",
        "service_tier": "priority",
        "safety_identifier": "user",
        "truncation": "auto",
        "text": {"verbosity": "high"},
        "client_metadata": {"installation": "x"},
        "stream_options": {"include_obfuscation": False},
        "max_output_tokens": 4,
        "diffusion": LONGER,
    }
    assert list(server.events(PATH, body))[-1]["response"]["output"]


# --- output and events ------------------------------------------------------------------------------------------------


def test_a_stream_has_the_events_of_each_item_in_order(client, server):
    asked = {"tools": [WEATHER], "reasoning": {"effort": "high"}}
    asked |= written(server, f"{THOUGHT}{TEXT}{CALL}<turn|>")
    events = list(create(client, stream=True, **asked))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds[2:])) == [  # without repetition, because a text may have several deltas
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "completed",
    ]
    assert kinds[:2] == ["created", "in_progress"] and kinds.count("output_item.done") == 3
    assert [event.sequence_number for event in events] == list(range(len(events)))
    indices = [event.output_index for event in events[2:-1]]
    assert indices == sorted(indices) and set(indices) == {0, 1, 2}
    done = [event.item for event in events if event.type == "response.output_item.done"]
    final = events[-1].response
    assert done == final.output
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {item.id for item in done}
    thought, message, call = done
    assert (thought.summary[0].text, message.content[0].text, call.name) == ("hm", TEXT, "weather")
    assert 2 < final.usage.output_tokens_details.reasoning_tokens < final.usage.output_tokens
    plain = create(client, **asked)
    assert without_ids(plain.model_dump()["output"]) == without_ids(final.model_dump()["output"])
    assert client.responses.retrieve(final.id).model_dump() == final.model_dump()


def test_a_response_cut_by_its_length_is_incomplete(client):
    plain = create(client, max_output_tokens=3)
    last = list(create(client, max_output_tokens=3, stream=True))[-1]
    for response in (plain, last.response):
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert response.output[-1].status == "incomplete"
    assert last.type == "response.incomplete"


def test_a_response_repeats_the_fields_of_its_request(client):
    response = create(
        client,
        instructions="Be brief.",
        metadata={"a": "b"},
        tools=[SAVE],
        tool_choice="none",
        reasoning={"effort": "low", "summary": "detailed"},
        temperature=0.5,
        user="alice",
    )
    assert (response.instructions, response.metadata, response.tool_choice) == ("Be brief.", {"a": "b"}, "none")
    assert response.tools[0].model_dump(exclude_none=True) == SAVE
    assert (response.reasoning.effort, response.reasoning.summary) == ("low", "detailed")
    assert (response.temperature, response.top_p, response.user) == (0.5, 1, "alice")
    assert (response.parallel_tool_calls, response.truncation, response.store) == (True, "disabled", True)


def test_the_client_parses_structured_output(client):
    from pydantic import BaseModel

    class Person(BaseModel):
        age: int

    with client.responses.stream(
        model="tiny", input="Ada", text_format=Person, max_output_tokens=48, extra_body=EXTRA
    ) as stream:
        assert isinstance(stream.get_final_response().output_parsed.age, int)


def test_a_failure_ends_the_stream_with_a_failed_response(tiny):
    class Generation:
        form = prepare({"input": "Hello"}, tiny).form

        async def deltas(self, answer):
            raise ApiError(500, "the engine died")
            yield

    class Model:
        tokenizer = tiny.tokenizer

    async def collect():
        return [event async for event in responses.stream(Model(), Generation())]

    events = asyncio.run(collect())
    assert [event.split(b"\n")[0] for event in events] == [
        b"event: response.created",
        b"event: response.in_progress",
        b"event: response.failed",
    ]
    last = json.loads(events[-1].split(b"data: ")[1])["response"]
    assert (last["status"], last["error"]) == ("failed", {"code": "server_error", "message": "the engine died"})


# --- rejected requests ------------------------------------------------------------------------------------------------


def prepare(body, tiny, **settings):
    """Return a prepared request, or the error of a rejected one."""
    return preparing.prepare([preparing.entry(tiny.directory, **settings)], "responses", body)


USER = {"role": "user", "content": "x"}
REJECTED = [
    ({"input": []}, "input"),
    ({"input": [{"role": "nobody", "content": "x"}]}, "input[0].role"),
    ({"input": [USER, {"role": "user", "content": [{"type": "input_image"}]}]}, "input[1].content[0].image_url"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
        "input[0].content[0].image_url",
    ),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
    ({"input": [USER, {"type": "computer_call"}]}, "input[1].type"),
    ({"input": [USER, {"type": "function_call", "name": "f", "call_id": "c", "arguments": "["}]}, "input[1].arguments"),
    ({"input": [USER, {"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
    ({"input": [USER, {"type": "item_reference", "id": "msg_1"}]}, "input"),
    ({"input": "x", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"input": "x", "tools": [{"type": "web_search"}], "tool_choice": "required"}, None),
    ({"input": "x", "tools": [SAVE], "tool_choice": {"type": "function", "name": "load"}}, None),
    ({"input": "x", "metadata": {"a": 1}}, "metadata"),
    ({"input": "x", "background": True}, "background"),
    ({"input": "x", "conversation": "conv_1"}, "conversation"),
    ({"input": "x", "diffusion": {"drafts": True}}, "diffusion.drafts"),
]


@pytest.mark.parametrize(("body", "param"), REJECTED, ids=[json.dumps(body)[-40:] for body, _ in REJECTED])
def test_unsupported_requests_are_rejected_with_the_field(tiny, body, param):
    error = prepare(body, tiny)
    assert error.status in (400, 404)
    assert (error.param or "").startswith(param or "") and bool(error.param) == bool(param), error


def echoed(tiny, **fields):
    return json.loads(prepare({"input": "Hello"} | fields, tiny).form.details.echo)


def test_every_response_has_the_required_fields_of_open_responses(tiny):
    echo = echoed(tiny, tools=[WEATHER], top_logprobs=0)
    assert (echo["presence_penalty"], echo["frequency_penalty"], echo["top_logprobs"]) == (0, 0, 0)
    assert echo["tools"] == [WEATHER | {"description": None, "strict": True}]
    form = prepare({"input": "Hello"}, tiny).form
    begun, completed = (json.loads(responses.Response(form).body(each)) for each in ("in_progress", "completed"))
    assert begun["completed_at"] is None and completed["completed_at"] >= completed["created_at"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ],
)
def test_a_field_without_an_effect_is_named_in_the_warnings_and_rejected_by_a_strict_server(tiny, fields, name):
    (warning,) = prepare({"input": "Hello"} | fields, tiny).form.warnings
    assert warning.startswith(f"{name} was ignored: ")
    echo = echoed(tiny, **fields)
    assert (echo["truncation"], echo["top_logprobs"]) == ("disabled", 0)
    error = prepare({"input": "Hello"} | fields, tiny, strict=True)
    assert (error.status, error.param) == (400, name)


def test_a_response_has_the_warnings_of_every_stage_in_ascii(tiny):
    asked = {"input": "Hello", "max_output_tokens": 9999, "tools": [{"type": "söök\n"}]}
    form = prepare(asked, tiny).form
    tool, lowered = json.loads(responses.Response(form).body("completed"))["warnings"]
    assert tool == "tools.s\\xf6\\xf6k\\n was ignored: only functions are supported"
    assert lowered.startswith("max_output_tokens was lowered to ")


def test_a_server_without_a_store_says_that_it_stores_nothing(tiny):
    details = prepare({"input": "Hello"}, tiny, stored_responses=1).form.details
    assert json.loads(details.echo)["store"] is True and details.items
    details = prepare({"input": "Hello"}, tiny, stored_responses=0).form.details
    assert json.loads(details.echo)["store"] is False and not details.items


def test_a_conversation_that_exceeds_the_store_is_not_stored(tiny):
    for size, stored in ((1000, True), (100, False)):
        details = prepare({"input": "Hello"}, tiny, stored_bytes=size).form.details
        assert json.loads(details.echo)["store"] is bool(details.items) is stored
