"""The adapters of a served model: which ones a request may name, and which ones the present engine has.

Adapters are loaded and unloaded while requests run. A request that was accepted keeps its adapter: an unloaded one
leaves the engine after its last request. The next engine gets all of them again.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gesso.serve.errors import ApiError
from gesso.serve.metrics import Metrics
from gesso.serve.wire import AdapterFailed, AdapterLoaded, LoadAdapter, ToEngine, UnloadAdapter

logger = logging.getLogger("gesso.serve")


@dataclass(frozen=True)
class Retired:
    """An adapter that was unloaded, and that accepted requests still use."""

    directory: str
    freed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class PendingLoad:
    """A client's request to load an adapter, until the engine has answered."""

    directory: str
    answer: "asyncio.Future[None]"


class ServedAdapters:
    def __init__(
        self, given: Mapping[str, str], most: int, metrics: Metrics, model: str, send: Callable[[ToEngine], None]
    ) -> None:
        self.served = dict(given)  # directory by name, of the adapters that a new request may name
        self.retired: dict[str, Retired] = {}
        self.loads: dict[str, PendingLoad] = {}
        self.attached: set[str] = set()  # in the present engine
        self.sent: set[str] = set()  # to the present engine, which has not answered yet
        self.has_engine = False
        self._given = set(given)  # an engine loads these before it is ready, unless they have been unloaded
        self._started: dict[str, str] = {}  # those of the present engine
        self._most, self._metrics, self._model, self._send = most, metrics, model, send

    # --- requests ---------------------------------------------------------------------------------------------------

    async def load(self, name: str, directory: str) -> None:
        """Load an adapter, which is served as soon as the engine has it. An error leaves everything as it was.

        If requests still use an unloaded adapter of this name, wait for their end.
        """
        while name in self.retired:
            await self.retired[name].freed.wait()
        if name in self.served or name in self.loads:
            raise adapter_exists(name)
        if len(self.served) + len(self.retired) + len(self.loads) >= self._most:
            message = f"this server has {self._most} adapters, its limit (--max-adapters); unload one first"
            raise ApiError(400, message, code="too_many_adapters")
        if not self.has_engine:
            raise ApiError(503, "the engine is not ready; try again later", retry_after=1)
        load = self.loads[name] = PendingLoad(directory, asyncio.get_running_loop().create_future())
        self._send_load(name, directory)
        await load.answer

    def unload(self, name: str) -> None:
        """Serve an adapter to no new request. The supervisor then calls `note_requests`, which frees it if unused."""
        if name not in self.served:
            raise adapter_not_found(name, self.served)
        self.retired[name] = Retired(self.served.pop(name))
        self._given.discard(name)
        self._log("adapter unloaded", name)

    def check(self, name: str | None) -> None:
        """Reject a new request with an adapter that has been unloaded since the request was prepared."""
        if name is not None and name not in self.served:
            raise ApiError(404, f"there is no model {name!r} any more", param="model", code="model_not_found")

    def note_requests(self, names: Iterable[str | None]) -> None:
        """Take note of the adapters of all waiting and running requests, and free the unloaded ones without any."""
        counts = Counter(names)
        for name in (*self.served, *self.retired):
            self._metrics.adapter_requests.labels(self._model, name).set(counts[name])
        for name in [name for name in self.retired if not counts[name] and name not in self.sent]:
            self.retired.pop(name).freed.set()
            self._metrics.adapter_requests.remove(self._model, name)
            if name in self.attached:
                self.attached.remove(name)
                self._send(UnloadAdapter(name))
        self._metrics.adapters.labels(self._model).set(len(self.served))

    # --- the engine -------------------------------------------------------------------------------------------------

    def engine_starts(self) -> dict[str, str]:
        """Return the directories of the adapters that a new engine loads before it is ready."""
        self._started = {name: directory for name, directory in self.served.items() if name in self._given}
        return self._started

    def engine_ready(self) -> None:
        """Give a new engine the adapters that the last one had. Requests for them wait."""
        wanted = self.served | {name: one.directory for name, one in self.retired.items()}
        self.has_engine, self.attached = True, self._started.keys() & wanted.keys()
        for name in self._started.keys() - wanted.keys():  # unloaded while the engine was loading
            self._send(UnloadAdapter(name))
        for name, directory in wanted.items():
            if name not in self.attached:
                self._send_load(name, directory)

    def engine_died(self) -> None:
        self.has_engine, self.attached, self.sent = False, set(), set()
        for name in list(self.loads):
            self._answer(name, ApiError(503, "the engine died while it loaded this adapter; try again", retry_after=1))

    def take(self, message: AdapterLoaded | AdapterFailed) -> str | None:
        """Take the engine's answer. Return the name of an adapter that the new engine cannot load again, or None."""
        name, load = message.name, self.loads.get(message.name)
        self.sent.discard(name)
        if isinstance(message, AdapterLoaded):
            self.attached.add(name)
            if load is not None:
                self.served[name] = load.directory
                self._answer(name, None)
            self._log("adapter loaded", name)
            return None
        if load is not None:
            self._answer(name, ApiError(400 if message.by_input else 500, message.message, param="lora_path"))
            return None
        self.served.pop(name, None)
        if (retired := self.retired.pop(name, None)) is not None:
            retired.freed.set()
        self._metrics.adapter_requests.remove(self._model, name)
        logger.error(
            "adapter lost", extra={"fields": {"model": self._model, "adapter": name, "reason": message.message}}
        )
        return name

    def _send_load(self, name: str, directory: str) -> None:
        self.sent.add(name)
        self._send(LoadAdapter(name, os.fsencode(directory)))

    def _answer(self, name: str, error: ApiError | None) -> None:
        answer = self.loads.pop(name).answer
        if answer.done():  # the client has left
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    def _log(self, event: str, name: str) -> None:
        logger.info(event, extra={"fields": {"model": self._model, "adapter": name}})


def adapter_exists(name: str) -> ApiError:
    message = f"there is already an adapter called {name!r}; unload it first, or use another name"
    return ApiError(400, message, param="lora_name", code="adapter_exists")


def adapter_not_found(name: str, loaded: Iterable[str]) -> ApiError:
    message = f"there is no adapter {name!r}; loaded are: {', '.join(loaded) or 'none'}"
    return ApiError(404, message, param="lora_name", code="adapter_not_found")
