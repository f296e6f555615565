"""Log-probabilities over HTTP: decisions, and prompts echoed by /v1/completions."""

from types import SimpleNamespace

import httpx
import pytest
import torch

import gesso
from gesso.chat.tokenizer import Tokenizer
from gesso.serve.openai.logprobs import completion_logprobs

TEXT = "To be, or not to be"


@pytest.fixture(scope="module")
def server(server_with_keys):
    return server_with_keys


@pytest.fixture(scope="module")
def loaded(served_model):
    return gesso.load(served_model, device="cpu")


def complete(server, **fields) -> httpx.Response:
    asked = {"model": "tiny", "prompt": TEXT, "echo": True, "logprobs": 2, "max_tokens": 1} | fields
    return server.http.post("/v1/completions", json=asked)


@torch.no_grad()
def log_probabilities(g, tokens):
    """The predictions of the encoder after each token, apart from the engine."""
    hidden = g.model.encode(torch.tensor([tokens]), g.model.new_cache(1, len(tokens)))[0]
    return g.model.logits(hidden).log_softmax(-1)


def test_echoed_logprobs_are_those_of_the_causal_encoder(server, loaded):
    tokens = loaded.tokenizer.encode(TEXT)
    expected_SV = log_probabilities(loaded, tokens)
    (choice,) = complete(server).json()["choices"]
    found = choice["logprobs"]
    next_token = int(expected_SV[-1].argmax())
    targets = [*tokens[1:], next_token]
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    values = [expected_SV[i, token].item() for i, token in enumerate(targets)]
    assert found["token_logprobs"][1:] == pytest.approx(values, abs=1e-3)
    tops = [max(top.values()) for top in found["top_logprobs"][1:]]
    assert tops == pytest.approx(expected_SV.max(-1).values.tolist(), abs=1e-3)
    for text, value, top in list(zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True))[1:]:
        assert top[text] == value and len(top) in (2, 3)
    assert choice["text"] == loaded.decode([*tokens, next_token])
    texts, offsets = found["tokens"], found["text_offset"]
    ends = [*offsets[1:], len(choice["text"])]
    pairs = list(zip(texts, offsets, ends, strict=True))[1:]  # the first token, bos, is not in the text
    assert all(choice["text"][start:end] == text for text, start, end in pairs)


@pytest.mark.parametrize("top", [[], [(5, -0.1)], [(5, -0.1), (6, -2.0)]])
def test_the_most_likely_tokens_contain_that_of_the_text(served_model, top):
    tokenizer = Tokenizer.from_directory(served_model)
    text, other = tokenizer.pieces([6, 5])
    job = SimpleNamespace(logprobs=[(-2.0, top)])
    found = completion_logprobs(tokenizer, job, SimpleNamespace(tokens=[6]))
    assert found["top_logprobs"] == [{text: -2.0} | ({other: -0.1} if top else {})]


def test_echo_of_several_prompts_of_tokens_without_a_new_token(server, loaded):
    prompts = [loaded.tokenizer.encode(text) for text in (TEXT, "be")] + [[5]]
    answer = complete(server, prompt=prompts, max_tokens=0).json()
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        expected_SV = log_probabilities(loaded, prompt)
        values = [expected_SV[i, token].item() for i, token in enumerate(prompt[1:])]
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(values, abs=1e-3)
        assert len(choice["logprobs"]["tokens"]) == len(prompt)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts)) and answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logprobs": None}, "echo needs logprobs"),
        ({"max_tokens": 2}, "max_tokens: 0 or 1"),
        ({"echo": False, "max_tokens": 0}, "needs echo: true"),
        ({"stream": True}, "cannot be combined"),
        ({"n": 2}, "cannot be combined"),
        ({"regex": "a"}, "cannot be combined"),
        ({"prompt": [1] * 4001}, "This server's limit is 4000"),
        ({"prompt": [[1] * 300] * 16, "logprobs": 20, "max_tokens": 0}, None),
        ({"prompt": [[1] * 1000] * 16, "logprobs": 20}, "log-probabilities per request"),
        ({"prompt": [10**6]}, "outside the vocabulary"),
        ({"prompt": ""}, "it is empty"),
    ],
)
def test_echo_is_checked_and_limited(server, fields, words):
    answer = complete(server, **fields)
    assert answer.status_code == (200 if words is None else 400), answer.text
    assert words is None or words in answer.json()["error"]["message"]


@pytest.mark.parametrize("prompt", [{"prompt": "Is seven odd?"}, {"messages": [{"role": "user", "content": "Odd?"}]}])
def test_decision_over_http_is_that_of_python(server, loaded, prompt):
    choices = ["yes", "no", "maybe"]
    answer = server.http.post("/v1/decide", json={"model": "tiny", "choices": choices, **prompt}).json()
    expected = loaded.decide(*prompt.values(), choices)
    assert (answer["choice"], answer["index"]) == (expected.choice, expected.index)
    found = {one["choice"]: one["probability"] for one in answer["probabilities"]}
    assert found == pytest.approx(dict(expected.probabilities), rel=1e-3, abs=0)
    assert answer["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    assert answer["usage"]["diffusion"]["steps"] == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"choices": ["a", "b"]}, "give either prompt or messages"),
        ({"prompt": "x", "choices": ["a"]}, "choices"),
        ({"prompt": "x", "choices": ["a"] * 300}, "choices"),
        ({"prompt": "x", "choices": ["a", "a"]}, "given twice"),
        ({"prompt": "x", "choices": ["a", "ab"]}, "one choice begins another"),
        ({"prompt": "x " * 4000, "choices": ["a", "b"]}, "This server's limit is 4000"),
        ({"prompt": "", "choices": ["a", "b"]}, "it is empty"),
    ],
)
def test_decisions_are_checked_and_limited(server, fields, words):
    answer = server.http.post("/v1/decide", json=fields)
    assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text


def test_tokenizer_info_names_the_special_tokens_that_tokenize_accepts(server, loaded):
    """lm-eval tokenizes on the server if it finds this."""
    info = server.http.get("/tokenizer_info").json()
    asked = {"prompt": info["bos_token"] + TEXT, "add_special_tokens": False}
    assert server.http.post("/tokenize", json=asked).json()["tokens"] == loaded.tokenizer.encode(TEXT)
    assert info["eos_token"] == "<eos>"
