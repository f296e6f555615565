"""The log and the metrics say how each answer ended, and count the tokens of those that were cut short."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serving import raw, server_fixture
from tests.waiting import PATIENCE, wait_until

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
OLLAMA = "/api/generate"
LONG = {"steps": 1000, "stopping": "fixed", "canvas_length": 16}
# A token every twenty steps. With these seeds, none of the first forty tokens ends the text.
WRITING = {"steps": 20, "stopping": "fixed", "canvas_length": 1}
SEEDS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12)
USER = [{"role": "user", "content": "Hello"}]
STREAMS = {
    CHAT: {"messages": USER, "max_tokens": 2000},
    COMPLETIONS: {"prompt": "Hello", "max_tokens": 2000},
    MESSAGES: {"messages": USER, "max_tokens": 2000},
    RESPONSES: {"input": "Hello", "max_output_tokens": 2000},
    OLLAMA: {"prompt": "Hello", "options": {"num_predict": 2000, "diffusion": LONG}},
}

server = server_fixture("--max-batch", "8")
impatient = server_fixture("--timeout", "2")


def log_lines(server, **fields):
    """Return the log lines of requests that have these fields."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if '"event": "request"' in line]
    return [line for line in lines if line.items() >= fields.items()]


def wait_log_lines(server, count, **fields):
    wait_until(lambda: len(log_lines(server, **fields)) >= count, server.log.read_text)
    return log_lines(server, **fields)


def answers(server, outcome):
    return server.metric(f'gesso_answers_total{{model="tiny",outcome="{outcome}"}}')


def writing(seed):
    return {"prompt": "Hello", "max_tokens": 2000, "seed": seed, "stream": True, "diffusion": WRITING}


def completion_tokens(lines):
    return sum(line["completion_tokens"] for line in lines)


def test_streams_that_a_crash_of_the_engine_ends_are_recorded_with_their_tokens(server):
    counted = server.metric("gesso_completion_tokens_total")
    texts = threading.Semaphore(0)

    def follow(seed):
        events = []
        for event in server.events(COMPLETIONS, writing(seed)):
            events.append(event)
            texts.release()
        return events

    with ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(follow, seed) for seed in SEEDS[:6]]
        server.wait_metric("gesso_engine_requests", 6)
        for _ in range(18):
            assert texts.acquire(timeout=PATIENCE)
        os.kill(server.engine_pid(), signal.SIGKILL)
        ends = [stream.result(PATIENCE)[-1] for stream in streams]
    assert [end["error"]["code"] for end in ends] == ["engine_died"] * 6
    lines = wait_log_lines(server, 6, outcome="engine_died")
    assert len(lines) == answers(server, "engine_died") == 6
    assert {(line["status"], line["code"]) for line in lines} == {(200, "engine_died")}
    assert completion_tokens(lines) > 0
    assert server.metric("gesso_completion_tokens_total") - counted == completion_tokens(lines)
    server.wait_ready()


def test_streams_whose_clients_hang_up_are_recorded_with_their_tokens(server):
    counted = server.metric("gesso_completion_tokens_total")
    for seed in SEEDS:
        with raw(server.url, writing(seed)) as connection:
            connection.settimeout(PATIENCE)
            received = b""
            while b'"text":' not in received:
                received += connection.recv(4096)
    lines = wait_log_lines(server, 10, outcome="client_left")
    assert len(lines) == answers(server, "client_left") == 10
    assert all(line["completion_tokens"] > 0 and line["prompt_tokens"] > 0 for line in lines)
    assert server.metric("gesso_completion_tokens_total") - counted == completion_tokens(lines)


def test_an_answer_in_one_piece_that_its_client_does_not_await_is_recorded(server):
    before = answers(server, "client_left")
    with raw(server.url, {"prompt": "Hello", "max_tokens": 2000, "diffusion": LONG}):
        server.wait_metric("gesso_engine_requests", 1)
    (line,) = wait_log_lines(server, 1, outcome="client_left", status=499)
    assert line["prompt_tokens"] > 0
    assert answers(server, "client_left") == before + 1


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_in_the_form_of_any_api_that_runs_out_of_time_is_recorded(impatient, path):
    body = {"stream": True, **STREAMS[path]} | ({} if path == OLLAMA else {"diffusion": LONG})
    answer = impatient.http.post(path, json=body)
    assert answer.status_code == 200 and "no complete answer within 2 s" in answer.text
    (line,) = wait_log_lines(impatient, 1, path=path)
    assert (line["outcome"], line["code"]) == ("timeout", "timeout")


def test_an_answer_that_takes_too_long_gets_504(impatient):
    """The lines of the log for these two requests come after those that the test above counts."""
    body = {"prompt": "Hello", "max_tokens": 2000, "diffusion": LONG}
    late = impatient.http.post(COMPLETIONS, json=body)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    assert list(impatient.events(COMPLETIONS, body))[-1]["error"]["code"] == "timeout"
    impatient.wait_metric("gesso_requests_running", 0)


def test_a_complete_answer_is_ok_in_one_piece_and_as_a_stream(server):
    before = answers(server, "ok")
    body = {"prompt": "Hello", "max_tokens": 4, "seed": 1, "diffusion": WRITING}
    pieces = list(server.events(COMPLETIONS, body))
    whole = server.http.post(COMPLETIONS, json=body).json()
    assert "".join(choice["text"] for piece in pieces for choice in piece["choices"]) == whole["choices"][0]["text"]
    assert answers(server, "ok") == before + 2
    assert {line["completion_tokens"] for line in wait_log_lines(server, 2, outcome="ok")} == {4}


def test_a_request_that_the_engine_rejects_is_invalid(server):
    """No text with this pin matches the expression, which only the engine finds out."""
    body = {"prompt": "Hello", "max_tokens": 4, "regex": "[a-c]{4}", "diffusion": {"pins": {"1": 128 + ord("z")}}}
    assert "error" in list(server.events(COMPLETIONS, body))[-1]
    (line,) = wait_log_lines(server, 1, outcome="invalid")
    assert line["completion_tokens"] == 0 and line["reason"]
    assert answers(server, "invalid") == 1
