"""The models of a server: the one it was started with, and bundled ones, whose engines start on demand."""

from dataclasses import replace

from gesso.chat.tokenizer import Tokenizer
from gesso.serve.jobs import Job, Mailbox
from gesso.serve.metrics import Metrics
from gesso.serve.prepare.frontend import ModelFrontend, frontend_of
from gesso.serve.prepare.pool import PreparePool
from gesso.serve.prepare.request import Accepted
from gesso.serve.settings import ServerSettings
from gesso.serve.supervisor import Supervisor


class ServedModel:
    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self.settings = settings
        self.frontend = ModelFrontend(settings)
        self.supervisor = Supervisor(settings.engine, settings.limits, metrics, settings.name, settings.shared)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.frontend.tokenizer

    @property
    def context(self) -> int:
        """The context the engine has chosen, or while it loads the longest it may choose."""
        ready = self.supervisor.ready
        return self.frontend.longest if ready is None else ready.max_length


class Models:
    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        everyone = [settings, *(_bundled(settings, name) for name in settings.also)]
        self.all = [ServedModel(each, metrics) for each in everyone]
        self.main = self.all[0]
        self.pool = PreparePool(everyone)

    @property
    def names(self) -> list[str]:
        return [name for model in self.all for name in model.frontend.models]

    def of(self, name: str | None) -> ServedModel:
        """Return the model that a name, of a base model or an adapter, stands for."""
        frontend = frontend_of([model.frontend for model in self.all], name)
        return next(model for model in self.all if model.frontend is frontend)

    async def prepare(self, endpoint: str, body: bytes, client: str) -> tuple[bytes, bytes]:
        contexts = {model.frontend.name: model.context for model in self.all}
        return await self.pool.prepare(endpoint, body, client, contexts)

    async def accept(self, endpoint: str, body: bytes, client: str) -> tuple[ServedModel, Accepted, list[Job]]:
        """Read a request and compile its constraint; the jobs are not queued yet."""
        asked = Accepted.decode(*await self.prepare(endpoint, body, client))
        model, compiled = self.of(asked.served), b""
        if asked.constraint is not None and asked.source is not None:
            compiled = await self.pool.compile(asked.constraint, asked.source, asked.served, client)
        mailbox = Mailbox()
        jobs = [
            Job(
                id=next(model.supervisor.ids),
                client=client,
                prepared=prepared,
                mailbox=mailbox,
                index=index,
                adapter=asked.adapter,
                constraint=compiled,
            )
            for index, prepared in enumerate(asked.jobs)
        ]
        return model, asked, jobs

    async def start(self) -> None:
        await self.pool.start()
        await self.main.supervisor.start()

    async def wake(self, model: ServedModel) -> None:
        """Start the engine of a model that has none yet; its requests wait as they do at the server's start."""
        if not model.supervisor.started:
            await model.supervisor.start()

    async def stop(self) -> None:
        for model in self.all:
            if model.supervisor.started:
                await model.supervisor.stop()
        await self.pool.stop()


def _bundled(settings: ServerSettings, name: str) -> ServerSettings:
    return replace(settings, name=name, engine=replace(settings.engine, model=name, adapters={}))
