"""The description of request bodies in /openapi.json, next to what the endpoints accept."""

import pytest

from tests.serving import server_fixture

server = server_fixture()

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
USER = {"role": "user", "content": "Weather?"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "Weather", "parameters": PARAMETERS}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
TOOL_USE = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
FUNCTION_CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'}
PARTS = [{"type": "input_text", "text": "Weather?"}]

ACCEPTED = [
    (CHAT, {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT]}),
    (CHAT, {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "none"}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "Weather?"}]}]}),
    (MESSAGES, {"messages": [USER, {"role": "assistant", "content": [TOOL_USE]},
                             {"role": "user", "content": [TOOL_RESULT]}]}),
    (MESSAGES, {"messages": [USER], "system": [{"type": "text", "text": "Be short."}]}),
    (RESPONSES, {"input": [{"role": "user", "content": PARTS}, FUNCTION_CALL, OUTPUT]}),
    (RESPONSES, {"input": "Weather?", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "none"}),
]  # fmt: skip
REJECTED = [
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "nobody", "content": "x"}]}),
    (CHAT, {"messages": [{"role": "user"}]}),
    (MESSAGES, {"messages": []}),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}),
    (RESPONSES, {}),
    (RESPONSES, {"input": []}),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": "c1"}]}),
    (CHAT, {"messages": [USER], "diffusion": {"pins": {"first": 1}}}),
]


def described(server, path, body):
    """Return whether a body is in accord with the description of an endpoint."""
    import jsonschema

    description = server.http.get("/openapi.json").json()
    schema = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return jsonschema.Draft202012Validator({**schema, "components": description["components"]}).is_valid(body)


@pytest.mark.parametrize(("path", "body"), ACCEPTED)
def test_conversations_that_are_described_are_accepted(server, path, body):
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    body = {**body, limit: 1, "diffusion": {"steps": 1}}
    assert described(server, path, body)
    answer = server.http.post(path, json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("path", "body"), REJECTED)
def test_conversations_that_are_rejected_are_not_described(server, path, body):
    assert not described(server, path, body)
    assert server.http.post(path, json=body).status_code == 400
