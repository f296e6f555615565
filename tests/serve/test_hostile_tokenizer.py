"""A tokenizer whose regular expression makes its library panic: the request fails, and both processes survive."""

import pytest

RUN = "a" * 40


@pytest.fixture
def server(seeing_server):
    return seeing_server


COMMON = {"max_tokens": 4, "seed": 1, "diffusion": {"steps": 2}}
REQUESTS = {
    "completion": ("/v1/completions", {"prompt": RUN, **COMMON}),
    "infill": ("/v1/completions", {"prompt": RUN, "suffix": " b", **COMMON}),
    "infill before": ("/v1/completions", {"prompt": "b ", "suffix": RUN, **COMMON}),
    "edit": ("/v1/edits", {"input": f"b {RUN} b", "span": [0, 1], "seed": 1, "diffusion": {"steps": 2}}),
    "edited text": ("/v1/edits", {"input": f"b {RUN} b", "span": [2, 42], "seed": 1, "diffusion": {"steps": 2}}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": RUN}], **COMMON}),
    "tokenize": ("/tokenize", {"prompt": RUN}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_panic_of_the_tokenizer_fails_its_own_request(server, name):
    path, body = REQUESTS[name]
    engine = server.engine_pid()
    answer = server.http.post(path, json=body)
    assert answer.status_code == 400 and "the tokenizer cannot encode" in answer.text, answer.text
    assert server.engine_pid() == engine, "the engine process has survived"
    assert server.http.post("/v1/completions", json={"prompt": "b", **COMMON}).status_code == 200
