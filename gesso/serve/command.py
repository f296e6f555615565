"""What `gesso serve` does: check what was asked for, listen, and drain when told to stop."""

import signal
import socket

import uvicorn

from gesso.errors import CheckpointError, InputError
from gesso.serve import logs
from gesso.serve.app import create_app
from gesso.serve.keys import VARIABLE, is_loopback
from gesso.serve.settings import ServerSettings

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Server(uvicorn.Server):
    """Says where it listens once it does; told to stop with SIGTERM, it ends well, not by that signal."""

    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self.url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(f"gesso serves at {self.url} (docs at {self.url}/docs)", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._captured_signals = [number for number in self._captured_signals if number != signal.SIGTERM]


def serve(settings: ServerSettings, host: str, port: int) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    listener = listen(host, port)
    port = listener.getsockname()[1]
    app = create_app(settings)
    logs.install()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=max(1, int(settings.limits.drain)),
        timeout_keep_alive=30,
        server_header=False,
        h11_max_incomplete_event_size=64 * 1024,
        http="h11",
        ws="none",
    )
    name = f"[{host}]" if ":" in host else host
    server = Server(config, f"http://{name}:{port}")
    supervisor = app.state.supervisor
    supervisor.when_broken = lambda: setattr(server, "should_exit", True)
    server.run(sockets=[listener])
    if supervisor.trouble is not None:
        raise CheckpointError(supervisor.trouble)


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise InputError(f"cannot listen at {host} port {port}: {error.strerror or error}; try --port") from error
    listener.setblocking(False)
    return listener


def check_keys(host: str, keys: tuple[str, ...], without_keys: bool) -> tuple[str, ...] | None:
    """The host names to answer to; InputError for a server that anybody on the network could use."""
    if keys:
        return None
    if is_loopback(host):
        return (*LOCAL_NAMES, host)
    if without_keys:
        return None
    raise InputError(
        f"{host} can be reached from other machines: give keys with --api-key-file or {VARIABLE}, "
        "or say --without-keys to let everyone in"
    )
