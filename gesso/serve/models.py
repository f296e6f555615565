"""The models of a server: the one it was started with, and others of the box that wake when first asked for."""

from dataclasses import replace

from gesso.serve.asking import Desk
from gesso.serve.errors import ApiError
from gesso.serve.metrics import Metrics
from gesso.serve.settings import ServerSettings
from gesso.serve.supervisor import Supervisor


class Models:
    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self.main = _desk(settings, metrics)
        self.others = {name: _desk(_of_box(settings, name), metrics) for name in settings.also}

    @property
    def names(self) -> list[str]:
        return [*self.main.models, *self.others]

    def desk(self, model: str | None) -> Desk:
        """Who answers for a model, adapters included."""
        if model is None or model in self.main.models:
            return self.main
        if model not in self.others:
            message = f"there is no model {model[:100]!r} here; there is {', '.join(self.names)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self.others[model]

    async def start(self) -> None:
        await self.main.supervisor.start()

    async def wake(self, desk: Desk) -> None:
        """An engine of its own for a model that had none yet; requests wait for it as they do at the server's start."""
        if not desk.supervisor.started:
            await desk.supervisor.start()

    async def stop(self) -> None:
        for supervisor in self._awake:
            await supervisor.stop()

    @property
    def _awake(self) -> list[Supervisor]:
        supervisors = [desk.supervisor for desk in (self.main, *self.others.values())]
        return [supervisor for supervisor in supervisors if supervisor.started]


def _desk(settings: ServerSettings, metrics: Metrics) -> Desk:
    return Desk(settings, Supervisor(settings.engine, settings.limits, metrics, settings.name))


def _of_box(settings: ServerSettings, name: str) -> ServerSettings:
    return replace(settings, name=name, engine=replace(settings.engine, model=name, adapters={}))
