"""Run a server: check its settings, listen, and drain on SIGTERM or SIGHUP."""

import asyncio
import signal
import socket
import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager

import uvicorn
from fastapi import FastAPI

from gesso.errors import CheckpointError, InputError
from gesso.serve import logs
from gesso.serve.http.app import create_app
from gesso.serve.http.connections import ACCEPTED_AT_ONCE, Connection, protocol
from gesso.serve.keys import VARIABLE, is_loopback
from gesso.serve.relay import Relay
from gesso.serve.settings import ServerSettings
from gesso.serve.supervisor import Supervisor

BACKLOG = 2048
STDOUT, STDERR = 1, 2
DRAINING = (signal.SIGTERM, signal.SIGHUP)
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Server(uvicorn.Server):
    """A uvicorn server that prints its address once it listens and exits with status 0 after it has drained."""

    def __init__(self, app: FastAPI, config: uvicorn.Config, connection: type[Connection], url: str) -> None:
        super().__init__(config)
        self.app, self.connection, self.url, self.open_browser = app, connection, url, False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            asyncio.get_running_loop().set_exception_handler(self.connection.on_loop_error)
            for listener in sockets or ():
                listener.listen(BACKLOG)  # asyncio has set the backlog to the number it accepts at once
            print(f"gesso serves at {self.url} (the studio), API reference at {self.url}/docs", flush=True)
            if self.open_browser:
                webbrowser.open(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._captured_signals = [number for number in self._captured_signals if number not in DRAINING]


def serve(settings: ServerSettings, host: str, port: int, *, open_browser: bool = False) -> None:
    """Serve until SIGTERM, SIGHUP or Ctrl-C."""
    listener = listen(host, port, settings.limits.io_timeout)
    server = make_server(settings, host, listener.getsockname()[1])
    server.open_browser = open_browser
    supervisor: Supervisor = server.app.state.supervisor
    supervisor.on_broken = lambda: setattr(server, "should_exit", True)
    on_drop = supervisor.metrics.log_lines_dropped.inc
    with closing(Relay(STDOUT, on_drop)), closing(Relay(STDERR, on_drop)), _draining_on_hangup(server):
        logs.install()
        server.run(sockets=[listener])
    if supervisor.state == "broken" and supervisor.failure is not None:
        raise CheckpointError(supervisor.failure)


@contextmanager
def _draining_on_hangup(server: Server) -> Iterator[None]:
    """Handle SIGHUP like SIGTERM, unless it is ignored, as under nohup."""
    before = signal.getsignal(signal.SIGHUP)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, server.handle_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def make_server(settings: ServerSettings, host: str, port: int) -> Server:
    app, connection = create_app(settings), protocol(settings.limits)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=max(1, int(settings.limits.drain)),
        timeout_keep_alive=30,
        server_header=False,
        proxy_headers=False,  # otherwise any local process could claim any address
        h11_max_incomplete_event_size=64 * 1024,
        http=connection,
        ws="none",
        backlog=ACCEPTED_AT_ONCE,
    )
    name = f"[{host}]" if ":" in host else host
    return Server(app, config, connection, f"http://{name}:{port}")


def listen(host: str, port: int, io_timeout: float) -> socket.socket:
    """Return a socket that listens at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot listen at {host} port {port}: {reason}; choose another --port") from error
    listener.setblocking(False)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A closed connection stays open while it has data to send. If the client has stopped reading, that is forever
        # without this timeout. Connections inherit the option from the listener.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * io_timeout))
    return listener


def check_keys(host: str, keys: tuple[str, ...], without_keys: bool) -> tuple[str, ...] | None:
    """Return the accepted host names, or None for any. Reject a server without keys that the network can reach."""
    if keys:
        return None
    if is_loopback(host):
        return (*LOCAL_NAMES, host)
    if without_keys:
        return None
    raise InputError(
        f"{host} can be reached from other machines: give keys with --api-key-file or {VARIABLE}, "
        "or allow access without keys with --without-keys"
    )
