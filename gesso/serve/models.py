"""The models of a server: the main one, and bundled ones whose engines start with their first request."""

from dataclasses import replace
from functools import partial

from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.source import locate
from gesso.serve.adapter_follower import AdapterFollower, Board
from gesso.serve.errors import ApiError
from gesso.serve.generation import Check
from gesso.serve.jobs import Job, Mailbox
from gesso.serve.metrics import Metrics
from gesso.serve.prepare.frontend import ModelFrontend, frontend_of
from gesso.serve.prepare.pool import PreparePool
from gesso.serve.prepare.request import PreparedRequest
from gesso.serve.settings import ServerSettings
from gesso.serve.stored import ResponseStore
from gesso.serve.supervisor import Supervisor


class ServedModel:
    def __init__(self, settings: ServerSettings, metrics: Metrics, stored: ResponseStore) -> None:
        self.settings, self.stored = settings, stored
        self.frontend = ModelFrontend(settings)
        self.supervisor = Supervisor(settings.engine, settings.limits, metrics, settings.name, settings.shared)
        self.frontend.adapters = self.supervisor.adapters.served

    @property
    def tokenizer(self) -> Tokenizer:
        return self.frontend.tokenizer

    @property
    def context(self) -> int:
        """The context that the engine chose, or the longest it may choose while it loads."""
        ready = self.supervisor.ready
        return self.frontend.longest if ready is None else ready.max_length

    @property
    def accepts_images(self) -> bool:
        """Whether the model accepts images. While it loads, whether it may."""
        ready = self.supervisor.ready
        return self.frontend.may_see and (ready is None or ready.vision)


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
        return [name for model in self.all for name in model.frontend.models]

    def of(self, name: str | None) -> ServedModel:
        """Return the model with this name, or the model of the adapter with this name."""
        frontend = frontend_of([model.frontend for model in self.all], name)
        return next(model for model in self.all if model.frontend is frontend)

    async def prepare(self, endpoint: str, body: bytes, client: str) -> tuple[bytes, bytes]:
        """Run the task of an endpoint in the prepare process. Return a JSON head and a blob."""
        contexts = {model.frontend.name: model.context for model in self.all}
        adapters = {model.frontend.name: list(model.frontend.adapters) for model in self.all}
        accepts_images = {model.frontend.name: model.accepts_images for model in self.all}
        fetch = partial(self.stored.fetch, client)
        return await self.pool.prepare(endpoint, body, client, contexts, adapters, accepts_images, fetch)

    async def prepare_jobs(
        self, endpoint: str, body: bytes, client: str
    ) -> tuple[ServedModel, PreparedRequest, list[Job]]:
        """Prepare a request and compile its constraint. The jobs are not queued yet."""
        request = PreparedRequest.decode(*await self.prepare(endpoint, body, client))
        model, compiled = self.of(request.served), b""
        if request.constraint is not None:
            found = await self.pool.compile(request.constraint, client)
            compiled, request = found.blob, replace(request, warnings=[*request.warnings, *found.warnings])
        mailbox = Mailbox()
        jobs = [
            Job(
                id=next(model.supervisor.ids),
                client=client,
                prepared=prepared,
                mailbox=mailbox,
                index=index,
                adapter=request.adapter,
                images=request.images,
                constraint=compiled,
            )
            for index, prepared in enumerate(request.jobs)
        ]
        return model, request, jobs

    def check_of(self, request: PreparedRequest, client: str) -> Check | None:
        """Return the check of the request's answers, if they have a schema."""
        return (lambda ended: self.pool.check(request, ended, client)) if request.checked_by else None

    async def load_adapter(self, name: str, directory: str) -> None:
        """Load an adapter of the main model, and serve it under a name that no other model has."""
        if any(name == model.frontend.name for model in self.all):
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
    return replace(settings, images=not engine.text_only and locate(engine.model).config.has_image_tokens)


def _bundled(settings: ServerSettings, name: str) -> ServerSettings:
    return replace(settings, name=name, engine=replace(settings.engine, model=name, adapters={}))
