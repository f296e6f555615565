"""HTTP over plain sockets, for requests that a client leaves incomplete, abandons, or waits for up to a deadline."""

import contextlib
import json
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from gesso.bench.server import address

Body = bytes | dict[str, Any]
COMPLETIONS, CHAT, EDITS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/edits", "/v1/responses"
UNANSWERED = 0  # the status of a request that got no answer


@dataclass(frozen=True)
class Answer:
    status: int  # UNANSWERED: see `reason`
    content: bytes
    seconds: float
    reason: str = ""

    @property
    def json(self) -> Any:
        """Return the body. Raise ValueError if it is not JSON, or contains NaN or Infinity."""
        return json.loads(self.content, parse_constant=_not_json)

    @property
    def message(self) -> str:
        """Return the error message, or an empty string."""
        if self.status == UNANSWERED:
            return self.reason
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(self.json["error"]["message"])
        return ""


def _not_json(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def head(path: str, key: str | None, length: int | None, extra: dict[str, str] | None = None) -> bytes:
    """Return the head of a POST, or of a GET if `length` is None."""
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
    """Send a complete request. Return the connection with the answer still unread."""
    content = encode(body)
    connection = connect(url, timeout)
    try:
        connection.sendall(head(path, key, len(content)) + content)
    except BaseException:
        connection.close()
        raise
    return connection


def abandon(connection: socket.socket) -> None:
    """Close with a TCP reset, like a crashed client."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def ask(
    url: str,
    key: str | None,
    path: str,
    body: Body | None = None,
    *,
    timeout: float = 120,
    extra: dict[str, str] | None = None,
) -> Answer:
    """Send a request and read the whole answer, for at most `timeout` seconds."""
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
        # A server may reject a body before reading all of it; a reset then follows the answer.
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
