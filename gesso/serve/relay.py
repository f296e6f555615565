"""Forward an output of this process without ever waiting for its reader.

A pipe whose reader stops blocks every process that writes to it: the event loop at its next log line, the engine at its
next warning. So the file descriptor is replaced by a pipe that a thread of this process empties at once. Another thread
writes the lines to the original file. Lines that do not fit between the two are dropped. Child processes inherit the
pipe, and native libraries write to it too.
"""

import os
import queue
import threading
from collections.abc import Callable

LINES = 4096  # that wait for the reader
LINE_BYTES = 8192  # longer lines are forwarded in parts
FLUSH_SECONDS = 2.0  # at the end of the process


class Relay:
    def __init__(self, descriptor: int, on_drop: Callable[[], None], lines: int = LINES) -> None:
        """Take over a file descriptor. `on_drop` is called in a thread of the relay, once per lost line."""
        self.descriptor, self.on_drop = descriptor, on_drop
        self._waiting: queue.Queue[bytes | None] = queue.Queue(lines)
        self._target = os.dup(descriptor)
        self._source, entrance = os.pipe()
        os.dup2(entrance, descriptor)
        os.close(entrance)
        self._writer = threading.Thread(target=self._write, daemon=True, name=f"relay-{descriptor}-writer")
        self._writer.start()
        threading.Thread(target=self._read, daemon=True, name=f"relay-{descriptor}-reader").start()

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write the lines that wait, for a limited time, and restore the file descriptor.

        If the reader does not take them in that time, later output is discarded: it would block.
        """
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.descriptor)  # closes the last end of the pipe, unless a child process has another
        os.close(nowhere)
        self._writer.join(seconds)
        if not self._waiting.unfinished_tasks:
            os.dup2(self._target, self.descriptor)

    def _read(self) -> None:
        rest = b""
        while part := os.read(self._source, LINE_BYTES):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._put(line + b"\n")
            if len(rest) >= LINE_BYTES:
                self._put(rest)
                rest = b""
        if rest:
            self._put(rest)
        os.close(self._source)
        self._waiting.put(None)

    def _put(self, line: bytes) -> None:
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self.on_drop()

    def _write(self) -> None:
        while (line := self._waiting.get()) is not None:
            try:
                _write_all(self._target, line)
            except OSError:  # the reader has gone, or the disk is full
                self.on_drop()
            self._waiting.task_done()
        self._waiting.task_done()


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
