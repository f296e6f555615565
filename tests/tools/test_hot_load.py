"""The load test of adapters: it passes with a real server, and notices bad answers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tools.load import __main__, hot_load

DRAFT, END = {"draft": {"step": 1}}, "[DONE]"


@pytest.mark.server
def test_hot_load_measures_a_server_with_and_without_loads(served_model, monkeypatch):
    monkeypatch.setitem(hot_load.BODY, "diffusion", {**hot_load.BODY["diffusion"], "steps": 4})
    found = hot_load.measure(0.3, 2, ("-m", str(served_model), "--device", "cpu", "--max-batch", "4"))
    assert (found["failed"], found["errors"], found["changed_texts"]) == (0, [], 0)
    assert found["loads"] >= 2 and 0 < found["load_s"]["first"] <= found["load_s"]["longest"]
    assert all(0 < phase["median"] <= phase["longest"] for phase in found["gap_ms"].values())


@pytest.fixture
def client():
    """A client of a server that sends the streams in `answers`, one after another."""
    answers = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            status, events = answers.pop(0)
            self.send_response(status)
            self.end_headers()
            for event in events:
                text = event if isinstance(event, str) else json.dumps(event)
                self.wfile.write(f"data: {text}\n\n".encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01]).start()
        client = hot_load.Client(f"http://127.0.0.1:{server.server_port}")
        yield client, answers
        server.shutdown()


def said(text):
    return {"choices": [{"text": text}]}


@pytest.mark.parametrize(
    "answer", [(503, []), (200, [DRAFT, {"error": {"message": "no"}}, END]), (200, [DRAFT, said("a")])]
)
def test_rejected_failed_and_incomplete_answers_count_as_failed(client, answer):
    client, answers = client
    answers.append(answer)
    client.ask()
    assert (client.requests, len(client.errors), client.texts) == (1, 1, {})


def test_another_text_for_the_same_seed_counts_as_changed(client):
    client, answers = client
    client.seeds = 1
    answers += [(200, [DRAFT, DRAFT, said("a"), said("b"), END]), (200, [said("ab"), END]), (200, [said("ac"), END])]
    for _ in range(3):
        client.ask()
    assert (client.errors, client.changed, len(client.gaps)) == ([], 1, 1)


@pytest.mark.parametrize(
    ("report", "failed"),
    [
        ({"failed": 0, "changed_texts": 0}, False),
        ({"failed": 1, "changed_texts": 0}, True),
        ({"failed": 0, "changed_texts": 1}, True),
        ({"passed": True}, False),
        ({"passed": False}, True),
    ],
)
def test_the_exit_status_tells_whether_an_answer_was_bad(report, failed):
    assert __main__.has_failed(report) == failed


def test_the_model_of_the_adapters_is_the_one_that_is_served():
    assert hot_load.served_model(["-m", "a", "--device", "cpu"]) == "a"
    assert hot_load.served_model(["--device", "cpu", "b"]) == "b"
