"""Faults: disconnecting clients, a killed engine, limits, signals, and messages between the processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from gesso.serve.fair_queue import FairQueue
from gesso.serve.keys import Keys, is_loopback
from tests.serving import QUICK, raw, server_fixture, serving
from tests.waiting import PATIENCE, wait_until

LONG = {"steps": 1000, "stopping": "fixed", "canvas_length": 16}
# A token every twenty steps. With the seeds 2 and 3, none of the first forty tokens ends the text.
WRITING = {"steps": 20, "stopping": "fixed", "canvas_length": 1}
CHAT = "/v1/completions"
ALICE, BOB = {"authorization": "Bearer alice-key"}, {"authorization": "Bearer bob-key"}


def short(seed=1, **more):
    return {"prompt": "Hello", "max_tokens": 16, "seed": seed, "diffusion": QUICK} | more


def endless(**more):
    return {"prompt": "Hello", "max_tokens": 2000, "seed": 1, "diffusion": LONG} | more


server = server_fixture("--max-batch", "2", "--io-timeout", "2")  # no keys, and a timeout of two seconds


def post(server, body, **options):
    return httpx.post(f"{server.url}{CHAT}", json=body, timeout=PATIENCE, **options)


def text(response):
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


# --- clients ----------------------------------------------------------------------------------------------------------


def test_a_disconnect_frees_its_slot_within_a_step(server):
    """Requests that would take minutes are cancelled, and the next one starts at once in this batch of two."""
    connections = [raw(server.url, endless(stream=True)) for _ in range(2)]
    server.wait_metric("gesso_requests_running", 2)
    for connection in connections:
        connection.close()
    text(post(server, short(diffusion=QUICK | {"steps": 1})))  # would wait for minutes, and fail


def test_an_incomplete_body_times_out(server):
    connection = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    connection.sendall(f'{head}Content-Length: 100\r\n\r\n{{"prompt":'.encode())
    connection.settimeout(20)
    answer = connection.recv(65536)
    connection.close()
    assert b"408" in answer.splitlines()[0]
    assert server.http.get("/health").status_code == 200


# --- the engine process -----------------------------------------------------------------------------------------------


def test_a_killed_engine_is_restarted_and_only_started_requests_fail(server):
    """The log and the metrics count the tokens of the streams that the crash has ended."""
    expected = text(post(server, short(seed=3)))
    counted, texts = server.metric("gesso_completion_tokens_total"), threading.Semaphore(0)

    def follow(seed):
        events = []
        for event in server.events(CHAT, endless(seed=seed, diffusion=WRITING)):
            events.append(event)
            texts.release()
        return events

    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(follow, seed) for seed in (2, 3)]
        for _ in range(8):
            assert texts.acquire(timeout=PATIENCE)
        server.wait_metric("gesso_requests_running", 2)
        waiting = [pool.submit(post, server, short(seed=3, user="waits")) for _ in range(5)]
        server.wait_metric("gesso_requests_waiting", 4)  # one was sent to the engine, behind the two
        os.kill(server.engine_pid(), signal.SIGKILL)
        server.wait_ready(503)
        assert server.http.get("/health").json()["engine"] == "restarting"
        errors = [stream.result(PATIENCE)[-1]["error"] for stream in streams]
        assert [(error["type"], error["code"]) for error in errors] == [("server_error", "engine_died")] * 2
        assert [text(answer.result(PATIENCE)) for answer in waiting] == [expected] * 5
    server.wait_ready(200)
    assert server.metric("gesso_engine_restarts_total") == 1
    lines = server.wait_log_lines(2, outcome="engine_died")
    assert len(lines) == server.metric('gesso_answers_total{model="tiny",outcome="engine_died"}') == 2
    assert {(line["status"], line["code"]) for line in lines} == {(200, "engine_died")}
    assert all(line["completion_tokens"] > 0 for line in lines)
    tokens = sum(line["completion_tokens"] for line in [*lines, *server.wait_log_lines(5, user="waits")])
    assert server.metric("gesso_completion_tokens_total") - counted == tokens


# --- keys, limits, signals --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(served_model, tmp_path_factory):
    """A server under nohup with keys and tight limits."""
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "keys").write_text("# two\nalice-key\nbob-key\n")
    limits = ["--queue", "4", "--max-batch", "1", "--max-length", "5000", "--prefill", "auto"]
    limits += ["--body-bytes", "20000", "--request-tokens", "4000"]
    arguments = ("--model", str(served_model), "--name", "tiny", "--api-key-file", str(directory / "keys"))
    more = ("--cors-origin", "https://page.example")
    with serving(directory / "log", *arguments, *limits, *more, before=("nohup",)) as running:
        running.wait_ready()
        yield running


def test_ready_reports_the_chosen_settings(guarded):
    ready = guarded.http.get("/ready").json()
    assert (ready["max_batch"], ready["max_length"], ready["prefill"]) == (1, 5000, 256)
    assert ready["write"] == "canvases (the default)", "a small model is not measured"
    assert "5000 (as requested)" in ready["why"] and ready["why"] in guarded.log.read_text()


def test_requests_need_a_valid_key(guarded):
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic alice-key"}):
        rejected = post(guarded, short(), headers=headers)
        assert rejected.status_code == 401
        assert rejected.json()["error"]["code"] == "invalid_api_key"
        assert guarded.http.get("/metrics", headers=headers).status_code == 401
    assert text(post(guarded, short(), headers=ALICE)) == text(post(guarded, short(), headers=BOB))
    assert guarded.http.get("/health").status_code == guarded.http.get("/ready").status_code == 200
    assert "alice" not in guarded.log.read_text()


def test_only_configured_cors_origins_are_allowed(guarded):
    for origin, allowed in (("https://page.example", True), ("https://evil.example", False)):
        asked = {"origin": origin, "access-control-request-method": "POST"}
        answer = guarded.http.options(CHAT, headers=asked)
        assert ("access-control-allow-origin" in answer.headers) == allowed


def test_an_allowed_origin_may_send_any_header(guarded):
    """The official clients in a browser send headers of their own, and a rejected preflight breaks each of them."""
    headers = (
        "anthropic-beta,anthropic-dangerous-direct-browser-access,openai-organization,x-requested-with,x-stainless-os"
    )
    for origin, status in (("https://page.example", 200), ("https://evil.example", 400)):
        asked = {"access-control-request-method": "POST", "access-control-request-headers": headers}
        answer = guarded.http.options(CHAT, headers=asked | {"origin": origin})
        assert answer.status_code == status
        assert ("access-control-allow-origin" in answer.headers) == (status == 200)
    assert set(headers.split(",")) <= set(answer.headers["access-control-allow-headers"].split(","))


def test_too_large_bodies_and_too_long_requests_are_rejected(guarded):
    large = post(guarded, short(prompt="x" * 30000), headers=ALICE)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    long = post(guarded, short(prompt=[5] * 4100), headers=ALICE)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "request_too_long")


def test_clients_take_turns_and_the_queue_is_bounded(guarded):
    """Alice holds the only slot and has four more requests waiting. Bob's request is next but one."""
    order = []

    def ask(who, headers):
        answer = post(guarded, short(), headers=headers)
        order.append(who)
        return answer

    with ThreadPoolExecutor(8) as pool:
        long = raw(guarded.url, endless(), "Authorization: Bearer alice-key\r\n")
        guarded.wait_metric("gesso_requests_running", 1, **ALICE)
        alice = [pool.submit(ask, "alice", ALICE) for _ in range(4)]
        guarded.wait_metric("gesso_requests_waiting", 3, **ALICE)  # one was sent to the engine, to start without delay
        bob = pool.submit(ask, "bob", BOB)
        guarded.wait_metric("gesso_requests_waiting", 4, **ALICE)
        rejected = post(guarded, short(), headers=BOB)
        long.close()
        assert rejected.status_code == 429
        assert 1 <= int(rejected.headers["retry-after"]) <= 60
        assert rejected.json()["error"]["type"] == "rate_limit_error"
        assert len({text(job.result(30)) for job in [*alice, bob]}) == 1
        assert order.index("bob") <= 2


def drains(running, number, **headers):
    """Send a signal during a stream. Assert that the stream is complete, and that every process ends."""
    engine = running.engine_pid()
    body = short(max_tokens=64, diffusion=QUICK | {"steps": 12, "stopping": "fixed"})
    expected = text(post(running, body, headers=headers))
    events = running.events(CHAT, body, headers=headers)
    pieces = [next(events)]
    running.process.send_signal(number)
    pieces += events
    assert "".join(choice["text"] for piece in pieces for choice in piece["choices"]) == expected
    assert running.process.wait(PATIENCE) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{running.url}/health")
    wait_until(lambda: not os.path.exists(f"/proc/{engine}"))


def test_a_server_under_nohup_outlives_its_terminal(guarded):
    guarded.process.send_signal(signal.SIGHUP)
    text(post(guarded, short(), headers=ALICE))
    assert guarded.process.poll() is None


def test_sigterm_lets_streams_finish_and_leaves_no_process(guarded):
    drains(guarded, signal.SIGTERM, **ALICE)


def test_sighup_lets_streams_finish_and_leaves_no_process(server):
    server.wait_ready()
    drains(server, signal.SIGHUP)


# --- no server needed -------------------------------------------------------------------------------------------------


def test_remote_access_needs_keys(main, monkeypatch):
    monkeypatch.delenv("GESSO_API_KEYS", raising=False)
    rejected = main("serve", "--host", "0.0.0.0")
    assert rejected.code == 2 and "--api-key-file" in rejected.err
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "gesso.ai")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


WITHOUT_UVICORN = """
import sys
sys.modules["uvicorn"] = None
from gesso.cli.main import main
sys.exit(main(["serve"]))
"""


def test_missing_extra_names_the_package_to_install():
    ended = subprocess.run([sys.executable, "-c", WITHOUT_UVICORN], capture_output=True, text=True)
    assert ended.returncode == 2 and "pip install 'gesso-lm[serve]'" in ended.stderr


def test_a_port_in_use_is_reported(main):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        rejected = main("serve", "--port", str(taken.getsockname()[1]))
    assert rejected.code == 2 and "choose another --port" in rejected.err


def test_keys_of_any_length_are_distinguished():
    keys = Keys(["a", "b" * 100])
    assert keys.holder(b"Bearer a") == "key-0" and keys.holder(b"bearer " + b"b" * 100) == "key-1"
    assert [keys.holder(given) for given in (b"", b"Bearer ", b"Bearer aa", b"a", b"Bearer \xff")] == [None] * 5
    assert not Keys([])


def test_fair_queue_lets_clients_take_turns():
    class Item:
        def __init__(self, client, number):
            self.client, self.number = client, number

    queue = FairQueue()
    items = [Item("a", i) for i in range(3)] + [Item("b", 0), Item("c", 0)]
    for item in items:
        queue.put(item)
    assert len(queue) == 5
    queue.remove(items[4])
    taken = [queue.take() for _ in range(2)]
    queue.put_back(taken[0])
    order = [(item.client, item.number) for item in [queue.take() for _ in range(len(queue))]]
    assert [(item.client, item.number) for item in taken] == [("a", 0), ("b", 0)]
    assert order == [("a", 0), ("a", 1), ("a", 2)]
    assert not queue
