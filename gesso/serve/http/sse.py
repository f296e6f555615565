"""Server-sent events."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gesso.serve.errors import ApiError
from gesso.serve.http.disconnect import ClientDisconnected, cancel_on_disconnect

DONE = b"data: [DONE]\n\n"
EVENTS, LINES = "text/event-stream", "application/x-ndjson"  # media types of streams


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    return event_of_json(json.dumps(data, separators=(",", ":")).encode(), name)


def event_of_json(data: bytes, name: str | None = None) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return b"%sdata: %s\n\n" % (head, data)


class EventStream(Response):
    def __init__(
        self, events: AsyncGenerator[bytes], at_end: Callable[[bool], None], media_type: str, headers: Mapping[str, str]
    ) -> None:
        """Send `events`. `at_end` is called once, with whether the client left, and even if no event was sent."""
        self.events, self.at_end, self.media_type = events, at_end, media_type
        self.status_code, self.background = 200, None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client_left = False
        try:
            await cancel_on_disconnect(receive, self._send_events(send))
        except ClientDisconnected:
            client_left = True
        except TimeoutError:  # of a send: the client has stopped reading
            client_left = True
            raise
        finally:
            self.at_end(client_left)
            await self.events.aclose()

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for part in self.events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except ApiError as error:  # the status has been sent, so the error is the last event
            await send({"type": "http.response.body", "body": event(error.body), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
