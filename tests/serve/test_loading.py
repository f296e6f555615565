"""A request that arrives before the engine is ready is answered as if it had arrived after."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serving import QUICK, serving

PATH = "/v1/completions"
PROMPT = 5000  # tokens: fewer than the model's context, and more than the engine's
MEMORY = "840MB"  # enough for a context of about 5,200 tokens, and not for all 8,192


@pytest.fixture(scope="module")
def answers(served_model, tmp_path_factory):
    """The answers to requests that a server gets before its engine is ready and after, which chooses a context."""
    bodies = {
        "default length": {"prompt": [200] * PROMPT, "seed": 1, "diffusion": QUICK},
        "too long": {"prompt": [200] * 7000, "max_tokens": 8, "seed": 1},
        "short": {"prompt": "abc", "max_tokens": 8, "seed": 1, "diffusion": QUICK, "n": 2},
    }
    arguments = ("--model", str(served_model), "--name", "tiny", "--memory", MEMORY)
    with serving(tmp_path_factory.mktemp("log") / "log", *arguments) as server:

        def post(body):
            response = server.http.post(PATH, json=body)
            return response.status_code, response.json()

        assert server.http.get("/ready").status_code == 503, "the test is about a server that loads"
        with ThreadPoolExecutor(len(bodies)) as pool:
            early = dict(zip(bodies, pool.map(post, bodies.values()), strict=True))
        server.wait_ready()
        context = server.http.get("/v1/models").json()["data"][0]["max_model_len"]
        late = {name: post(body) for name, body in bodies.items()}
        return context, early, late


def test_the_engine_of_this_server_has_less_than_the_assumed_context(answers):
    assert PROMPT < answers[0] < 7000


def test_a_prompt_that_does_not_fit_is_rejected_with_the_field_and_the_code(answers):
    _, early, late = answers
    assert early["too long"] == late["too long"]
    status, body = early["too long"]
    assert status == 400
    assert (body["error"]["param"], body["error"]["code"]) == ("prompt", "context_length_exceeded")


def test_the_default_length_is_that_of_the_context_of_the_engine(answers):
    _, early, late = answers
    assert early["default length"][0] == 200
    assert early["default length"][1]["choices"] == late["default length"][1]["choices"]


def test_other_answers_are_the_same(answers):
    _, early, late = answers
    assert early["short"][1]["choices"] == late["short"][1]["choices"] and len(early["short"][1]["choices"]) == 2
