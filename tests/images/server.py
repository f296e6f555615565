"""A server of pictures on the loopback interface, which misbehaves if the path says so."""

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLOW_BYTES, PAUSE = 600, 0.05


class PictureServer(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False

    def __init__(self, contents: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents = contents
        self.asked: list[tuple[str, dict[str, str]]] = []  # paths and headers
        self.left = 0  # clients that left before the end

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextlib.contextmanager
def serving(contents: bytes) -> Iterator[PictureServer]:
    with PictureServer(contents) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


class Handler(BaseHTTPRequestHandler):
    """Answers by the first part of the path."""

    server: PictureServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        action, _, rest = self.path[1:].partition("/")
        try:
            getattr(self, action)(rest)
        except (BrokenPipeError, ConnectionResetError):
            self.server.left += 1

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def file(self, rest: str) -> None:
        self.send(200, self.server.contents, Content_Length=str(len(self.server.contents)))

    def moved(self, rest: str) -> None:
        self.send(302, Location=rest)

    def again(self, rest: str) -> None:
        self.send(301, Location=f"/again/{int(rest) - 1}" if int(rest) else "/file")

    def missing(self, rest: str) -> None:
        self.send(404, b"secret of the server")

    def cut(self, rest: str) -> None:
        self.send(200, self.server.contents[:100], Content_Length=str(len(self.server.contents)))

    def packed(self, rest: str) -> None:
        self.send(200, self.server.contents, Content_Encoding="gzip")

    def endless(self, rest: str) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(1000):
            self.wfile.write(bytes(1 << 20))

    def slow(self, rest: str) -> None:
        """Send a byte at a time, of the head or of the contents."""
        if rest == "body":
            self.send_response(200)
            self.end_headers()
        for _ in range(SLOW_BYTES):
            self.wfile.write(b"H")
            self.wfile.flush()
            time.sleep(PAUSE)
