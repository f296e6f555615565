"""Limits on connections: how long a request head may take, and how many connections may be open.

uvicorn limits neither. Without the first limit, a client that never completes a request keeps its connections forever.
Without the second, one client can take all file descriptors, and nobody else can connect. Beyond the limit, one
connection of the peer address with the most connections is closed.
"""

import asyncio
import logging
import resource
from collections import Counter
from itertools import chain
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from gesso.serve.settings import ServerLimits

logger = logging.getLogger("gesso.serve")

RESERVED = 128  # file descriptors for pipes, children, files and connections that are being accepted
ACCEPTED_AT_ONCE = 32  # connections that asyncio accepts before it handles any of them


def raise_file_limit(wanted: int) -> int:
    """Raise this process's limit on open files as far as needed and allowed. Return the connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + RESERVED:
        soft = wanted + RESERVED if hard == resource.RLIM_INFINITY else min(hard, wanted + RESERVED)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(soft // 4, soft - RESERVED))


class Connection(H11Protocol):
    """uvicorn's HTTP protocol with limits. `protocol` makes a subclass per server, which holds the shared state."""

    limits: ClassVar[ServerLimits]
    most: ClassVar[int]
    open: "ClassVar[dict[Connection, None]]"  # oldest first
    waiting: "ClassVar[dict[Connection, None]]"  # without a complete request, oldest first
    per_address: ClassVar[Counter[str]]  # open connections
    exhausted: ClassVar[float] = 0.0  # time at which the system last ran out of file descriptors

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.open[self] = None
        self.per_address[self.address] += 1
        self._await_head(self.limits.head_timeout)
        if len(self.open) > self.most:
            self._evict()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._busy:
            return
        self._stop_deadline()
        if self.cycle.more_body:
            return
        self.waiting.pop(self, None)
        if self.conn.trailing_data[0]:
            # Pipelining is not supported: uvicorn stops reading here and would miss a disconnect.
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._busy and self in self.open:
            self._await_head(self.config.timeout_keep_alive + self.limits.head_timeout)

    @classmethod
    def on_loop_error(cls, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Close connections when no file descriptor is left for a new one. asyncio tries again after a second.

        asyncio reports the error once per connection it could not accept, so repeated reports are ignored.
        """
        if "socket.accept()" not in context.get("message", ""):
            loop.default_exception_handler(context)
            return
        if loop.time() < cls.exhausted + 1:
            return
        cls.exhausted = loop.time()
        count = min(len(cls.waiting), ACCEPTED_AT_ONCE)
        logger.error("out of file descriptors", extra={"fields": {"open": len(cls.open), "closed": count}})
        for _ in range(count):
            cls._evict()

    @classmethod
    def _evict(cls) -> None:
        """Close a connection of the address that has the most.

        Choose the one that has waited longest for a complete request. If none waits, choose the oldest.
        """
        most = max(cls.per_address.values())
        connection = next(each for each in chain(cls.waiting, cls.open) if cls.per_address[each.address] == most)
        connection._forget()  # now: connection_lost runs only in the loop's next iteration
        connection.transport.abort()

    @property
    def address(self) -> str:
        return self.client[0] if self.client else "local"

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self, seconds: float) -> None:
        self._stop_deadline()
        self.waiting[self] = None
        self.deadline = self.loop.call_later(seconds, self.transport.abort)

    def _forget(self) -> None:
        self._stop_deadline()
        self.waiting.pop(self, None)
        if self in self.open:
            del self.open[self]
            self.per_address[self.address] -= 1
            if not self.per_address[self.address]:
                del self.per_address[self.address]

    def _stop_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


def protocol(limits: ServerLimits) -> type[Connection]:
    """Return a subclass of `Connection` with the limits and the shared state of one server."""
    shared = {"limits": limits, "most": raise_file_limit(limits.connections)}
    return type("LimitedConnection", (Connection,), shared | {"open": {}, "waiting": {}, "per_address": Counter()})
