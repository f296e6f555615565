"""Answers that are not valid under their schema are written again, and never sent as a whole answer.

The automaton of a constraint does not enforce that strings of a pattern differ, so the checks of these schemas fail
always, or for some seeds.
"""

import json

import pytest

from gesso.engine.plan import retry_seed
from tests.serving import QUICK, server_fixture

LONGER = QUICK | {"canvas_length": 32}


def different(pattern):
    """Return the schema of two different strings that match a pattern."""
    items = {"type": "string", "pattern": pattern}
    return {"type": "array", "items": items, "minItems": 2, "maxItems": 2, "uniqueItems": True}


NEVER, OFTEN = different("^a$"), different("^[a-d]$")
MESSAGES = [{"role": "user", "content": "Hello"}]
COMMON = {"seed": 1, "max_tokens": 64, "diffusion": LONGER}
PARAMETERS = {"type": "object", "properties": {"n": NEVER}, "required": ["n"]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
RESPONSE = {"input": "Hello", "seed": 1, "text": {"format": {"type": "json_schema", "schema": NEVER}}}
RESPONSE |= {"max_output_tokens": 64, "diffusion": LONGER}
OLLAMA = {"messages": MESSAGES, "format": NEVER, "options": {"num_predict": 64, "seed": 1, "diffusion": LONGER}}
TOOL_USE = [{"name": "f", "input_schema": PARAMETERS}]
ANTHROPIC = {"messages": MESSAGES, "tools": TOOL_USE, "tool_choice": {"type": "any"}, **COMMON}
PROBLEM = "non-unique"
SEEDS = 8

server = server_fixture()


def chat(schema, **more):
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    return {"messages": MESSAGES, "response_format": form, **COMMON, **more}


def post(server, path, body):
    return server.http.post(path, json=body)


def ask(server, body):
    response = post(server, "/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    return response.json()


def test_an_invalid_answer_is_written_again_unseen(server):
    retried = 0
    for seed in range(SEEDS):
        answer = ask(server, chat(OFTEN, seed=seed))
        (choice,) = answer["choices"]
        first, second = json.loads(choice["message"]["content"])
        assert first != second
        if choice["seed"] == seed:
            continue
        retried += 1
        assert choice["seed"] in (retry_seed(seed, 1), retry_seed(seed, 2))
        again = ask(server, chat(OFTEN, seed=choice["seed"]))
        assert again["choices"][0]["message"] == choice["message"]
        assert answer["usage"]["diffusion"]["steps"] > again["usage"]["diffusion"]["steps"]
    assert 0 < retried < SEEDS


def test_each_choice_is_checked(server):
    choices = ask(server, chat(OFTEN, n=SEEDS, seed=0, logprobs=True))["choices"]
    for choice in choices:
        first, second = json.loads(choice["message"]["content"])
        assert first != second
        assert "".join(one["token"] for one in choice["logprobs"]["content"]).startswith(choice["message"]["content"])
    kept = {choice["seed"] for choice in choices} & set(range(SEEDS))
    assert 0 < len(kept) < SEEDS


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(NEVER)),
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", **COMMON}),
        ("/v1/responses", RESPONSE),
        ("/v1/messages", ANTHROPIC),
        ("/api/chat", OLLAMA | {"stream": False}),
    ],
    ids=["chat", "tools", "responses", "messages", "ollama"],
)
def test_an_answer_that_stays_invalid_is_an_error(server, path, body):
    response = post(server, path, body)
    assert response.status_code == 500
    assert "3 attempts" in response.text and PROBLEM in response.text


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        ("/v1/chat/completions", chat(NEVER), '"code":"invalid_answer"'),
        ("/v1/responses", RESPONSE, "response.failed"),
        ("/v1/messages", ANTHROPIC, "event: error"),
        ("/api/chat", OLLAMA, '"error"'),
    ],
    ids=["chat", "responses", "messages", "ollama"],
)
def test_a_stream_of_an_invalid_answer_ends_with_an_error(server, path, body, end):
    """A stream has sent its text, so it is not written again."""
    text = post(server, path, body | {"stream": True}).text
    last = [line for line in text.split("\n\n" if path.startswith("/v1") else "\n") if line][-1]
    assert end in last and "in a stream" in last and PROBLEM in last
    assert '"finish_reason":"stop"' not in text


def test_a_truncated_answer_is_not_checked(server):
    answer = ask(server, chat(NEVER, stop=","))
    assert answer["choices"][0]["finish_reason"] == "stop"
