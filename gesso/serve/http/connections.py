"""Limits on connections: how long a request head may take, and how many connections may be open.

uvicorn limits neither. Without the first, a client that opens connections and never completes a request keeps them for
ever; without the second, it takes all file descriptors, and then nobody can connect. Beyond the limit, the peer address
with the most connections loses one.
"""

import asyncio
import logging
import resource
from collections import Counter
from itertools import chain
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from gesso.serve.settings import Limits

logger = logging.getLogger("gesso.serve")

RESERVED = 128  # file descriptors for pipes, children, files and connections that are being accepted
ACCEPTED_AT_ONCE = 32  # asyncio accepts so many connections before it looks at any


def raise_file_limit(wanted: int) -> int:
    """Raise this process's limit on open files as far as needed and allowed; return the connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + RESERVED:
        soft = wanted + RESERVED if hard == resource.RLIM_INFINITY else min(hard, wanted + RESERVED)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(soft // 4, soft - RESERVED))


class Connection(H11Protocol):
    """uvicorn's HTTP protocol with limits; `protocol` makes a subclass per server, which has the shared state."""

    limits: ClassVar[Limits]
    most: ClassVar[int]
    open: "ClassVar[dict[Connection, None]]"  # oldest first
    waiting: "ClassVar[dict[Connection, None]]"  # those without a whole request, oldest first
    per_address: ClassVar[Counter[str]]  # open connections
    exhausted: ClassVar[float] = 0.0  # when the system last had no file descriptor for a connection

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
            # Pipelining is not supported: uvicorn stops reading here, and would not notice that the client leaves.
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._busy and self in self.open:
            self._await_head(self.config.timeout_keep_alive + self.limits.head_timeout)

    @classmethod
    def on_loop_error(cls, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Make room when the system has no file descriptor for a new connection; asyncio tries again in a second.

        It reports the error once for each connection that it wanted to accept, with a traceback.
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

        It is the one on which no whole request has come for longest; if there is none, the oldest one.
        """
        most = max(cls.per_address.values())
        connection = next(each for each in chain(cls.waiting, cls.open) if cls.per_address[each.address] == most)
        connection._forget()  # here, because it is lost only in the loop's next round
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


def protocol(limits: Limits) -> type[Connection]:
    shared = {"limits": limits, "most": raise_file_limit(limits.connections)}
    return type("LimitedConnection", (Connection,), shared | {"open": {}, "waiting": {}, "per_address": Counter()})
