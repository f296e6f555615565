"""A tokenizer whose regular expression makes its library panic: the request fails, and both processes survive."""

import json

import pytest

from tests.serving import make_model, serving

PATTERN = {"Regex": "(a+)+$x"}  # backtracks in a run of the letter a until the library gives up with a panic
RUN = "a" * 40


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = make_model(tmp_path_factory.mktemp("hostile") / "model")
    raw = json.loads((directory / "tokenizer.json").read_text())
    raw["pre_tokenizer"] = {"type": "Split", "pattern": PATTERN, "behavior": "Isolated", "invert": False}
    (directory / "tokenizer.json").write_text(json.dumps(raw))
    log = tmp_path_factory.mktemp("log") / "log"
    with serving(log, "--model", str(directory), "--name", "tiny", RUST_BACKTRACE="0") as running:
        running.wait_ready()
        yield running


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
