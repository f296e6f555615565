"""Fetch images from other servers: `gesso serve --allow-remote-images`.

A client chooses the URL, so a request could reach services that only this machine can reach. Therefore

- only public addresses are connected to. A host name is resolved once, and the connection goes to the address that was
  checked: a name that resolves differently the next time (DNS rebinding) gains nothing. TLS certificates are verified
  for the host name,
- every redirect is checked in the same way,
- proxies of the environment are not used, and a URL has no credentials,
- time, size and the number of redirects are limited, and compressed answers are refused.

This runs in a child process of the request reader, which is killed when its client leaves.
"""

import http.client
import ipaddress
import signal
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import gesso
from gesso.checks import shown
from gesso.errors import InputError
from gesso.images.read import MAX_BYTES
from gesso.serve.public_addresses import is_public

SECONDS = 10.0  # for all images of a request
REDIRECTS = 3
URL_CHARACTERS = 4096
PORTS = {"http": (80,), "https": (443,)}
PART = 1 << 16  # bytes read at once
HEADERS = {
    "User-Agent": f"gesso/{gesso.__version__}",
    "Accept": "image/*",
    "Accept-Encoding": "identity",
    "Connection": "close",
}
MOVED = (301, 302, 303, 307, 308)
SAFE = "%/:=&?~#+!$,;'@()*[]"  # characters of a path or a query that stay as they are


@dataclass(frozen=True)
class RemoteImage:
    """A URL to fetch, and the path of its field for errors."""

    url: str
    where: str


class TimeOver(Exception):
    """The time for all images is over. Not an OSError, after which the next address of a host would be tried."""


def fetch_all(images: Sequence[RemoteImage], limit: int) -> list[bytes]:
    """Return the contents of all images, of `limit` bytes together at most. Errors begin with the field."""
    contents: list[bytes] = []
    with _deadline(SECONDS):
        for image in images:
            try:
                contents.append(fetch(image.url))
            except TimeOver:
                raise InputError(
                    f"{image.where}: the images did not arrive within {SECONDS:g} s; send them as data: URLs"
                ) from None
            except InputError as error:
                raise InputError(f"{image.where}: {error}") from None
            if sum(map(len, contents)) > limit:
                raise InputError(f"{image.where}: the images have more than {limit:,} bytes together; send fewer")
    return contents


def fetch(url: str) -> bytes:
    """Return the contents of a URL."""
    for _ in range(REDIRECTS + 1):
        parts = _checked(url)
        with _answer(parts) as answer:
            if answer.status not in MOVED:
                return _contents(answer)
            target = urljoin(url, answer.headers.get("Location") or "")
        if parts.scheme == "https" and not target.lower().startswith("https:"):
            raise InputError("the server redirects from https to another scheme; give the URL of the image itself")
        url = target
    raise InputError(f"more than {REDIRECTS} redirects; give the URL of the image itself")


def _checked(url: str) -> SplitResult:
    """Return the parts of a URL that may be fetched."""
    if len(url) > URL_CHARACTERS:
        raise InputError(f"the URL has more than {URL_CHARACTERS:,} characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"the URL cannot be read: {error}") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise InputError(f"expected a URL like https://host/image.png, got {shown(url)}")
    if "@" in parts.netloc:
        raise InputError("the URL has a user name or a password; only public images are fetched")
    if port is not None and port not in PORTS[parts.scheme]:
        raise InputError(f"port {port} is not allowed; images are fetched from the usual port of {parts.scheme}")
    return parts


@contextmanager
def _answer(parts: SplitResult) -> "Iterator[http.client.HTTPResponse]":
    """Send a request to a public address of a host, and yield the answer without its contents."""
    secure = parts.scheme == "https"
    host, port = str(parts.hostname), parts.port or PORTS[parts.scheme][0]
    path = quote(parts.path or "/", SAFE) + (f"?{quote(parts.query, SAFE)}" if parts.query else "")
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(host, port)
    try:
        connection.sock = _connected(host, port)
        if secure:
            connection.sock = _tls().wrap_socket(connection.sock, server_hostname=host)
        connection.request("GET", path, headers=HEADERS)
        with connection.getresponse() as answer:  # which holds the connection now
            yield answer
    except ssl.SSLError as error:
        raise InputError(f"no secure connection to {host[:100]!r}: {error.reason or 'TLS failed'}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: a name that cannot be encoded
        if isinstance(error, InputError):
            raise
        raise InputError(f"the image cannot be fetched from {host[:100]!r} ({type(error).__name__})") from None
    finally:
        connection.close()


def _connected(host: str, port: int) -> socket.socket:
    """Connect to the first public address of a host that answers."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        addresses = []
    public = [each for each in addresses if is_public(ipaddress.ip_address(str(each[4][0]).partition("%")[0]))]
    if not public:  # one message for both reasons, so that it reveals no names of a private network
        raise InputError(f"no public address is known for {host[:100]!r}; private addresses are not allowed")
    for index, (family, kind, protocol, _, address) in enumerate(public):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(SECONDS / 2)
            connection.connect(address)
            return connection
        except OSError:
            connection.close()
            if index == len(public) - 1:
                raise
    raise AssertionError("the loop returns or raises")


def _contents(answer: http.client.HTTPResponse) -> bytes:
    if answer.status != 200:
        raise InputError(f"the server of the image answered with status {answer.status}, expected 200")
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InputError("the server of the image compressed its answer, which was not asked for")
    contents = bytearray()
    while part := answer.read1(PART):
        contents += part
        if len(contents) > MAX_BYTES:
            raise InputError(f"the file has more than {MAX_BYTES:,} bytes; make the picture smaller")
    if answer.length:
        raise InputError("the connection ended before the whole file had arrived; try again")
    return bytes(contents)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise TimeOver in this thread when the time is over: a server may send one byte per second."""

    def end(*_: Any) -> None:
        raise TimeOver

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
