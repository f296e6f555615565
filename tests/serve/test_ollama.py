"""Ollama's API: a live server, and the same texts as those of the other APIs."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from gesso.chat.messages import check_messages
from gesso.errors import InputError
from gesso.serve import ollama
from gesso.serve.errors import ApiError
from gesso.serve.form import AnswerForm, OllamaForm
from gesso.serve.ollama import OllamaChatFields, OllamaGenerateFields
from tests.serve.preparing import entry, prepare
from tests.serving import QUICK, server_fixture

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}

server = server_fixture()


def options(**changes):
    return {"seed": 1, "num_predict": 12, "diffusion": QUICK} | changes


def ask(server, path, **fields):
    response = server.http.post(path, json={"options": options(), "stream": False} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def lines(server, path, **fields):
    response = server.http.post(path, json={"options": options()} | fields)
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


# --- answers ----------------------------------------------------------------------------------------------------------


def test_same_prompt_and_seed_give_the_same_text_in_every_dialect(server):
    def openai(path, **fields):
        return server.http.post(path, json={"seed": 1, "diffusion": QUICK} | fields).json()

    texts = {
        openai("/v1/chat/completions", messages=HELLO, max_tokens=12)["choices"][0]["message"]["content"],
        openai("/v1/responses", input="Hello", max_output_tokens=12)["output"][0]["content"][0]["text"],
        openai("/v1/messages", messages=HELLO, max_tokens=12)["content"][0]["text"],
        ask(server, "/api/chat", messages=HELLO)["message"]["content"],
        ask(server, "/api/generate", prompt="Hello")["response"],
    }
    assert len(texts) == 1 and texts != {""}
    plain = openai("/v1/completions", prompt="Once", max_tokens=12)["choices"][0]["text"]
    assert ask(server, "/api/generate", prompt="Once", raw=True)["response"] == plain
    hole = {"prompt": "abc ", "suffix": " xyz"}
    filled = openai("/v1/completions", **hole, max_tokens=4)["choices"][0]["text"]
    assert ask(server, "/api/generate", **hole, options=options(num_predict=4))["response"] == filled


@pytest.mark.parametrize(("path", "field"), [("/api/chat", "message"), ("/api/generate", "response")])
def test_answers_are_streamed_as_lines_unless_stream_is_false(server, path, field):
    asked = {"messages": HELLO} if field == "message" else {"prompt": "Hello"}
    *parts, last = lines(server, path, **asked)
    plain = ask(server, path, **asked)
    found = [part[field]["content"] if field == "message" else part[field] for part in (*parts, last)]
    assert "".join(found) == (plain[field]["content"] if field == "message" else plain[field]) != ""
    assert [part["done"] for part in parts] == [False] * len(parts)
    for each in (last, plain):
        assert each["done"] and each["done_reason"] == "length" and each["seed"] == 1
        assert each["eval_count"] == 12 and each["prompt_eval_count"] > 0
        assert each["total_duration"] == each["eval_duration"] > 1e6


def pinned(server, text):
    """Return the length and the settings of an answer with this text: the tiny model calls no tools by itself."""
    tokens = server.http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return len(tokens) + 8, QUICK | {"pins": {str(at): token for at, token in enumerate(tokens)}}


def test_thinking_and_calls_are_parts_of_the_message(server):
    text = '<|channel>thought hm<channel|>Yes<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|><turn|>'
    length, diffusion = pinned(server, text)
    forced = options(num_predict=length, diffusion=diffusion)
    asked = {"messages": HELLO, "tools": [WEATHER], "think": True, "options": forced}
    message = ask(server, "/api/chat", **asked)["message"]
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    assert message == {"role": "assistant", "content": "Yes", "thinking": "hm", "tool_calls": [call]}
    streamed = [part["message"] for part in lines(server, "/api/chat", **asked)]
    assert "".join(part.get("thinking", "") for part in streamed) == "hm"
    assert [call for part in streamed for call in part.get("tool_calls", ())] == [call]


def test_malformed_call_is_reported_in_every_dialect_streamed_or_not(server):
    length, diffusion = pinned(server, "Yes<|tool_call>call:weather{city:<tool_call|><turn|>")
    forced = {"options": options(num_predict=length, diffusion=diffusion)}
    chat = {"messages": HELLO, "max_tokens": length, "diffusion": diffusion, "seed": 1}
    response = {"input": "Hello", "max_output_tokens": length, "diffusion": diffusion, "seed": 1}

    def plain(path, fields):
        return server.http.post(path, json=fields).json()

    def last(path, fields, event=-1):
        return list(server.events(path, fields))[event]

    reports = [
        plain("/v1/chat/completions", chat)["choices"][0]["message"],
        last("/v1/chat/completions", chat)["choices"][0]["delta"],
        plain("/v1/responses", response),
        last("/v1/responses", response)["response"],
        plain("/v1/messages", chat),
        last("/v1/messages", chat, event=-2)["delta"],
        ask(server, "/api/chat", messages=HELLO, tools=[WEATHER], **forced),
        lines(server, "/api/chat", messages=HELLO, tools=[WEATHER], **forced)[-1],
        ask(server, "/api/generate", prompt="Hello", **forced),
        lines(server, "/api/generate", prompt="Hello", **forced)[-1],
    ]
    assert [report["malformed_tool_calls"] for report in reports] == [["call:weather{city:"]] * len(reports)
    assert "malformed_tool_calls" not in ask(server, "/api/chat", messages=HELLO)
    assert "malformed_tool_calls" not in plain(
        "/v1/messages", {"messages": HELLO, "max_tokens": 4, "seed": 1, "diffusion": QUICK}
    )


def test_format_is_a_constraint(server):
    schema = {"enum": ["yes", "no"]}
    assert json.loads(ask(server, "/api/chat", messages=HELLO, format=schema)["message"]["content"]) in ("yes", "no")
    assert json.loads(ask(server, "/api/generate", prompt="Hello", format=schema)["response"]) in ("yes", "no")


def test_a_request_without_a_prompt_loads_the_model(server):
    for path in ("/api/chat", "/api/generate"):
        assert ask(server, path, model="tiny")["done_reason"] == "load"
        assert lines(server, path)[-1]["done_reason"] == "load"


@pytest.mark.parametrize("keep_alive", [0, 0.0, "0", "0s", "0m"])
def test_keep_alive_0_without_a_prompt_unloads(keep_alive):
    assert OllamaChatFields(keep_alive=keep_alive).reason_without_prompt == "unload"
    assert OllamaChatFields(keep_alive="10m").reason_without_prompt == "load"


def test_an_unloaded_model_still_answers(server):
    for path in ("/api/chat", "/api/generate"):
        assert ask(server, path, keep_alive=0)["done_reason"] == "unload"
        assert lines(server, path, keep_alive=0)[-1]["done_reason"] == "unload"
    assert ask(server, "/api/generate", prompt="Hello", keep_alive=0)["done_reason"] == "length"


def test_running_and_pulled_models_are_those_that_are_served(server):
    (entry,) = server.http.get("/api/ps").json()["models"]
    assert (entry["model"], entry["context_length"]) == ("tiny:latest", 8192)
    for name in ("tiny", "tiny:latest"):
        assert server.http.post("/api/pull", json={"model": name}).json() == {"status": "success"}


def test_curl_without_a_content_type_is_answered_and_a_browser_is_not(server):
    body = json.dumps({"prompt": "Hello", "stream": False, "options": options(num_predict=2)})
    for kind in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        assert server.http.post("/api/generate", content=body, headers=kind).status_code == 200
        rejected = server.http.post("/api/generate", content=body, headers=kind | {"origin": "https://evil.example"})
        assert rejected.status_code == 400 and "Content-Type" in rejected.json()["error"]


def test_models_are_found_with_and_without_latest(server):
    (entry,) = server.http.get("/api/tags").json()["models"]
    assert entry["name"] == entry["model"] == "tiny:latest"
    for name in ("tiny", "tiny:latest"):
        assert ask(server, "/api/chat", model=name)["model"] == "tiny"
        shown = server.http.post("/api/show", json={"model": name}).json()
        assert shown["model_info"]["diffusion_gemma.context_length"] == 8192 and "tools" in shown["capabilities"]
    assert server.http.get("/api/version").json() == {"version": ollama.VERSION}
    assert server.http.head("/").status_code == 200  # how Ollama's command line looks for a server


# --- errors -----------------------------------------------------------------------------------------------------------


ERRORS = [
    ("/api/chat", {"model": "llama"}, 404, "there is no model 'llama'"),
    ("/api/show", {"model": "llama"}, 404, "there is no model 'llama'"),
    (
        "/api/pull",
        {"model": "llama"},
        404,
        "there is no model 'llama'; available: tiny; this server downloads no models",
    ),
    ("/api/nothing", {"model": "a"}, 404, "no endpoint 'POST /api/nothing'; there are: GET /api/ps; GET /"),
    ("/api/tags", {}, 405, "this endpoint has no method 'POST'; use GET"),
    ("/api/generate", {"prompt": "a", "template": "{{ .Prompt }}"}, 400, "template: prompts have the checkpoint's own"),
    ("/api/chat", {"messages": HELLO, "nonsense": 1}, 400, "nonsense is not a supported field"),
    (
        "/api/chat",
        {"messages": [{"role": "user", "images": ["aGk="]}]},
        400,
        "messages[0].images[0]: the model 'tiny' sees no images",
    ),
    ("/api/chat", {"messages": HELLO, "options": {"temperature": 9}}, 400, "options.temperature"),
    ("/api/chat", {"messages": HELLO, "options": {"diffusion": {"drafts": True}}}, 400, "drafts"),
    ("/api/generate", {"prompt": "a", "images": ["aGk="]}, 400, "images[0]: the model 'tiny' sees no images"),
    (
        "/api/generate",
        {"prompt": "a", "images": ["aGk="], "raw": True},
        400,
        "images is not supported together with raw",
    ),
    ("/api/generate", {"prompt": "a", "raw": True, "system": "b"}, 400, "system is not supported together with raw"),
    ("/api/generate", {"prompt": "a", "suffix": "b", "format": "json"}, 400, "together with suffix"),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), ERRORS)
def test_errors_have_ollamas_form(server, path, body, status, message):
    response = server.http.post(path, json=body)
    assert response.status_code == status
    assert list(response.json()) == ["error"] and message in response.json()["error"]


def test_a_client_that_leaves_a_stream_frees_its_place(server):
    endless = {"stopping": "fixed", "steps": 1000, "pins": {"3999": 140}}  # no text ends before its last pin
    body = {"prompt": "Hello", "options": {"num_predict": 4000, "diffusion": endless}}
    with server.http.stream("POST", "/api/generate", json=body):
        server.wait_metric("gesso_requests_running", 1)
    server.wait_metric("gesso_requests_running", 0)


def test_an_error_in_a_stream_is_its_last_line():
    async def deltas(answer):
        raise ApiError(504, "too late")
        yield

    async def read():
        details = OllamaForm(message=True, template=True)
        form = AnswerForm(served="tiny", model="tiny", adapter=None, details=details)
        generation = SimpleNamespace(deltas=deltas, form=form)
        return [line async for line in ollama.stream(SimpleNamespace(tokenizer=None), generation)]

    assert asyncio.run(read()) == [b'{"error":"too late"}\n']


# --- fields -----------------------------------------------------------------------------------------------------------


def chat_of(**fields):
    return OllamaChatFields.model_validate({"messages": HELLO} | fields).translated()


def test_options_without_an_effect_give_a_warning_and_those_of_the_machine_do_not():
    machine = {"num_ctx": 4096, "num_thread": 8, "num_gpu": 1, "use_mmap": True, "num_keep": 5, "repeat_last_n": 33}
    off = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "mirostat": 0, "typical_p": 1.0}
    fields = OllamaChatFields.model_validate({"messages": HELLO, "options": {**machine, **off}})
    assert fields.ignored == {}
    changed = {"repeat_penalty": 1.1, "presence_penalty": 1.5, "mirostat": 1, "typical_p": 0.7, "new_option": 3}
    fields = OllamaChatFields.model_validate({"messages": HELLO, "options": changed})
    assert fields.ignored.keys() == {f"options.{name}" for name in changed}
    assert "drawn together" in fields.ignored["options.repeat_penalty"]


def test_options_become_fields_of_a_chat():
    found = chat_of(options={"num_predict": 5, "seed": 3, "temperature": 0.5, "stop": "x", "top_p": 0.9, "num_ctx": 9})
    assert (found.max_tokens, found.seed, found.temperature, found.stop, found.stream) == (5, 3, 0.5, ["x"], True)
    assert (found.top_p, found.top_k) == (0.9, None)
    assert chat_of(options={"seed": -1}) == chat_of(keep_alive="5m", format="", think=False)


@pytest.mark.parametrize("most", [-1, -2, 0, 10**6])
@pytest.mark.parametrize("fields", [{"messages": HELLO}, {"prompt": "Hello"}, {"prompt": "Hello", "raw": True}])
def test_an_answer_without_a_limit_may_fill_the_context(tiny, fields, most):
    endpoint = "ollama_chat" if "messages" in fields else "ollama_generate"
    body = {**fields, "options": {"num_predict": most}}
    (prompt,) = prepare([entry(tiny.directory)], endpoint, body).prompts
    assert prompt.prompt_tokens + prompt.max_new_tokens == 256


def test_the_length_for_a_hole_is_chosen_unless_it_is_limited():
    fields = {"prompt": "a", "suffix": "b"}
    for most, limit in ((-1, None), (7, 7)):
        body = fields | {"options": {"num_predict": most}}
        assert OllamaGenerateFields.model_validate(body).translated().max_tokens == limit


def test_think_and_format_become_those_of_a_chat():
    assert [chat_of(think=value).thinks for value in (True, "high", False, None)] == [True, True, False, False]
    assert chat_of(format="json").constraint().given == {"json_schema": {"type": "object"}}
    assert chat_of(format={"type": "integer"}).constraint().given == {"json_schema": {"type": "integer"}}


def test_a_tool_result_has_the_name_of_its_tool():
    for name in ("tool_name", "name"):
        (message,) = chat_of(messages=[{"role": "tool", "content": "sunny", name: "weather"}]).messages
        assert (message["role"], message["name"], message["content"]) == ("tool", "weather", "sunny")


def called(*names, ids=()):
    calls = [{"function": {"name": name, "arguments": {}}} for name in names]
    calls = [call | {"id": id} for call, id in zip(calls, ids, strict=True)] if ids else calls
    return {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.mark.parametrize(
    ("call", "results", "names"),
    [
        (called("weather"), [{}], ["weather"]),  # langchain-ollama: the client drops the id
        (called("weather", "time", "weather"), [{}, {}, {}], ["weather", "time", "weather"]),
        (called("weather", ids=["a"]), [{"tool_call_id": "a", "id": "x"}], ["weather"]),  # LangChain.js
        (called("weather", "time", ids=["a", "b"]), [{"tool_call_id": "b"}, {}], ["time", "weather"]),
        (called("weather", "time"), [{"tool_call_id": "time"}, {"tool_call_id": "weather"}], ["time", "weather"]),
        (called("weather", "time"), [{"tool_call_id": "made up"}, {"tool_name": "time"}], ["weather", "time"]),
        (called("weather", "time"), [{"tool_name": "time"}, {}], ["time", "weather"]),  # LlamaIndex
    ],
)
def test_a_tool_result_without_a_name_belongs_to_its_call(call, results, names):
    messages = [*HELLO, call, *({"role": "tool", "content": "4", **result} for result in results)]
    read = check_messages(chat_of(messages=messages).messages)
    assert [message["name"] for message in read[2:]] == names


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "tool", "content": "4"}],
        [called("weather", ids=["a"]), {"role": "tool", "content": "4", "tool_call_id": "b"}],
        [called("weather"), {"role": "tool", "content": "4"}, {"role": "tool", "content": "5"}],
    ],
)
def test_a_tool_result_without_a_call_is_rejected(messages):
    with pytest.raises(InputError, match=rf"messages\[{len(messages) - 1}\].tool_name: no earlier call is left"):
        chat_of(messages=messages)


def test_a_prompt_is_a_chat_and_a_raw_prompt_a_completion():
    fields = {"prompt": "Hello", "context": [1, 2]}
    chat = OllamaGenerateFields.model_validate(fields | {"system": "Be brief."}).translated()
    assert chat.messages == [{"role": "system", "content": "Be brief."}, *HELLO]
    assert OllamaGenerateFields.model_validate(fields | {"raw": True}).translated().prompt == "Hello"
