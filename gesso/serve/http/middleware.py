"""Middleware for every request: id, log line and metrics; host and key checks; limits on size and time.

The time limits apply to clients that send a body, or read an answer, too slowly.
"""

import asyncio
import logging
import re
import time
import uuid
from collections import Counter
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gesso.serve.errors import ApiError
from gesso.serve.http.disconnect import CLIENT_LEFT
from gesso.serve.http.error_handlers import internal_error, respond
from gesso.serve.http.studio_routes import PREFIX
from gesso.serve.keys import Keys
from gesso.serve.metrics import Metrics
from gesso.serve.settings import ServerSettings

logger = logging.getLogger("gesso.serve")

# These need no key: the state of the server, and the files of the studio, which hold no secret.
OPEN_PATHS = ("/health", "/ready", "/", "/docs", "/openapi.json")
PROBES = ("/health", "/ready")  # not logged while they succeed, which is several times per minute for ever
# All bodies in memory together may have as many bytes as this number of bodies of the largest size without images, and
# at least LEAST_BODIES_BYTES.
BODIES = 32
LEAST_BODIES_BYTES = 2**28
IMAGE_BODIES = 8  # if the model sees images, this number of images of the largest size is added
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class RequestGuard:
    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, paths: frozenset[str]) -> None:
        self.app, self.settings, self.metrics, self.paths = app, settings, metrics, paths
        self.keys = Keys(settings.keys)
        images = IMAGE_BODIES * settings.limits.image_bytes if settings.images else 0
        self.bodies = BodyMemory(max(LEAST_BODIES_BYTES, BODIES * settings.limits.body_bytes) + images)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, began = Headers(scope=scope), time.monotonic()
        given = headers.get("x-request-id", "")
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        state["log"] = log = {"request_id": request_id, "method": scope["method"], "path": scope["path"][:200]}
        status = CLIENT_LEFT  # replaced when a status is sent

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            async with asyncio.timeout(self.settings.limits.io_timeout):
                await send(message)

        try:
            state["client"] = log["client"] = client = self._identify(scope, headers)
            state["body"] = body = LimitedBody(receive, self.settings, self.bodies, client)
            try:
                await self.app(scope, body.receive, answer)
            finally:
                body.release()
        except ApiError as error:
            log.update(error.log_fields)
            await respond(error, scope["path"])(scope, receive, answer)
        except TimeoutError:  # of a send: the client has stopped reading, and returning closes the connection
            status = CLIENT_LEFT
        except Exception:
            logger.exception("request failed", extra={"fields": log})
            if status != CLIENT_LEFT:  # the answer has begun, and only closing the connection can end it
                status = 500
                raise
            # Answered here: Starlette's own answer would have neither the request id nor the headers for pages.
            await respond(internal_error(), scope["path"])(scope, receive, answer)
        finally:
            seconds = time.monotonic() - began
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            if status != 200 or scope["path"] not in PROBES:
                logger.info("request", extra={"fields": {**log, "status": status, "ms": round(1000 * seconds, 1)}})

    def _identify(self, scope: Scope, headers: Headers) -> str:
        """Return the client's name for fair queueing: its key's name, or its address. Reject clients without access."""
        address = scope["client"][0] if scope.get("client") else "local"
        host = re.sub(r":\d*$", "", headers.get("host", ""))
        if self.settings.hosts is not None and host not in self.settings.hosts:
            # A web page can direct its visitors' browsers here under its own name (DNS rebinding).
            raise ApiError(403, f"this server does not answer to the host name {host[:100]!r}", code="unknown_host")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self.settings.body_bytes:
            raise body_too_large(self.settings.body_bytes)
        if not self.keys or scope["path"] in OPEN_PATHS or scope["path"].startswith(PREFIX):
            return address
        sent = dict(scope["headers"])
        holder = self.keys.holder(sent.get(b"authorization") or b"Bearer " + sent.get(b"x-api-key", b""))
        if holder is None:
            message = "send a valid API key: Authorization: Bearer KEY, or x-api-key: KEY"
            raise ApiError(401, message, code="invalid_api_key")
        return holder


class BodyMemory:
    """Bytes of all request bodies in memory, from the first byte received until the request is answered.

    A client may hold at most as many bytes as are free, so a client that takes all it can leaves the same to others.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.total = limit, 0
        self.per_client: Counter[str] = Counter()

    def take(self, client: str, size: int) -> None:
        if self.per_client[client] + size > self.limit - self.total - size:
            message = "the bodies of current requests have too many bytes; try again when some have been answered"
            raise ApiError(503, message, code="bodies_too_large", retry_after=1)
        self.total += size
        self.per_client[client] += size

    def release(self, client: str, size: int) -> None:
        self.total -= size
        self.per_client[client] -= size
        if not self.per_client[client]:
            del self.per_client[client]


class LimitedBody:
    """`receive` with limits on the body's size, on the time it takes, and on the size of all bodies together."""

    def __init__(self, receive: Receive, settings: ServerSettings, bodies: BodyMemory, client: str) -> None:
        self._receive, self._most, self._bodies, self._client = receive, settings.body_bytes, bodies, client
        self._size, self._complete, self._seconds = 0, False, settings.limits.io_timeout
        self._deadline = asyncio.get_running_loop().time() + self._seconds

    async def receive(self) -> Message:
        if self._complete:  # only a disconnect can still come
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {self._seconds:g} s") from None
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            if self._size + size > self._most:
                raise body_too_large(self._most)
            self.hold(size)
            self._complete = not message.get("more_body", False)
        return message

    def hold(self, size: int) -> None:
        """Count bytes that this request keeps in memory: its body, or images that were prepared from it."""
        self._bodies.take(self._client, size)
        self._size += size

    def release(self) -> None:
        self._bodies.release(self._client, self._size)
        self._size = 0


def body_too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body exceeds the limit of {limit} bytes; send a smaller one", code="body_too_large")


def add_to_log(scope_state: Any, **fields: Any) -> None:
    """Add fields to a request's log line. Never add text that a user wrote."""
    scope_state.log.update(fields)
