"""The server on a GPU under sixteen mixed clients: no wrong answer, no error, and nothing left behind."""

import contextlib
import json
import random
import socket
import threading
import time

import pytest

from tests.gpu.device import DEVICE, DRY_RUN
from tests.gpu.server import serving
from tools.load import hangups

pytestmark = pytest.mark.gpu

SECONDS = 8 if DRY_RUN else 30
READERS, LEAVERS = (3, 1) if DRY_RUN else (12, 4)
QUICK = {"preset": "fast", "canvas_length": 32, "steps": 8}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"type": "integer", "maximum": 99}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
# Path and body by kind; each is sent with several seeds.
KINDS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}),
    "chat, streamed": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 32, "stream": True},
    ),
    "completion": ("/v1/completions", {"prompt": "def fib(n):", "max_tokens": 48}),
    "completion, streamed": ("/v1/completions", {"prompt": "import ", "max_tokens": 48, "stream": True}),
    "json schema": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Describe a box."}],
            "max_tokens": 64,
            "response_format": {"type": "json_schema", "json_schema": {"name": "box", "schema": SCHEMA}},
        },
    ),
    "infill": ("/v1/completions", {"prompt": "def f(x):\n    ", "suffix": "\n    return y\n", "max_tokens": 8}),
    "infill, best of two": (
        "/v1/completions",
        {"prompt": "total = ", "suffix": "\nprint(total)\n", "max_tokens": 8, "best_of": 2},
    ),
    "edit": ("/v1/edits", {"input": "The sky is green.", "span": [11, 16], "max_tokens": 6}),
}
SEEDS = 1 if DRY_RUN else 2
ASKED = [
    (kind, path, body | {"seed": seed, "diffusion": QUICK})
    for kind, (path, body) in KINDS.items()
    for seed in range(SEEDS)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, "--model", "gesso-mini", "--device", DEVICE.type, "--max-batch", "16") as running:
        running.wait_ready(120)
        yield running


class Tally:
    def __init__(self):
        self.answers, self.left, self.wrong, self.errors = 0, 0, [], []
        self.lock = threading.Lock()


def read(server, alone, tally, number, until):
    """Send requests with known answers, one after another, until the time is up."""
    chance = random.Random(number)
    while time.monotonic() < until:
        at = chance.randrange(len(ASKED))
        kind, path, body = ASKED[at]
        try:
            text = server.ask(path, body)
        except Exception as error:
            with tally.lock:
                tally.errors.append(f"{kind}: {error}")
            continue
        with tally.lock:
            tally.answers += 1
            if text != alone[at]:
                tally.wrong.append((kind, body["seed"], alone[at], text))


def leave(server, tally, number, until):
    """Send long requests and disconnect after a random time, before the answer or within a stream."""
    chance = random.Random(1000 + number)
    while time.monotonic() < until:
        _, path, body = chance.choice(ASKED)
        body = body | {"diffusion": {"steps": 400, "stopping": "fixed", "canvas_length": 32}}
        if "max_tokens" in body and "suffix" not in body:
            body |= {"max_tokens": 400}
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        with contextlib.closing(connection):
            content = json.dumps(body).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            time.sleep(0.6 * chance.random())
        with tally.lock:
            tally.left += 1


def test_sixteen_mixed_clients_get_correct_answers(server, record_property):
    alone = [server.ask(path, body) for _, path, body in ASKED]
    for (kind, _, _), text in zip(ASKED, alone, strict=True):
        if kind == "json schema":
            assert set(json.loads(text)) == {"name", "size"}
        elif kind == "edit":
            assert text.startswith("The sky is ") and text.endswith(".")
    before = hangups.settled(server.url)
    tally, until = Tally(), time.monotonic() + SECONDS
    threads = [threading.Thread(target=read, args=(server, alone, tally, i, until)) for i in range(READERS)]
    threads += [threading.Thread(target=leave, args=(server, tally, i, until)) for i in range(LEAVERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = hangups.settled(server.url)
    for name, value in (("answers", tally.answers), ("wrong", len(tally.wrong)), ("errors", len(tally.errors))):
        record_property(name, value)
    record_property("left_early", tally.left)
    assert not tally.errors, tally.errors[:3]
    assert not tally.wrong, tally.wrong[:3]
    assert tally.answers >= READERS and tally.left >= LEAVERS
    assert {name: hangups.total(after, name) for name in hangups.HELD} == dict.fromkeys(hangups.HELD, 0)
    assert hangups.total(after, "gesso_engine_restarts_total") == 0
    assert hangups.total(after, "gesso_requests_rejected_total") == 0
    answered = [name for name in after if name.startswith("gesso_requests_total") and 'status="5' in name]
    assert [name for name in answered if after[name] > before.get(name, 0)] == []
    assert after["process_open_fds"] <= before["process_open_fds"] + 1


def test_texts_are_the_same_after_the_load(server):
    """The graphs of many batch shapes have been captured, and some dropped."""
    for kind, path, body in ASKED[::4]:
        assert server.ask(path, body) == server.ask(path, body), kind
