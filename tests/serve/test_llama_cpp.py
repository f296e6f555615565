"""llama.cpp's API: the requests of editors as their sources send them, holes, and limits."""

import json
import re

import pytest

from benchmarks.editor_requests import VIM, VIM_RING, VSCODE, VSCODE_PREPARATION
from gesso.serve.llama_cpp import InfillFields, before_dedent
from tests.serving import QUICK, server_fixture

server = server_fixture()
HOLE = "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"


def ask(server, path, body):
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def events(response):
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]


# --- requests of editors ----------------------------------------------------------------------------------------------


def test_llama_vim_gets_the_fields_it_asks_for_in_json_that_it_recognizes(server):
    response = server.http.post("/infill", json=VIM | {"n_predict": 6, "diffusion": QUICK})
    assert response.status_code == 200, response.text
    assert re.search(r'"content"\s*:"', response.text)  # llama.vim drops any other answer
    found = response.json()
    assert found.keys() == set(VIM["response_fields"])
    assert found["truncated"] is False and found["timings/prompt_n"] > 0
    assert all(isinstance(found[name], int | float) for name in found if name.startswith("timings/"))


@pytest.mark.parametrize("body", [VIM_RING, VSCODE_PREPARATION])
def test_request_for_no_tokens_is_answered_without_text(server, body):
    before = server.metric("gesso_denoising_steps_total")
    found = ask(server, "/infill", body)
    assert found.get("content", "") == "" and "warnings" not in found
    assert server.metric("gesso_denoising_steps_total") == before


def test_llama_vscode_gets_a_list_of_answers(server):
    found = ask(server, "/infill", VSCODE | {"n_predict": 6, "diffusion": QUICK, "seed": 4})
    assert [one["index"] for one in found] == [0, 1, 2]
    assert [one["generation_settings"]["seed"] for one in found] == [4, 5, 6]
    one = ask(server, "/infill", VSCODE | {"n_predict": 6, "diffusion": QUICK, "seed": 5, "n_cmpl": 1})
    assert one["content"] == found[1]["content"]
    assert one["generation_settings"]["n_ctx"] == server.http.get("/v1/models").json()["data"][0]["max_model_len"]
    assert one["timings"]["predicted_ms"] > 0 and one["stop"] is True and one["truncated"] is False


def test_llama_vscode_reads_the_context_of_a_model(server):
    (entry, *_) = server.http.get("/v1/models").json()["data"]
    assert entry["meta"]["n_ctx_train"] > 0  # without `meta` it does not ask for /props
    props = server.http.get("/props", params={"model": entry["id"], "autoload": "false"}).json()
    assert props["default_generation_settings"]["n_ctx"] == entry["max_model_len"]
    assert server.http.get("/props", params={"model": "other"}).status_code == 404


def test_content_and_prompt_are_tokenized_in_their_own_forms(server):
    ours = ask(server, "/tokenize", {"prompt": "abc", "add_special_tokens": False})
    content = {"content": "abc", "add_special": False, "parse_special": True}
    assert ask(server, "/tokenize", content) == {"tokens": ours["tokens"]}
    with_bos = ask(server, "/tokenize", {"content": "abc", "add_special": True})["tokens"]
    assert with_bos == ask(server, "/tokenize", {"prompt": "abc"})["tokens"]
    pieces = ask(server, "/tokenize", content | {"with_pieces": True})["tokens"]
    assert "".join(token["piece"] for token in pieces) == "abc"
    assert ask(server, "/detokenize", {"tokens": ours["tokens"]})["content"] == "abc"


def test_continue_gets_a_stream_whose_parts_have_content(server):
    body = {"prompt": "Once", "stream": True, "n_predict": 12, "seed": 1, "diffusion": QUICK}
    *parts, last = events(server.http.post("/completion", json=body))
    text = ask(server, "/v1/completions", {"prompt": "Once", "max_tokens": 12, "seed": 1, "diffusion": QUICK})
    assert "".join(part["content"] for part in parts) == text["choices"][0]["text"] != ""
    assert not any(part["stop"] for part in parts)
    assert last["stop"] and last["content"] == "" and last["timings"]["predicted_n"] == 12


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("/infill", {"input_prefix": "a", "n_cmpl": 2, "stream": True}, "n_cmpl must be 1 with stream"),
        ("/infill", {"input_prefix": "a", "mirostat": 2}, None),
        ("/infill", {"input_prefix": "a", "grammar": 'root ::= "a"'}, "grammar"),
        ("/infill", {"input_prefix": "a", "json_schema": {"type": "object"}}, "json_schema"),
        ("/infill", {"input_extra": [{"filename": "a.py"}]}, "input_extra.0.text"),
        ("/completion", {"prompt": ""}, "prompt: it is empty"),
        ("/completion", {"prompt": "a", "n_predict": -2}, "n_predict"),
        ("/completion", {"prompt": HOLE, "grammar": 'root ::= "a"'}, "grammar is not supported for a hole"),
        ("/completion", {"prompt": "a", "grammar": 'root ::= "a"', "json_schema": {}}, "only one constraint"),
    ],
)
def test_requests_that_cannot_be_served_are_rejected_or_carry_a_warning(server, path, change, message):
    response = server.http.post(path, json={"n_predict": 4, "diffusion": QUICK} | change)
    if message is None:
        assert "mirostat was ignored" in response.json()["warnings"][0]
    else:
        assert response.status_code == 400 and message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("constraint", "texts"),
    [
        ({"json_schema": {"enum": ["yes", "no"]}}, ('"yes"', '"no"')),
        ({"grammar": 'root ::= "yes" | "no"'}, ("yes", "no")),
    ],
)
def test_text_of_a_completion_matches_its_constraint(server, constraint, texts):
    body = {"prompt": "Answer: ", "n_predict": 16, "seed": 1, "diffusion": QUICK} | constraint
    assert ask(server, "/completion", body)["content"] in texts


# --- text -------------------------------------------------------------------------------------------------------------


def test_infill_fills_the_hole_as_completions_with_a_suffix(server):
    options = {"seed": 3, "diffusion": QUICK}
    hole = {"prompt": "abc ", "suffix": " xyz", "max_tokens": 4}
    ours = ask(server, "/v1/completions", hole | options)["choices"][0]["text"]
    body = {"input_prefix": "a", "prompt": "bc ", "input_suffix": " xyz", "n_predict": 4} | options
    assert ask(server, "/infill", body)["content"] == ours
    *parts, last = events(server.http.post("/infill", json=body | {"stream": True}))
    assert "".join(part["content"] for part in parts) == ours and last["stop"]


def test_text_too_long_for_the_context_is_cut_to_the_nearest_part(server):
    body = {"input_prefix": "a" * 9000 + "abc ", "input_suffix": " xyz" + "z" * 9000, "n_predict": 4}
    found = ask(server, "/infill", body | {"seed": 3, "diffusion": QUICK})
    assert found["truncated"] is True
    assert found["tokens_evaluated"] < found["generation_settings"]["n_ctx"]


def test_extra_context_comes_before_the_text():
    fields = InfillFields(input_prefix="p\n", prompt="q", input_extra=[{"text": "e", "filename": "f.py"}])
    assert fields.before == "# f.py\ne\n\np\nq"


def test_text_ends_before_a_line_with_less_indentation():
    assert before_dedent("a\n    b\n\n  c\n    d", 4) == "a\n    b\n"
    assert before_dedent("a\n    b\n", 4) == "a\n    b\n"
    assert before_dedent("a\nb", 0) == "a\nb"
