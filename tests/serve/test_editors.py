"""Requests of editors to the bundled model, which fills holes."""

import ast

from benchmarks.editor_requests import AFTER, BEFORE, CONTINUE, VIM
from tests.serve.test_llama_cpp import ask, events


def test_hole_of_one_line_is_filled_so_that_the_file_parses(bundled_server):
    for prompt in ("        ", ""):  # llama.vscode sends no line that has only spaces
        found = ask(bundled_server, "/infill", VIM | {"prompt": prompt, "seed": 1, "t_max_predict_ms": 0})
        ast.parse(BEFORE + prompt + found["content"] + AFTER)
        assert "self.y" in found["content"]


def test_continue_fills_a_hole_by_the_markers_of_its_template(bundled_server):
    *parts, last = events(bundled_server.http.post("/completion", json=CONTINUE | {"seed": 1}))
    assert "".join(part["content"] for part in parts) == "self.y = y"
    assert last["stop_type"] == "eos"


def test_time_limit_ends_a_text_that_has_a_whole_line(bundled_server):
    body = {"prompt": "class Vector:\n    def __init__(self, x, y):\n", "n_predict": 128, "seed": 1}
    whole = ask(bundled_server, "/completion", body)
    early = ask(bundled_server, "/completion", body | {"t_max_predict_ms": 1})
    assert whole["content"].startswith(early["content"]) and len(early["content"]) < len(whole["content"])
    assert early["content"].rpartition("\n")[0].strip() and early["stop_type"] == "limit"
    hole = {"input_prefix": "def mean(values):\n", "prompt": "    ", "input_suffix": "", "n_predict": 128, "seed": 1}
    assert ask(bundled_server, "/infill", hole | {"t_max_predict_ms": 1})["content"].strip()
