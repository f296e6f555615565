"""One seed, one text: from Python, the command line, and HTTP in the dialects of OpenAI, Anthropic and Ollama."""

import json

import pytest

import gesso
from tests.serving import serving

QUESTION = "What can you do?"
MESSAGES = [{"role": "user", "content": QUESTION}]
SEED, TOKENS = 4, 64


@pytest.fixture(scope="module")
def mini():
    return gesso.load("gesso-mini", device="cpu")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("log") / "log", "--model", "gesso-mini", "--device", "cpu") as running:
        running.wait_ready()
        yield running


def test_python_the_command_line_and_every_dialect_write_the_same_text(mini, server, main):
    def answer(path: str, **fields) -> dict:
        response = server.http.post(path, json={"model": "gesso-mini", "messages": MESSAGES, "stream": False, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    limits = "--max-new-tokens", str(TOKENS), "--seed", str(SEED)
    printed = main("chat", "-m", "gesso-mini", "--device", "cpu", "--prompt", QUESTION, *limits, "--json")
    texts = {
        "Python": mini.chat(MESSAGES, max_new_tokens=TOKENS, seed=SEED).text,
        "command line": json.loads(printed.out)["text"],
        "OpenAI": answer("/v1/chat/completions", max_tokens=TOKENS, seed=SEED)["choices"][0]["message"]["content"],
        "Anthropic": answer("/v1/messages", max_tokens=TOKENS, seed=SEED)["content"][0]["text"],
        "Ollama": answer("/api/chat", options={"num_predict": TOKENS, "seed": SEED})["message"]["content"],
    }
    assert set(texts.values()) == {texts["Python"]}, texts
    assert texts["Python"]


def test_the_seed_of_this_file_shows_a_difference_of_settle(mini):
    zero, one = (mini.chat(MESSAGES, max_new_tokens=TOKENS, seed=SEED, settle=settle).text for settle in (0, 1))
    assert zero != one == mini.chat(MESSAGES, max_new_tokens=TOKENS, seed=SEED).text
