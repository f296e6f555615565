"""`gesso serve --ray`: replicas of the server on an existing Ray cluster, each with its own engine.

A replica accepts only as many requests as its engine runs at once. The others wait in Ray's proxies and are not lost
when a replica ends. When Ray removes a replica (scaling down, or an update), its running requests have `drain` seconds
to finish. Deploying again with other settings replaces the replicas a few at a time.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from gesso.errors import CheckpointError, InputError
from gesso.serve import logs
from gesso.serve.auto import BATCH
from gesso.serve.http.app import create_app
from gesso.serve.settings import ServerSettings
from gesso.serve.supervisor import Supervisor

APPLICATION = "gesso"  # deploying again replaces it
HEALTH_SECONDS = 5.0


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
    batch = settings.engine.max_batch or BATCH
    settings = replace(settings, engine=replace(settings.engine, max_batch=batch))
    gpus = 1 if settings.engine.device != "cpu" and ray.cluster_resources().get("GPU") else 0
    return serve.deployment(
        _replica(settings),
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
    ).bind()


def _replica(settings: ServerSettings) -> Any:
    """Return the class of the replicas. Each replica builds its own app."""

    def build() -> Any:
        logs.install()
        return create_app(settings)

    class Replica:
        app: Any  # set by `ingress`

        async def check_health(self) -> None:
            """Wait for the engine. Ray sends no request to a replica before this has returned."""
            supervisor: Supervisor = self.app.state.supervisor
            while supervisor.ready is None and supervisor.state != "broken":
                await asyncio.sleep(0.05)
            if supervisor.state == "broken":
                raise RuntimeError(supervisor.failure)

    return serve.ingress(build)(Replica)
