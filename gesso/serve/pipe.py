"""The engine process's end of the pipes: messages from the server on stdin, and events and heartbeats on stdout."""

import os
import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import IO

from msgspec.structs import replace

from gesso.serve.wire import (
    SIZE,
    FrameTooLarge,
    FromEngine,
    Heartbeat,
    RequestFailed,
    ToEngine,
    frame,
    size_of,
    to_engine,
)

Send = Callable[[FromEngine], None]
Delivery = ToEngine | Callable[[], None]  # a message, or a call from the side thread
Inbox = queue.SimpleQueue[Delivery]
BEAT_SECONDS = 1.0
EXIT_BROKEN = 3


def read(pipe: IO[bytes], inbox: Inbox) -> None:
    """Put messages into the inbox until the server is gone, and then end the process: nobody can read an answer."""
    try:
        while (message := _next_message(pipe)) is not None:
            inbox.put(message)
    except Exception:  # a bug of the server: without messages this process would wait forever
        traceback.print_exc()
        os._exit(EXIT_BROKEN)
    os._exit(0)


def _next_message(pipe: IO[bytes]) -> ToEngine | None:
    """Return the next message; None if the pipe ends, possibly within a message."""
    prefix = pipe.read(SIZE.size)
    if len(prefix) < SIZE.size:
        return None
    size = size_of(prefix)
    data = pipe.read(size)
    return None if len(data) < size else to_engine.decode(data)


class Pipe:
    """The pipe to the server. Several threads may send."""

    def __init__(self) -> None:
        self._pipe = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)  # keep stray prints out of the messages
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        try:
            data = frame(message)
        except FrameTooLarge as error:
            data = frame(RequestFailed(id=getattr(message, "id", 0), message=str(error), by_input=False))
        with self._lock:
            view = memoryview(data)
            while view:
                view = view[self._pipe.write(view) :]


def beat(send: Send, status: Callable[[], Heartbeat]) -> None:
    """Send a heartbeat once per second; `step_seconds` of the status is the time at which the current step began."""
    while True:
        now = status()
        send(replace(now, step_seconds=time.monotonic() - now.step_seconds if now.step_seconds else 0.0))
        time.sleep(BEAT_SECONDS)
