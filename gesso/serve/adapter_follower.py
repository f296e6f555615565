"""The part of a replica that keeps its adapters equal to the board's table (`adapter_board`)."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import ClassVar, Protocol

from gesso.serve.adapter_board import BEAT_SECONDS, AdapterDirectories, ReplicaReport
from gesso.serve.adapter_files import find_adapter
from gesso.serve.errors import ApiError
from gesso.serve.supervisor import Supervisor

logger = logging.getLogger("gesso.serve")


class Board(Protocol):
    """An `AdapterBoard`, in another process. Its methods raise ConnectionError if it cannot be reached."""

    async def follow(self, report: ReplicaReport) -> AdapterDirectories: ...
    async def beat(self, replica: str) -> None: ...
    async def load(self, name: str, directory: str) -> ApiError | None: ...
    async def unload(self, name: str) -> ApiError | None: ...


class AdapterFollower:
    beat_seconds: ClassVar[float] = BEAT_SECONDS

    def __init__(self, board: Board, supervisor: Supervisor, root: str) -> None:
        """`root`: the directory whose adapters requests may load."""
        self.board, self.supervisor, self.root = board, supervisor, root
        self.replica = uuid.uuid4().hex
        self.table = AdapterDirectories(0, {})  # none has been applied
        self._task: asyncio.Task[None] | None = None

    @property
    def has_caught_up(self) -> bool:
        """Whether this replica may get requests: it has what the others have."""
        return self.table.version > 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    # --- requests of clients ----------------------------------------------------------------------------------------

    async def load(self, name: str, directory: str) -> None:
        """Load an adapter on all replicas."""
        await _checked(self.board.load(name, directory))

    async def unload(self, name: str) -> None:
        """Unload an adapter on all replicas."""
        await _checked(self.board.unload(name))

    # --- tables of the board ----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while not self.supervisor.adapters.has_engine:
            await asyncio.sleep(0.05)
        failure: ApiError | None = None
        while True:
            try:
                table = await self.board.follow(ReplicaReport(self.replica, self.table, failure))
            except ConnectionError as error:
                logger.warning("adapter board unreachable", extra={"fields": {"reason": str(error)[:200]}})
                await asyncio.sleep(self.beat_seconds)
                continue
            if table.version != self.table.version:
                failure = await self._apply(table)
                self.table = table

    async def _apply(self, table: AdapterDirectories) -> ApiError | None:
        """Apply a table, and meanwhile tell the board that this replica lives."""
        change = asyncio.create_task(self._change(table.adapters))
        try:
            while not (await asyncio.wait([change], timeout=self.beat_seconds))[0]:
                with suppress(ConnectionError):
                    await self.board.beat(self.replica)
            return change.result()
        finally:
            change.cancel()

    async def _change(self, adapters: Mapping[str, str]) -> ApiError | None:
        served = self.supervisor.adapters.served
        for name, directory in list(served.items()):
            if adapters.get(name) != directory:
                self.supervisor.unload_adapter(name)
        failure: ApiError | None = None
        for name, directory in adapters.items():
            if name in served:
                continue
            try:
                await self._load(name, directory)
            except ApiError as error:
                logger.error("adapter not loaded", extra={"fields": {"adapter": name, "reason": error.message}})
                failure = error
        return failure

    async def _load(self, name: str, directory: str) -> None:
        """Load an adapter, as soon as there is an engine."""
        await asyncio.to_thread(find_adapter, self.root, directory)  # the files of this machine, not of the client's
        while True:
            try:
                return await self.supervisor.adapters.load(name, directory)
            except ApiError as error:
                if error.status != 503:
                    raise
                await asyncio.sleep(1.0)


async def _checked(answer: Awaitable[ApiError | None]) -> None:
    try:
        error = await answer
    except ConnectionError:
        message = "the adapters of the replicas cannot be changed at the moment; try again later"
        raise ApiError(503, message, retry_after=1) from None
    if error is not None:
        raise error
