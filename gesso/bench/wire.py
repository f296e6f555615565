"""HTTP written by hand: requests that a client can leave incomplete, abandon, or wait for up to a deadline."""

import contextlib
import json
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gesso.errors import InputError

Body = bytes | dict[str, Any]
COMPLETIONS, CHAT, EDITS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/edits", "/v1/responses"
UNANSWERED = 0  # the status of a request that got no answer


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise InputError(f"the address of a server is like http://127.0.0.1:8000, got {url!r}")
    return parts.hostname, parts.port or 80


@dataclass(frozen=True)
class Answer:
    status: int  # UNANSWERED: see `reason`
    content: bytes
    seconds: float
    reason: str = ""

    @property
    def json(self) -> Any:
        """The body; ValueError for anything that is not JSON, which includes NaN and Infinity."""
        return json.loads(self.content, parse_constant=_not_json)

    @property
    def message(self) -> str:
        """The error message, or an empty string."""
        if self.status == UNANSWERED:
            return self.reason
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(self.json["error"]["message"])
        return ""


def _not_json(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def head(path: str, key: str | None, length: int | None, extra: dict[str, str] | None = None) -> bytes:
    """Return a request head; with a body length it is a POST, without one a GET."""
    fields = {"Host": "127.0.0.1", "Content-Type": "application/json", "Connection": "close"}
    if key is not None:
        fields["Authorization"] = f"Bearer {key}"
    if length is not None:
        fields["Content-Length"] = str(length)
    fields |= extra or {}
    lines = [f"{'GET' if length is None else 'POST'} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def encode(body: Body) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def connect(url: str, timeout: float = 20) -> socket.socket:
    return socket.create_connection(address(url), timeout=timeout)


def send(url: str, key: str | None, path: str, body: Body, timeout: float = 20) -> socket.socket:
    """Send a complete request and return its connection, on which the answer is not read yet."""
    content = encode(body)
    connection = connect(url, timeout)
    try:
        connection.sendall(head(path, key, len(content)) + content)
    except BaseException:
        connection.close()
        raise
    return connection


def abandon(connection: socket.socket) -> None:
    """Close with a reset, like a client that crashed."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def ask(
    url: str,
    key: str | None,
    path: str,
    body: Body | None = None,
    *,
    timeout: float = 20,
    extra: dict[str, str] | None = None,
) -> Answer:
    """Send a request and read the answer to its end, for at most `timeout` seconds in all."""
    began = time.monotonic()
    content = None if body is None else encode(body)
    received = bytearray()
    try:
        with connect(url, timeout) as connection:
            connection.sendall(head(path, key, None if content is None else len(content), extra) + (content or b""))
            while True:
                connection.settimeout(max(0.01, began + timeout - time.monotonic()))
                part = connection.recv(1 << 16)
                if not part:
                    break
                received += part
    except OSError as error:
        reason = f"no answer within {timeout:.1f} s" if isinstance(error, TimeoutError) else str(error)
        # A server may refuse a body before it has read all of it; then the answer comes with a reset behind it.
        if isinstance(error, TimeoutError) or not received:
            return Answer(UNANSWERED, bytes(received), time.monotonic() - began, reason)
    return _parse(bytes(received), time.monotonic() - began)


def _parse(received: bytes, seconds: float) -> Answer:
    top, _, content = received.partition(b"\r\n\r\n")
    words = top.split(b"\r\n")[0].split()
    if len(words) < 2 or not words[1].isdigit():
        return Answer(UNANSWERED, received, seconds, "the connection closed without an answer")
    if b"transfer-encoding: chunked" in top.lower():
        content = _joined(content)
    return Answer(int(words[1]), content, seconds)


def _joined(chunked: bytes) -> bytes:
    parts = []
    while chunked:
        size, _, rest = chunked.partition(b"\r\n")
        length = int(size or b"0", 16)
        parts.append(rest[:length])
        chunked = rest[length + 2 :]
    return b"".join(parts)
