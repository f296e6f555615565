"""`gesso serve --ray`: replicas of the server on an existing Ray cluster, each with its own engine.

A replica accepts only as many requests as its engine runs at once. The others wait in Ray's proxies and are not lost
when a replica ends. When Ray removes a replica (scaling down, or an update), its running requests have `drain` seconds
to finish. Deploying again with other settings replaces the replicas a few at a time.

Adapters that requests load reach every replica through a board on the head (`adapter_board`). Responses are not stored.
"""

import asyncio
import logging
import secrets
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from gesso.checkpoint import aliases
from gesso.choosing import choose_apart
from gesso.errors import CheckpointError, InputError
from gesso.serve import logs
from gesso.serve.adapter_board import AdapterBoard, AdapterDirectories, ReplicaReport
from gesso.serve.adapter_follower import AdapterFollower
from gesso.serve.auto import BATCH
from gesso.serve.errors import ApiError
from gesso.serve.http.app import create_app
from gesso.serve.settings import ServerSettings
from gesso.serve.supervisor import Supervisor

APPLICATION = "gesso"  # deploying again replaces it
HEALTH_SECONDS = 5.0
HEAD = "node:__internal_head__"  # a resource of the head node only
BOARD_CALLS = 10_000  # at once: each replica waits at the board
WITHOUT_STORE = "with --ray, responses are not stored: send the whole conversation instead of previous_response_id"

logger = logging.getLogger("gesso.serve")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    least: int = 1  # replicas
    most: int = 1
    cpus: float = 1.0  # per replica

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise InputError(f"replicas must be a range N-M with 1 ≤ N ≤ M, got {self.least}-{self.most}")


def deploy(settings: ServerSettings, host: str, port: int, cluster: Cluster) -> str:
    """Start or replace the replicas, wait until they run, and return a message for the user."""
    try:
        ray.init(address="auto", ignore_reinit_error=True, log_to_driver=False, logging_level="warning")
    except ConnectionError as error:
        raise InputError(f"no Ray cluster was found; start one with: ray start --head ({error})") from None
    serve.start(http_options={"host": host, "port": port})
    try:
        serve.run(application(settings, cluster), name=APPLICATION, route_prefix="/")
    except (RuntimeError, RayServeException) as error:
        raise CheckpointError(f"the replicas did not start: {_failure_message() or error}") from None
    return (
        f"gesso serves at http://{host}:{port} with {cluster.least} to {cluster.most} replicas; "
        "`serve status` lists them, `serve shutdown` stops them"
    )


def _failure_message() -> str | None:
    """Return the last line of Ray's message about the replicas, which has the reason for a failure."""
    found = serve.status().applications.get(APPLICATION)
    lines = [line for part in found.deployments.values() for line in part.message.splitlines()] if found else []
    return next((line.strip() for line in reversed(lines) if line.strip()), None)


def application(settings: ServerSettings, cluster: Cluster) -> Any:
    """Return the deployments: the replicas, and the board of their adapters if requests may load any."""
    batch = settings.engine.max_batch or BATCH
    settings = replace(
        settings,
        engine=replace(settings.engine, max_batch=batch),
        limits=replace(settings.limits, stored_responses=0),
    )
    boards = [] if settings.adapter_dir is None else [_board(settings)]
    gpus = 1 if settings.engine.device != "cpu" and ray.cluster_resources().get("GPU") else 0
    return serve.deployment(
        _replica(settings, *(board.name for board in boards)),
        name="replica",
        max_ongoing_requests=batch,
        max_queued_requests=settings.limits.queue,
        autoscaling_config={
            "min_replicas": cluster.least,
            "max_replicas": cluster.most,
            "target_ongoing_requests": max(1, batch * 3 // 4),
        },
        ray_actor_options={"num_cpus": cluster.cpus, "num_gpus": gpus},
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=settings.limits.drain,
    ).bind(*(board.bind(dict(settings.engine.adapters)) for board in boards))


def _board(settings: ServerSettings) -> Any:
    """Return the deployment of the board. Its name is new: replicas of an earlier deployment must not follow it."""
    return serve.deployment(
        AdapterBoard,
        name=f"adapters-{secrets.token_hex(4)}",
        num_replicas=1,
        max_ongoing_requests=BOARD_CALLS,
        ray_actor_options={"num_cpus": 0, "resources": {HEAD: 0.001}},
    )


def _replica(settings: ServerSettings, board_name: str | None = None) -> Any:
    """Return the class of the replicas. Each replica builds its own app."""

    def build() -> Any:
        logs.install()
        return create_app(on_this_machine(settings), None if board_name is None else RemoteBoard(board_name))

    class Replica:
        app: Any  # set by `ingress`

        def __init__(self, *boards: Any) -> None:
            """Take the board, so that Ray deploys it. `build` finds it by name."""

        async def check_health(self) -> None:
            """Wait for the engine and its adapters. Ray sends no request to a replica before this has returned."""
            supervisor: Supervisor = self.app.state.supervisor
            follower: AdapterFollower | None = self.app.state.follower
            while supervisor.state != "broken":
                if supervisor.ready is not None and (follower is None or follower.has_caught_up):
                    return
                await asyncio.sleep(0.05)
            raise RuntimeError(supervisor.failure)

    return serve.ingress(build)(Replica)


def on_this_machine(settings: ServerSettings) -> ServerSettings:
    """Return the settings with the checkpoint that an alias stands for on the machine of this replica."""
    engine = settings.engine
    if not aliases.is_automatic(engine.model):
        return settings
    choice = choose_apart(engine.device, engine.memory, engine.quantize)
    logger.info("checkpoint chosen", extra={"fields": {"reason": choice.reason}})
    return replace(settings, engine=replace(engine, model=choice.name, quantize=choice.quantize or engine.quantize))


class RemoteBoard:
    """The board in its own process, as `adapter_follower.Board`."""

    def __init__(self, name: str) -> None:
        self.handle = serve.get_deployment_handle(name, APPLICATION)

    async def follow(self, report: ReplicaReport) -> AdapterDirectories:
        table: AdapterDirectories = await self._call("follow", report)
        return table

    async def beat(self, replica: str) -> None:
        await self._call("beat", replica)

    async def load(self, name: str, directory: str) -> ApiError | None:
        error: ApiError | None = await self._call("load", name, directory)
        return error

    async def unload(self, name: str) -> ApiError | None:
        error: ApiError | None = await self._call("unload", name)
        return error

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await getattr(self.handle, method).remote(*arguments)
        except (RayError, RayServeException) as error:
            raise ConnectionError(str(error)) from None
