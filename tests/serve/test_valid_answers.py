"""Answers that are not valid under their schema are written again, and never sent as a whole answer."""

import json

import httpx
import pytest

from gesso.engine.plan import retry_seed
from gesso.serve.prepare.pool import PreparePool
from gesso.serve.settings import EngineSettings, ServerSettings
from tests.serving import QUICK, within
from tests.waiting import PATIENCE

LONGER = QUICK | {"canvas_length": 32}
SCHEMA = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"enum": [1, 2]}}}}}]
MESSAGES = [{"role": "user", "content": "Hello"}]
COMMON = {"max_tokens": 64, "diffusion": LONGER}
FORMAT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
CHAT = {"messages": MESSAGES, "seed": 1, "response_format": FORMAT, **COMMON}
RESPONSE = {"input": "Hello", "seed": 1, "text": {"format": {"type": "json_schema", "schema": SCHEMA}}}
RESPONSE |= {"max_output_tokens": 64, "diffusion": LONGER}
OLLAMA = {"messages": MESSAGES, "format": SCHEMA, "options": {"num_predict": 64, "seed": 1, "diffusion": LONGER}}
TOOL_USE = [{"name": "f", "input_schema": TOOLS[0]["function"]["parameters"]}]
ANTHROPIC = {"messages": MESSAGES, "tools": TOOL_USE, "tool_choice": {"type": "any"}, "seed": 1, **COMMON}


@pytest.fixture(scope="module")
def url(served_model):
    settings = ServerSettings(engine=EngineSettings(model=str(served_model), device="cpu"), name="tiny")
    with within(settings) as server:
        yield server.url


@pytest.fixture
def checks(monkeypatch):
    """Count the checks. The first `checks.wrong` of them find a problem; the others are those of the server."""

    class Checks:
        wrong = count = 0

    found, check = Checks(), PreparePool.check

    async def checked(pool, request, ended, client):
        found.count += 1
        return "$[1]: odd" if found.count <= found.wrong else await check(pool, request, ended, client)

    monkeypatch.setattr(PreparePool, "check", checked)
    return found


def post(url, path, body):
    return httpx.post(url + path, json=body, timeout=PATIENCE)


def test_an_invalid_answer_is_written_again_unseen(url, checks):
    checks.wrong = 2
    answer = post(url, "/v1/chat/completions", CHAT).json()
    (choice,) = answer["choices"]
    assert checks.count == 3
    assert choice["seed"] == retry_seed(1, 2)
    steps = answer["usage"]["diffusion"]["steps"]
    again = post(url, "/v1/chat/completions", CHAT | {"seed": choice["seed"]}).json()
    assert again["choices"][0]["message"] == choice["message"]
    assert steps > again["usage"]["diffusion"]["steps"]


def test_each_choice_is_checked(url, checks):
    checks.wrong = 1
    choices = post(url, "/v1/chat/completions", CHAT | {"n": 2, "logprobs": True}).json()["choices"]
    assert checks.count == 3
    for choice in choices:
        assert len(json.loads(choice["message"]["content"])) == 2
        assert "".join(one["token"] for one in choice["logprobs"]["content"]).startswith(choice["message"]["content"])
    assert len({choice["seed"] for choice in choices} & {1, 2}) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", **COMMON}),
        ("/v1/responses", RESPONSE),
        ("/v1/messages", ANTHROPIC),
        ("/api/chat", OLLAMA | {"stream": False}),
    ],
    ids=["chat", "tools", "responses", "messages", "ollama"],
)
def test_an_answer_that_stays_invalid_is_an_error(url, checks, path, body):
    checks.wrong = 99
    response = post(url, path, body)
    assert response.status_code == 500
    assert "3 attempts: $[1]: odd" in response.text
    assert checks.count == 3


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        ("/v1/chat/completions", CHAT, '"code":"invalid_answer"'),
        ("/v1/responses", RESPONSE, "response.failed"),
        ("/v1/messages", ANTHROPIC, "event: error"),
        ("/api/chat", OLLAMA, '"error"'),
    ],
    ids=["chat", "responses", "messages", "ollama"],
)
def test_a_stream_of_an_invalid_answer_ends_with_an_error(url, checks, path, body, end):
    checks.wrong = 99
    text = post(url, path, body | {"stream": True}).text
    last = [line for line in text.split("\n\n" if path.startswith("/v1") else "\n") if line][-1]
    assert end in last and "$[1]: odd" in last
    assert '"finish_reason":"stop"' not in text
    assert checks.count == 1


def test_a_truncated_answer_is_not_checked(url, checks):
    checks.wrong = 99
    answer = post(url, "/v1/chat/completions", CHAT | {"stop": ","}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert checks.count == 0
