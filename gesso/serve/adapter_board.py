"""The adapters that all replicas on a Ray cluster serve.

A request reaches any replica, so an adapter is served once every replica has it. The board has the table of adapters.
The follower of each replica (`adapter_follower`) waits here for a newer table, applies it, and reports. Changes are
made one after another. `ray` runs the board; this file imports no Ray.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from gesso.serve.adapters import adapter_exists, adapter_not_found
from gesso.serve.errors import ApiError

BEAT_SECONDS = 2.0  # between two calls of a follower, at most


@dataclass(frozen=True)
class AdapterDirectories:
    version: int
    adapters: Mapping[str, str]  # directory by name


@dataclass(frozen=True)
class ReplicaReport:
    """The table that a replica has applied, and why it could not load one of its adapters."""

    replica: str
    table: AdapterDirectories
    failure: ApiError | None = None


class AdapterBoard:
    beat_seconds: ClassVar[float] = BEAT_SECONDS
    # After these seconds, no change waits for a replica. It catches up when it calls again.
    silent_seconds: ClassVar[float] = 10.0

    def __init__(self, adapters: Mapping[str, str]) -> None:
        """Start with the adapters that each replica loads by itself."""
        self.table = AdapterDirectories(1, adapters)
        self.reports: dict[str, ReplicaReport] = {}  # by replica
        self.called_at: dict[str, float] = {}  # time of the last call, by replica
        self.changing, self.published = asyncio.Lock(), asyncio.Condition()

    # --- replicas ---------------------------------------------------------------------------------------------------

    async def follow(self, report: ReplicaReport) -> AdapterDirectories:
        """Take a report. Return the table as soon as it is newer than the replica's, or after `beat_seconds`."""
        if report.table.version > self.table.version:  # this board has replaced one that died
            self.table = report.table
        self.reports[report.replica] = report
        await self.beat(report.replica)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.beat_seconds), self.published:
                await self.published.wait_for(lambda: self.table.version > report.table.version)
        return self.table

    async def beat(self, replica: str) -> None:
        """Note that a replica lives, which is applying a table."""
        self.called_at[replica] = time.monotonic()

    # --- changes ----------------------------------------------------------------------------------------------------

    async def load(self, name: str, directory: str) -> ApiError | None:
        """Load an adapter on all replicas. If one of them cannot, return its error, and none serves the adapter."""
        return await asyncio.shield(asyncio.create_task(self._load(name, directory)))  # even if the client leaves

    async def unload(self, name: str) -> ApiError | None:
        """Unload an adapter on all replicas."""
        return await asyncio.shield(asyncio.create_task(self._unload(name)))

    async def _load(self, name: str, directory: str) -> ApiError | None:
        async with self.changing:
            before = self.table.adapters
            if name in before:
                return adapter_exists(name)
            failure = await self._publish({**before, name: directory})
            if failure is not None:
                await self._publish(before)
            return failure

    async def _unload(self, name: str) -> ApiError | None:
        async with self.changing:
            if name not in self.table.adapters:
                return adapter_not_found(name, self.table.adapters)
            await self._publish({other: path for other, path in self.table.adapters.items() if other != name})
            return None

    async def _publish(self, adapters: Mapping[str, str]) -> ApiError | None:
        """Publish a table, wait until every replica has applied it, and return an error of one of them."""
        version = self.table.version + 1
        self.table = AdapterDirectories(version, adapters)
        async with self.published:
            self.published.notify_all()
        while any(report.table.version < version for report in self._reports()):
            await asyncio.sleep(0.02)
        failures = [report.failure for report in self._reports() if report.failure is not None]
        return failures[0] if failures else None

    def _reports(self) -> list[ReplicaReport]:
        """Return the last reports of the replicas that have called lately, and forget the others."""
        oldest = time.monotonic() - self.silent_seconds
        self.called_at = {replica: at for replica, at in self.called_at.items() if at > oldest}
        self.reports = {replica: self.reports[replica] for replica in self.called_at if replica in self.reports}
        return list(self.reports.values())
