"""Keep the prepare process running, and begin its children.

The process sends heartbeats. If they stop, it is killed with its children and replaced, early enough for its successor
to be ready within `Limits.heartbeat`. A request is sent only to a child that has begun. If the process ends before
that, the request waits for the successor.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gesso.serve.errors import ApiError
from gesso.serve.keys import without_keys
from gesso.serve.settings import ServerSettings
from gesso.serve.wire import SIZE, ChildTask, FromChild, NeedsItems, StoredItems, frame, from_child, read_frame

logger = logging.getLogger("gesso.serve")

STARTS = 3  # failed starts in a row after which requests are rejected
START_SECONDS = 60.0  # for a request to wait for the process, which may start from a slow disk, and for a child
PAUSE_SECONDS = 30.0  # longest pause between two starts
ATTEMPTS = 2  # to begin a child for a request
RETRY_SECONDS = 2  # that clients are told to wait
HEARTBEATS = 4096  # received at once
State = Literal["loading", "ready", "stalled", "restarting"]
Fetch = Callable[[str | None, Sequence[str]], bytes]  # the stored conversation that a request continues


@dataclass(frozen=True)
class Child:
    """A process that waits for one task at the other end of its streams."""

    pid: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    control: socket.socket  # of the process that began it

    async def exchange(self, task: ChildTask, fetch: Fetch | None) -> FromChild:
        """Send a task and return its answer.

        Only the child parses the request, so it may ask for the stored conversation that the request continues.
        """
        self.writer.write(frame(task))
        answer = from_child.decode(await read_frame(self.reader))
        if fetch is not None and isinstance(answer, NeedsItems):
            self.writer.write(frame(StoredItems(fetch(answer.previous, answer.others))))
            answer = from_child.decode(await read_frame(self.reader))
        return answer

    def processor_seconds(self) -> float:
        """Return the processor time used so far, or 0 where the system does not tell."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return 0.0
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def disconnect(self) -> None:
        self.writer.transport.abort()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Reader:
    """The prepare process: started, watched and replaced."""

    def __init__(self, settings: Sequence[ServerSettings]) -> None:
        self.settings, self.heartbeat = settings, settings[0].limits.heartbeat
        self.state: State = "loading"
        self._control: socket.socket | None = None  # to the process, while it takes requests
        self._ready = asyncio.Event()  # set while there is a control
        self._heard_at = 0.0  # time of the last heartbeat
        self._failures = 0  # consecutive failed starts
        self._task: asyncio.Task[None] | None = None

    # --- the process ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_running(self) -> None:
        while True:
            try:
                code = await self._run_once()
                logger.error("prepare process died", extra={"fields": {"exit": code}})
            except Exception:  # no process or memory left, or a bug: neither may end this task
                logger.exception("prepare process failed")
            self.state = "restarting"
            self._failures += 1
            await asyncio.sleep(min(0.5 * self._failures, PAUSE_SECONDS))

    async def _run_once(self) -> int:
        """Run one process until it ends and return its exit status."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gesso.serve.prepare.process",
                json.dumps([each.to_json() for each in self.settings]),
                stdin=theirs.fileno(),
                start_new_session=True,  # its children belong to its process group and are killed with it
                env={**without_keys(os.environ), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            theirs.close()
            self._heard_at = time.monotonic() + START_SECONDS
            watchdog = asyncio.create_task(self._watch(process.pid))
            try:
                while await asyncio.get_running_loop().sock_recv(ours, HEARTBEATS):
                    self._note_heartbeat(ours)
                return await process.wait()
            finally:
                watchdog.cancel()
                self._lose(ours)
                _kill_group(process.pid)
                await process.wait()

    async def _watch(self, pid: int) -> None:
        """Kill a process that sends no heartbeat, and its children."""
        while True:
            await asyncio.sleep(min(1.0, self.heartbeat / 8))
            silent = time.monotonic() - self._heard_at
            if silent > self.heartbeat / 2:
                reason = f"no heartbeat for {silent:.1f} s"
                logger.error("prepare process killed", extra={"fields": {"reason": reason}})
                _kill_group(pid)
                return
            if silent > self.heartbeat / 3:
                self.state = "stalled"

    def _note_heartbeat(self, control: socket.socket) -> None:
        self._heard_at = time.monotonic()
        self._failures = 0
        self._control = control
        self._ready.set()
        self.state = "ready"

    def _lose(self, control: socket.socket) -> None:
        """Begin no more children over a connection, unless another heartbeat arrives over it."""
        if self._control is control:
            self._control = None
            self._ready.clear()
            self.state = "restarting"

    # --- children ---------------------------------------------------------------------------------------------------

    def is_alive(self, child: Child) -> bool:
        """Whether the process that began a child still runs. Its children are killed with it."""
        return self._control is child.control

    async def begin(self) -> Child:
        """Return a child that has begun, or raise a 503.

        Wait for the process while it starts. If it ends first, or is killed because it hangs, try again.
        """
        if self._failures >= STARTS:
            raise unavailable("the prepare process does not start; see the server's log")
        try:
            async with asyncio.timeout(START_SECONDS):
                for _ in range(ATTEMPTS):
                    await self._ready.wait()
                    child = await self._try_to_begin()
                    if child is not None:
                        return child
        except TimeoutError:
            raise unavailable("the prepare process has not started yet; try again later") from None
        raise unavailable("the prepare process was restarted; try again")

    async def _try_to_begin(self) -> Child | None:
        """Return a child that has begun, or None if the process ends before."""
        control = self._control
        assert control is not None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(control, [b"x"], [theirs.fileno()])
            except ConnectionError:
                ours.close()
                self._lose(control)
                return None
            except OSError as error:  # full, because the process hangs
                ours.close()
                raise unavailable("the prepare process takes no more requests; try again later") from error
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            (pid,) = SIZE.unpack(await reader.readexactly(SIZE.size))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()
            self._lose(control)
            return None
        except BaseException:
            writer.transport.abort()
            raise
        if not pid:
            writer.transport.abort()
            raise unavailable("the server is short of processes or memory; try again later")
        return Child(pid=pid, reader=reader, writer=writer, control=control)


def unavailable(message: str) -> ApiError:
    """Return the error of a request that the server, not its client, is to blame for."""
    return ApiError(503, message, retry_after=RETRY_SECONDS)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
