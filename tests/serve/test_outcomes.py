"""The log and the metrics say how each answer ended, and count the tokens of those that were cut short."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from tests.serving import raw, server_fixture
from tests.waiting import PATIENCE, wait_until
from tools.load import attacks, processes

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
OLLAMA = "/api/generate"
LONG = {"steps": 1000, "stopping": "fixed", "canvas_length": 16}
# A token every twenty steps. With these seeds, none of the first forty tokens ends the text.
WRITING = {"steps": 20, "stopping": "fixed", "canvas_length": 1}
SEEDS = (2, 3, 4, 5)
USER = [{"role": "user", "content": "Hello"}]
STREAMS = {
    CHAT: {"messages": USER, "max_tokens": 2000},
    COMPLETIONS: {"prompt": "Hello", "max_tokens": 2000},
    MESSAGES: {"messages": USER, "max_tokens": 2000},
    RESPONSES: {"input": "Hello", "max_output_tokens": 2000},
    OLLAMA: {"prompt": "Hello", "options": {"num_predict": 2000, "diffusion": LONG}},
}

server = server_fixture()
impatient = server_fixture("--timeout", "2")


def recorded(server, outcome):
    """Return how many answers have ended so."""
    return server.metric(f'gesso_answers_total{{model="tiny",outcome="{outcome}"}}')


def writing(seed):
    return {"prompt": "Hello", "max_tokens": 2000, "seed": seed, "stream": True, "diffusion": WRITING}


def completion_tokens(lines):
    return sum(line["completion_tokens"] for line in lines)


def test_streams_whose_clients_hang_up_are_recorded_with_their_tokens(server):
    counted, before = server.metric("gesso_completion_tokens_total"), recorded(server, "client_left")
    for seed in SEEDS:
        with raw(server.url, writing(seed) | {"user": "leaves"}) as connection:
            connection.settimeout(PATIENCE)
            received = b""
            while b'"text":' not in received:
                received += connection.recv(4096)
    lines = server.wait_log_lines(len(SEEDS), user="leaves", outcome="client_left")
    assert len(lines) == len(SEEDS) and recorded(server, "client_left") == before + len(SEEDS)
    assert all(line["completion_tokens"] > 0 and line["prompt_tokens"] > 0 for line in lines)
    assert server.metric("gesso_completion_tokens_total") - counted == completion_tokens(lines)


def test_an_answer_in_one_piece_that_its_client_does_not_await_is_recorded(server):
    before = recorded(server, "client_left")
    with raw(server.url, {"prompt": "Hello", "max_tokens": 2000, "user": "impatient", "diffusion": LONG}):
        server.wait_metric("gesso_engine_requests", 1)
    (line,) = server.wait_log_lines(1, user="impatient", outcome="client_left")
    assert line["status"] == 499 and line["prompt_tokens"] > 0
    assert recorded(server, "client_left") == before + 1


def test_answers_in_the_form_of_any_api_that_run_out_of_time_are_recorded(impatient):
    """All at once: each lasts as long as the server allows."""
    bodies = {path: {"stream": True, "diffusion": LONG} | body for path, body in STREAMS.items()}
    del bodies[OLLAMA]["diffusion"]
    with ThreadPoolExecutor(len(bodies) + 1) as pool:
        streams = {path: pool.submit(impatient.http.post, path, json=body) for path, body in bodies.items()}
        whole = pool.submit(impatient.http.post, COMPLETIONS, json=bodies[COMPLETIONS] | {"stream": False})
    for path, stream in streams.items():
        assert stream.result().status_code == 200 and "no complete answer within 2 s" in stream.result().text, path
        (line,) = impatient.wait_log_lines(1, path=path, status=200)
        assert (line["outcome"], line["code"]) == ("timeout", "timeout")
    assert (whole.result().status_code, whole.result().json()["error"]["code"]) == (504, "timeout")
    impatient.wait_metric("gesso_requests_running", 0)


def test_a_complete_answer_is_ok_in_one_piece_and_as_a_stream(server):
    before = recorded(server, "ok")
    body = {"prompt": "Hello", "max_tokens": 4, "seed": 1, "user": "stays", "diffusion": WRITING | {"steps": 2}}
    pieces = list(server.events(COMPLETIONS, body))
    whole = server.http.post(COMPLETIONS, json=body).json()
    assert "".join(choice["text"] for piece in pieces for choice in piece["choices"]) == whole["choices"][0]["text"]
    lines = server.wait_log_lines(2, user="stays", outcome="ok")
    assert [line["completion_tokens"] for line in lines] == [4, 4] and recorded(server, "ok") == before + 2


def test_a_request_that_the_engine_rejects_is_invalid(server):
    """No text with this pin matches the expression, which only the engine finds out."""
    before = recorded(server, "invalid")
    pins = {"1": 128 + ord("z")}
    body = {"prompt": "Hello", "max_tokens": 4, "user": "errs", "regex": "[a-c]{4}", "diffusion": {"pins": pins}}
    assert "error" in list(server.events(COMPLETIONS, body))[-1]
    (line,) = server.wait_log_lines(1, user="errs", outcome="invalid")
    assert line["completion_tokens"] == 0 and line["reason"]
    assert recorded(server, "invalid") == before + 1


def test_no_process_outlives_a_killed_server(impatient):
    """The last test of this server. It is killed while a child of its prepare process compiles a constraint."""
    at_rest = len(processes.descendants(impatient.process.pid))
    with raw(impatient.url, {"prompt": "Hello", "max_tokens": 16, "regex": attacks.slow_regex(1)}):
        wait_until(lambda: len(processes.descendants(impatient.process.pid)) > at_rest)
        time.sleep(0.3)  # let the compilation start
        started = processes.descendants(impatient.process.pid)
        os.kill(impatient.process.pid, signal.SIGKILL)
        left = processes.wait_until_gone(started, PATIENCE)
    assert not left, [processes.command_line(pid)[:100] for pid in left]
