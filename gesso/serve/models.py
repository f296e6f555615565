"""The models of a server: the main one, and bundled ones whose engines start with their first request."""

import dataclasses
from functools import partial

from msgspec.structs import replace

from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.source import locate
from gesso.serve.adapter_follower import AdapterFollower, Board
from gesso.serve.entry import ModelEntry, entry_of
from gesso.serve.errors import ApiError
from gesso.serve.jobs import CompiledRequest
from gesso.serve.metrics import Metrics
from gesso.serve.prepare.pool import PreparePool
from gesso.serve.settings import ServerSettings
from gesso.serve.stored import ResponseStore
from gesso.serve.supervisor import Supervisor
from gesso.serve.wire import ModelState, Prepared, Readiness, Reply


class ServedModel:
    def __init__(self, settings: ServerSettings, metrics: Metrics, stored: ResponseStore) -> None:
        self.settings, self.stored = settings, stored
        self.entry = ModelEntry(settings)
        self.supervisor = Supervisor(settings.engine, settings.limits, metrics, settings.name, settings.shared)
        self.entry.adapters = self.supervisor.adapters.served

    @property
    def tokenizer(self) -> Tokenizer:
        return self.entry.tokenizer

    @property
    def readiness(self) -> Readiness:
        """What the engine has reported, or while it loads what is assumed of it."""
        ready = self.supervisor.ready
        return self.entry.guess if ready is None else ready.readiness

    @property
    def state(self) -> ModelState:
        return ModelState(readiness=self.readiness, adapters=list(self.entry.adapters))

    @property
    def context(self) -> int:
        return self.readiness.max_length

    @property
    def accepts_images(self) -> bool:
        """Whether the model accepts images. While it loads, whether it may."""
        return self.entry.may_see and self.readiness.vision


class Models:
    def __init__(self, settings: ServerSettings, metrics: Metrics, board: Board | None = None) -> None:
        """`board`: where replicas agree on their adapters, if this server is one of several."""
        per_model = [settings, *(_bundled(settings, name) for name in settings.also)]
        self.stored = ResponseStore(settings.limits, settings.body_bytes)
        self.all = [ServedModel(each, metrics, self.stored) for each in per_model]
        self.main = self.all[0]
        self.pool = PreparePool(per_model)
        self.follower: AdapterFollower | None = None
        if board is not None and settings.adapter_dir is not None:
            self.follower = AdapterFollower(board, self.main.supervisor, settings.adapter_dir)

    @property
    def names(self) -> list[str]:
        return [name for model in self.all for name in model.entry.models]

    def of(self, name: str | None) -> ServedModel:
        """Return the model with this name, or the model of the adapter with this name."""
        entry = entry_of([model.entry for model in self.all], name)
        return next(model for model in self.all if model.entry is entry)

    async def prepare(self, endpoint: str, body: bytes, client: str) -> Prepared | Reply:
        """Run the task of an endpoint in the prepare process."""
        models = {model.entry.name: model.state for model in self.all}
        return await self.pool.prepare(endpoint, body, client, models, partial(self.stored.fetch, client))

    async def reply(self, endpoint: str, body: bytes, client: str) -> bytes:
        """Return the answer of an endpoint that needs no engine, as JSON."""
        answer = await self.prepare(endpoint, body, client)
        assert isinstance(answer, Reply)
        return answer.content

    async def compiled(self, endpoint: str, body: bytes, client: str) -> CompiledRequest:
        """Prepare a request and compile its constraint."""
        prepared = await self.prepare(endpoint, body, client)
        assert isinstance(prepared, Prepared)
        if prepared.constraint is None:
            return CompiledRequest(prepared=prepared)
        compiled = await self.pool.compile(prepared.constraint, client)
        form = replace(prepared.form, warnings=[*prepared.form.warnings, *compiled.warnings])
        return CompiledRequest(prepared=replace(prepared, form=form), term=memoryview(compiled.term))

    async def load_adapter(self, name: str, directory: str) -> None:
        """Load an adapter of the main model, and serve it under a name that no other model has."""
        if any(name == model.entry.name for model in self.all):
            message = f"{name!r} is the name of a model; give the adapter another name"
            raise ApiError(400, message, param="lora_name", code="adapter_exists")
        if self.follower is not None:
            await self.follower.load(name, directory)
        else:
            await self.main.supervisor.adapters.load(name, directory)

    async def unload_adapter(self, name: str) -> None:
        """Serve an adapter of the main model to no new request."""
        if self.follower is not None:
            await self.follower.unload(name)
        else:
            self.main.supervisor.unload_adapter(name)

    async def start(self) -> None:
        await self.pool.start()
        await self.main.supervisor.start()
        if self.follower is not None:
            self.follower.start()

    async def wake(self, model: ServedModel) -> None:
        """Start the engine of a model unless it has been started. Requests wait while it loads."""
        if not model.supervisor.started:
            await model.supervisor.start()

    async def stop(self) -> None:
        if self.follower is not None:
            await self.follower.stop()
        for model in self.all:
            if model.supervisor.started:
                await model.supervisor.stop()
        await self.pool.stop()


def with_images(settings: ServerSettings) -> ServerSettings:
    """Return the settings with `images` set, from the configuration of the checkpoint alone."""
    engine = settings.engine
    return dataclasses.replace(settings, images=not engine.text_only and locate(engine.model).config.has_image_tokens)


def _bundled(settings: ServerSettings, name: str) -> ServerSettings:
    return dataclasses.replace(
        settings, name=name, engine=dataclasses.replace(settings.engine, model=name, adapters={})
    )
