"""A stand-in for the Hugging Face hub: a small HTTP server with the answers that downloads and uploads need.

It can have faults.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

COMMIT = "1" * 40
LFS = (".safetensors", ".gguf", ".bin")


@dataclass
class Hub:
    """The repositories, the faults, and the requests so far. A fault lasts until a test removes it."""

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commit: str = COMMIT
    cut: dict[str, int] = field(default_factory=dict)  # close the connection at this byte of a file
    stall: dict[str, int] = field(default_factory=dict)  # send a file up to this byte, then nothing
    damaged: set[str] = field(default_factory=set)  # send other bytes of the same size
    status: dict[str, int] = field(default_factory=dict)  # of every path that contains the key
    sizes: dict[str, int] = field(default_factory=dict)  # sizes in the list of files that are not true
    blob_ids: dict[str, str] = field(default_factory=dict)  # hashes in the list of files that are not true
    ignore_range: bool = False
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range
    private: set[str] = field(default_factory=set)  # repositories
    uploads: dict[str, bytes] = field(default_factory=dict)  # large files by SHA-256, before they are committed
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def add(self, name: str, files: Mapping[str, bytes] | Path) -> None:
        if isinstance(files, Path):
            files = {path.name: path.read_bytes() for path in files.iterdir()}
        self.repositories[name] = dict(files)

    def downloads(self) -> dict[str, str | None]:
        """Return the files that were requested since the last call, with the Range of the last request."""
        found = {path.rpartition("/")[2]: part for path, part in self.requests if "/resolve/" in path}
        self.requests.clear()
        return found

    def listing(self, name: str) -> dict[str, Any]:
        files = []
        for file, content in self.repositories[name].items():
            size = self.sizes.get(file, len(content))
            one: dict[str, Any] = {
                "rfilename": file,
                "size": size,
                "blobId": self.blob_ids.get(file, git_hash(content)),
            }
            if file.endswith(LFS):
                one["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 135}
            files.append(one)
        return {"_id": "1", "id": name, "sha": self.commit, "siblings": files, "private": name in self.private,
                "tags": [], "downloads": 0, "likes": 0}  # fmt: skip

    def create(self, name: str, visibility: str | None) -> bool:
        """Create a repository, and return whether it is new."""
        new = name not in self.repositories
        if new:
            self.repositories[name] = {}
            self.private |= {name} if visibility == "private" else set()
        return new

    def commit_lines(self, name: str, lines: list[dict[str, Any]]) -> None:
        """Apply a commit: a header, then one line per file."""
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "file":
                    self.repositories[name][value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    self.repositories[name][value["path"]] = self.uploads.pop(value["oid"])
                case "deletedFile":
                    del self.repositories[name][value["path"]]


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Report nothing: a client may close a connection."""


@contextmanager
def serving() -> Iterator[Hub]:
    """Yield a hub that listens on this machine."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            path = unquote(self.path.partition("?")[0])
            hub.requests.append((path, self.headers.get("Range")))
            for part, status in hub.status.items():
                if part in path:
                    return self._answer(status, b"{}")
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"] and "/".join(parts[2:4]) in hub.repositories:
                return self._answer(200, json.dumps(hub.listing("/".join(parts[2:4]))).encode())
            if parts[:2] == ["api", "datasets"] and "/".join(parts[1:4]) in hub.repositories:
                return self._answer(200, json.dumps(hub.listing("/".join(parts[1:4]))).encode())
            if parts[0] == "datasets":  # a dataset is added as datasets/OWNER/NAME, and may have folders
                name, parts = "/".join(parts[:3]), parts[1:]
                file = "/".join(parts[4:])
            else:
                name, file = "/".join(parts[:2]), parts[-1]
            if parts[2:4] == ["resolve", hub.commit] and file in hub.repositories.get(name, {}):
                return self._file(file, hub.repositories[name][file])
            return self._answer(404, b"{}")

        def do_POST(self) -> None:
            path = unquote(self.path.partition("?")[0])
            body = self._body()
            hub.requests.append((path, None))
            for part, status in hub.status.items():
                if part in path:
                    return self._answer(status, b"{}")
            name = "/".join(path.removeprefix("/api/models").strip("/").split("/")[:2]).removesuffix(".git")
            if path == "/api/repos/create":
                given = json.loads(body)
                name = f"{given['organization']}/{given['name']}"
                new = hub.create(name, given.get("visibility"))
                return self._json({"url": f"{hub.url}/{name}", "name": name}, 200 if new else 409)
            if path == "/api/validate-yaml":
                return self._json({"errors": [], "warnings": []})
            if "/preupload/" in path:
                files = [
                    {"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(LFS) else "regular",
                     "shouldIgnore": False}
                    for one in json.loads(body)["files"]
                ]  # fmt: skip
                return self._json({"files": files})
            if path.endswith("/info/lfs/objects/batch"):
                objects = [
                    {**one, "actions": {"upload": {"href": f"{hub.url}/upload/{one['oid']}"}}}
                    for one in json.loads(body)["objects"]
                ]
                return self._json({"transfer": "basic", "objects": objects})
            if "/commit/" in path:
                hub.commit_lines(name, [json.loads(line) for line in body.splitlines()])
                return self._json({"success": True, "commitOid": hub.commit, "commitUrl": f"{hub.url}/{name}/commit/1"})
            return self._answer(404, b"{}")

        def do_PUT(self) -> None:
            hub.uploads[self.path.rpartition("/")[2]] = self._body()
            self._answer(200, b"{}")

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)

        def _json(self, answer: dict[str, Any], status: int = 200) -> None:
            self._answer(status, json.dumps(answer).encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _file(self, file: str, content: bytes) -> None:
            if file in hub.damaged:
                content = bytes(byte ^ 255 for byte in content)
            begin, end, given = 0, len(content), self.headers.get("Range")
            if given and not hub.ignore_range:
                first, _, last = given.removeprefix("bytes=").partition("-")
                begin, end = int(first), min(int(last) + 1, end) if last else end
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            stop = min(end, hub.cut.get(file, end), hub.stall.get(file, end))
            self.wfile.write(content[begin : max(stop, begin)])
            self.wfile.flush()
            if file in hub.stall:
                hub.stalled.set()
                hub.released.wait()
            self.close_connection = stop < end

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
