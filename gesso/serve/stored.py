"""Responses kept in memory, so that clients can continue a conversation by the id of its last response."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gesso.serve.errors import ApiError
from gesso.serve.settings import ServerLimits


@dataclass(frozen=True)
class StoredResponse:
    """A response and its conversation, as JSON. The two lists of items are one line each."""

    items: bytes  # the whole input, including that of earlier responses
    output: bytes
    body: bytes
    created_at: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        return len(self.items) + len(self.output) + len(self.body)


class ResponseStore:
    """Responses by client and id, within limits on their number, bytes and age.

    A response belongs to the client that made it; for others it does not exist. At a limit, the client that holds the
    most loses its oldest response, so no client can displace the responses of another that holds less.
    """

    def __init__(self, limits: ServerLimits, longest: int | None = None) -> None:
        """`longest`: the most bytes of a conversation that a request continues; by default those of a body."""
        self.limits, self.longest = limits, limits.body_bytes if longest is None else longest
        self._clients: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._bytes: Counter[str] = Counter()  # by client
        self._lock = threading.Lock()  # answers are formatted, and stored, in threads

    def put(self, client: str, id: str, response: StoredResponse) -> None:
        with self._lock:
            self._drop_expired()
            self._clients.setdefault(client, OrderedDict())[id] = response
            self._bytes[client] += response.size
            while sum(map(len, self._clients.values())) > self.limits.stored_responses:
                self._drop_oldest(max(self._clients, key=lambda each: len(self._clients[each])))
            while self._bytes.total() > self.limits.stored_bytes:
                self._drop_oldest(max(self._bytes, key=lambda each: self._bytes[each]))

    def get(self, client: str, id: str, *, param: str | None = None) -> StoredResponse:
        with self._lock:
            self._drop_expired()
            response = self._clients[client].get(id) if client in self._clients else None
        if response is None:
            raise self._not_found(id, param)
        return response

    def delete(self, client: str, id: str) -> None:
        with self._lock:
            if id not in self._clients.get(client, ()):
                raise self._not_found(id, None)
            self._drop(client, id)

    def fetch(self, client: str, previous: str | None, others: Sequence[str]) -> bytes:
        """Return lists of items, one per line: input and output of the previous response, then outputs of others."""
        lines = []
        if previous is not None:
            response = self.get(client, previous, param="previous_response_id")
            lines += [response.items, response.output]
        lines += [self.get(client, id, param="input").output for id in others]
        if sum(map(len, lines)) > self.longest:
            message = f"the stored conversation exceeds the limit of {self.longest} bytes; send a shorter one"
            raise ApiError(413, message, code="body_too_large")
        return b"\n".join(lines)

    def _not_found(self, id: str, param: str | None) -> ApiError:
        if self.limits.stored_responses:
            reason = "it has expired, was not stored, or belongs to another client"
        else:
            reason = "this server stores no responses"
        message = f"there is no response {id[:100]!r}: {reason}; send the whole conversation as input"
        code = "previous_response_not_found" if param == "previous_response_id" else "response_not_found"
        return ApiError(404, message, param=param, code=code)

    def _drop_expired(self) -> None:
        limit = time.monotonic() - self.limits.stored_seconds
        for client in list(self._clients):
            while (own := self._clients.get(client)) and next(iter(own.values())).created_at < limit:
                self._drop_oldest(client)

    def _drop_oldest(self, client: str) -> None:
        self._drop(client, next(iter(self._clients[client])))

    def _drop(self, client: str, id: str) -> None:
        responses = self._clients[client]
        self._bytes[client] -= responses.pop(id).size
        if not responses:
            del self._clients[client], self._bytes[client]
