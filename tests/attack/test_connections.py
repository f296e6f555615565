"""Incomplete, garbled or forged connections end by themselves, and other clients are served."""

import asyncio
import contextlib
import http.client
import itertools
import resource
import socket
import time

import httpx
import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from uvicorn.server import ServerState

from gesso.errors import InputError
from gesso.serve.http import middleware
from gesso.serve.http.app import create_app
from gesso.serve.http.connections import protocol
from gesso.serve.keys import read_keys
from gesso.serve.metrics import Metrics
from gesso.serve.settings import EngineSettings, ServerLimits, ServerSettings
from tests.attack.watching import (
    BAD,
    GOOD,
    ask,
    assert_nothing_left,
    bystanders,
    short,
    text,
)
from tests.waiting import PATIENCE, wait_until
from tools.load import processes, wire
from tools.load.wire import COMPLETIONS

pytestmark = pytest.mark.attack

FILES = 64  # that the server may open beyond its current ones, in the test of incomplete heads
LOG_BYTES = 1_000_000  # largest addition to the log by an attack


@contextlib.contextmanager
def few_files(pid, more):
    limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (processes.open_files(pid) + more, limit[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


def is_closed(connection, seconds):
    """Return whether the server closes its end within `seconds`, whatever it sends before."""
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            connection.settimeout(max(0.01, until - time.monotonic()))
            if not connection.recv(65536):
                return True
    except ConnectionError:
        return True
    except TimeoutError:
        pass
    return False


@contextlib.asynccontextmanager
async def limited_server(limited, app):
    config = uvicorn.Config(app, log_config=None, lifespan="off")
    config.load()
    make = lambda: limited(config, ServerState(), {})  # noqa: E731
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()


async def echo(scope, receive, send):
    """Answer with the length of the body."""
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length, more = length + len(message["body"]), message["more_body"]
    content = str(length).encode()
    headers = [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def test_every_connection_beyond_the_limit_closes_one_without_a_request():
    limited = protocol(ServerLimits(connections=3))

    async def open_at_once(count):
        async with limited_server(limited, echo) as address:
            with contextlib.ExitStack() as stack:
                for _ in range(count):
                    stack.enter_context(socket.create_connection(address))  # before the server accepts any
                await asyncio.sleep(0.2)
                return len(limited.open)

    assert asyncio.run(open_at_once(12)) == 3
    assert not limited.open and not limited.waiting and not limited.per_address


def test_one_address_with_unsent_bodies_does_not_block_others():
    limited = protocol(ServerLimits(connections=3))

    async def measure():
        async with limited_server(limited, echo) as address:
            held = [await asyncio.open_connection(*address) for _ in range(3)]
            for _, writer in held:
                writer.write(wire.head(COMPLETIONS, BAD, 10))
            await asyncio.sleep(0.2)
            reader, writer = await asyncio.open_connection(*address, local_addr=("127.0.0.2", 0))
            await asyncio.sleep(0.2)
            writer.write(wire.head(COMPLETIONS, GOOD, 2) + b"{}")
            answer = await reader.readline()
            for _, each in [*held, (reader, writer)]:
                each.close()
            await asyncio.sleep(0.2)
            return answer

    assert asyncio.run(measure()).startswith(b"HTTP/1.1 200")
    assert not limited.open and not limited.waiting and not limited.per_address


def test_a_disconnect_is_noticed_after_an_extra_byte():
    async def measure():
        asked, left = asyncio.Event(), asyncio.Event()

        async def wait(scope, receive, send):
            await receive()
            asked.set()
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()

        async with limited_server(protocol(ServerLimits()), wait) as address:
            _, writer = await asyncio.open_connection(*address)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            await asyncio.wait_for(asked.wait(), PATIENCE)
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.close()
            await asyncio.wait_for(left.wait(), PATIENCE)

    asyncio.run(measure())


def test_ordinary_clients_send_several_requests_on_one_connection():
    """Bodies have one segment or many, and one waits for 100 Continue."""
    sizes = (0, 1, 60_000, 70_000, 1_000_000, 5)

    def by_http_client(address):
        connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
        for size in sizes:
            connection.request("POST", "/", b"x" * size)
            yield int(connection.getresponse().read())
        connection.close()

    def by_httpx(address):
        with httpx.Client(base_url=f"http://{address[0]}:{address[1]}") as client:
            yield from (int(client.post("/", content=b"x" * size).text) for size in sizes)

    def by_waiting(address):
        with socket.create_connection(address, timeout=PATIENCE) as connection:
            for size in sizes[1:]:
                head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\nExpect: 100-continue\r\n\r\n"
                connection.sendall(head.encode())
                assert connection.recv(4096).startswith(b"HTTP/1.1 100")
                connection.sendall(b"x" * size)
                answer = b""
                while not answer.endswith(f"\r\n\r\n{size}".encode()):
                    answer += connection.recv(4096)
                yield size

    async def measure(client, limited):
        async with limited_server(limited, echo) as address:
            found = await asyncio.to_thread(lambda: list(client(address)))
            await asyncio.sleep(0.1)
            return found

    assert asyncio.run(measure(by_http_client, protocol(ServerLimits(connections=1)))) == list(sizes)
    assert asyncio.run(measure(by_httpx, protocol(ServerLimits(connections=1)))) == list(sizes)
    assert asyncio.run(measure(by_waiting, protocol(ServerLimits(connections=1)))) == list(sizes[1:])


def test_bodies_of_one_client_are_bounded_and_released():
    """Their bytes are released however a request ends: answered, abandoned, rejected or timed out."""
    limits, size = ServerLimits(body_bytes=1000, io_timeout=2), 1000
    guarded = middleware.RequestGuard(echo, ServerSettings(limits=limits), Metrics(), frozenset())
    guarded.bodies = middleware.BodyMemory(middleware.BODIES * size)  # less than a server has

    async def measure():
        async with limited_server(protocol(limits), guarded) as address:
            held = [await asyncio.open_connection(*address) for _ in range(20)]
            for _, writer in held:
                writer.write(wire.head(COMPLETIONS, None, size) + b"x" * (size - 1))
            await asyncio.sleep(0.5)
            bytes_held = guarded.bodies.total
            reader, other = await asyncio.open_connection(*address, local_addr=("127.0.0.2", 0))
            other.write(wire.head(COMPLETIONS, None, size) + b"x" * size)
            answers = [await reader.read()]
            held[0][1].write(b"x")
            held[1][1].close()
            chunked = {"Transfer-Encoding": "chunked"}
            large, writer = await asyncio.open_connection(*address, local_addr=("127.0.0.3", 0))
            writer.write(wire.head(COMPLETIONS, None, None, chunked) + b"1f4\r\n" + b"x" * 500 + b"\r\n" + b"3e8\r\n")
            await asyncio.sleep(0.2)
            writer.write(b"x" * 1000 + b"\r\n")
            answers.append(await large.read())
            answers += await asyncio.gather(*(each.read() for each, _ in (held[0], *held[2:])))
            for each in (other, writer, *(each for _, each in held)):
                each.close()
            return bytes_held, answers

    bytes_held, answers = asyncio.run(measure())
    statuses = [int(answer.split()[1]) for answer in answers]
    assert bytes_held == 16 * (size - 1) and statuses[:3] == [200, 413, 200]
    assert statuses.count(503) == 4 and statuses.count(408) == 14
    assert all(b"retry-after: 1" in answer.lower() for answer in answers if b" 503 " in answer.splitlines()[0])
    assert guarded.bodies.total == 0 and not guarded.bodies.per_client


def test_incomplete_heads_are_dropped_and_others_are_served(server):
    """There are more connections than the server may open files, and none sends a complete head."""
    expected, written = text(ask(server, short())), server.log.stat().st_size
    head = wire.head(COMPLETIONS, BAD, 10)
    with few_files(server.process.pid, FILES), contextlib.ExitStack() as stack:
        connections = [stack.enter_context(wire.connect(server.url)) for _ in range(FILES + 20)]
        for connection, length in zip(connections, itertools.cycle((0, 20, 60, len(head) - 1))):
            connection.sendall(head[:length])
        assert text(ask(server, short())) == expected
        assert all(is_closed(connection, PATIENCE) for connection in connections)
    assert server.log.stat().st_size < written + LOG_BYTES
    assert_nothing_left(server)


def test_a_head_sent_byte_by_byte_is_dropped(server):
    head = wire.head(COMPLETIONS, BAD, 10)
    with wire.connect(server.url) as connection:
        for byte in head * 100:
            with contextlib.suppress(OSError):
                connection.send(bytes([byte]) if byte not in b"\r\n" else b"x")
            if is_closed(connection, 0.2):
                return
    raise AssertionError("the head was read for minutes")


def test_clients_that_hang_up_at_any_point_leave_nothing(server):
    content = wire.encode(short(stream=True))
    whole = wire.head(COMPLETIONS, BAD, len(content)) + content
    files = processes.open_files(server.process.pid)
    with bystanders(server):
        for length in range(1, len(whole), 17):
            connection = wire.connect(server.url)
            connection.sendall(whole[:length])
            wire.abandon(connection) if length % 2 else connection.close()
    wait_until(lambda: processes.open_files(server.process.pid) <= files + 2)


def test_a_non_ascii_key_works_or_is_rejected_at_start(served_model, monkeypatch):
    key = "schlüssel"
    monkeypatch.setenv("GESSO_API_KEYS", key)
    try:
        keys = read_keys(None)
    except InputError as error:
        assert "ASCII" in str(error)
        return
    app = create_app(ServerSettings(engine=EngineSettings(model=str(served_model)), keys=keys))
    client = TestClient(app)  # not started: listing models needs no engine
    answer = client.get("/v1/models", headers={"Authorization": f"Bearer {key}".encode()})
    assert answer.status_code == 200


heads = st.lists(
    st.sampled_from([b"GET ", b"POST ", b"/health ", b"/v1/completions ", b"HTTP/1.1\r\n", b"HTTP/9.9\r\n", b"\r\n"])
    | st.sampled_from([b"Host: 127.0.0.1\r\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b": \r\n"])
    | st.sampled_from([b"Transfer-Encoding: chunked\r\n", b"ffffffffffffffff\r\n", b"Expect: 100-continue\r\n"])
    | st.sampled_from([b"Authorization: Bearer bad\r\n", b"Content-Length: <long>\r\n", b"<long>"])
    | st.binary(max_size=40),
    max_size=12,
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(parts=heads, reset=st.booleans())
def test_no_bytes_on_a_connection_cause_a_server_error(server, parts, reset):
    connection = wire.connect(server.url)
    try:
        for part in parts:
            connection.sendall(part.replace(b"<long>", b"9" * 70_000))  # beyond the limit of a head
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(PATIENCE)
        answer = connection.recv(65536)
        assert not answer.startswith(b"HTTP/1.1 5"), answer[:200]
    except TimeoutError:
        raise AssertionError("the server neither answered nor closed the connection") from None
    except OSError:
        pass  # already closed by the server
    finally:
        wire.abandon(connection) if reset else connection.close()


headers = st.dictionaries(
    st.sampled_from(["Authorization", "Content-Type", "X-Request-Id", "Host", "Accept", "Cookie", "X-Forwarded-For"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=300).map(str.strip),
    max_size=5,
)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(extra=headers)
def test_no_header_causes_a_server_error(server, extra):
    answer = wire.ask(server.url, GOOD, "/tokenize", {"prompt": "x"}, extra=extra)
    assert answer.status == 200 or 400 <= answer.status < 500, (extra, answer.status, answer.reason)


def test_these_attacks_leave_nothing(server):
    with bystanders(server):
        pass
