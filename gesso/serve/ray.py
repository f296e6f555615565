"""`gesso serve --ray`: the same app as replicas on a Ray cluster that is there, each with an engine of its own.

A replica takes no more requests than its engine runs at once. So whatever has not begun waits in Ray's proxies, not in
a replica, and outlives any of them; and what is under way when a replica goes for good reasons (fewer are needed, newer
ones have come) has `drain` seconds to end. Told again, with other settings, Ray puts new replicas in the place of the
old ones, a few at a time.
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

APPLICATION = "gesso"  # told again, it is replaced
HEALTH_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Cluster:
    least: int = 1  # replicas
    most: int = 1
    cpus: float = 1.0  # for each
    address: str = "auto"  # the cluster this machine belongs to

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise InputError(f"replicas go from a number above 0 to one not below it, got {self.least} to {self.most}")


def deploy(settings: ServerSettings, host: str, port: int, cluster: Cluster) -> str:
    """Start the replicas, or replace those of before; return when they run, with what to say of it."""
    try:
        ray.init(address=cluster.address, ignore_reinit_error=True, log_to_driver=False, logging_level="warning")
    except ConnectionError as error:
        raise InputError(f"no Ray cluster is to be found; start one with: ray start --head ({error})") from None
    serve.start(http_options={"host": host, "port": port})
    try:
        serve.run(application(settings, cluster), name=APPLICATION, route_prefix="/")
    except (RuntimeError, RayServeException) as error:
        raise CheckpointError(f"the replicas did not start: {_trouble() or error}") from None
    return (
        f"gesso serves at http://{host}:{port} with {cluster.least} to {cluster.most} replicas; "
        "serve status shows them, serve shutdown ends them"
    )


def _trouble() -> str | None:
    """What the replicas died of: the last line of what Ray says of them."""
    found = serve.status().applications.get(APPLICATION)
    said = [line for part in found.deployments.values() for line in part.message.splitlines()] if found else []
    return next((line.strip() for line in reversed(said) if line.strip()), None)


def application(settings: ServerSettings, cluster: Cluster) -> Any:
    batch = settings.engine.max_batch or BATCH
    told = replace(settings, engine=replace(settings.engine, max_batch=batch))
    gpus = 1 if settings.engine.device != "cpu" and ray.cluster_resources().get("GPU") else 0
    return serve.deployment(
        _replica(told),
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
    """A class of replicas, made anew where each of them runs."""

    def build() -> Any:
        logs.install()
        return create_app(settings)

    class Replica:
        app: Any  # of the class that `ingress` makes of this one

        async def check_health(self) -> None:
            """Called before the first request, too: a replica takes none before its engine is ready."""
            supervisor: Supervisor = self.app.state.supervisor
            while supervisor.ready is None and supervisor.state != "broken":
                await asyncio.sleep(0.05)
            if supervisor.state == "broken":
                raise RuntimeError(supervisor.trouble)

    return serve.ingress(build)(Replica)
