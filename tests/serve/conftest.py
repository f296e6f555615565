"""Servers that several files share: see tests/units.py."""

import contextlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests import loras
from tests.images import server as pictures
from tests.images.files import drawing, encoded
from tests.serving import make_model, serving

PICTURE = encoded(drawing(50, 30, seed=4), "PNG")
FETCH_SECONDS = 3.0
PANICS = {"Regex": "(a+)+$x"}  # backtracks in a run of the letter a until the library gives up with a panic
# Python runs `sitecustomize.py` at the start of each process.
PATCHES = """\
import os, signal
from gesso.serve import remote_images
from gesso.serve.prepare import images

checked, read = remote_images.is_public, images.read_source
remote_images.is_public = lambda address: str(address) == "127.0.0.1" or checked(address)
remote_images.PORTS = {{"http": (80, {port}), "https": (443,)}}
remote_images.SECONDS = {seconds}

def faulty(source, *arguments, **options):
    if "crash" in str(source)[:20]:
        os.kill(os.getpid(), signal.SIGSEGV)
    while "hang" in str(source)[:20]:
        pass
    return read(source, *arguments, **options)

images.read_source = faulty
"""


@pytest.fixture(scope="session")
def picture_server():
    with pictures.serving(PICTURE) as running:
        yield running


@pytest.fixture(scope="session")
def seeing_directory(tmp_path_factory):
    """A tiny checkpoint that sees images. Its tokenizer panics at a long run of the letter a. Do not change it."""
    directory = make_model(tmp_path_factory.mktemp("seeing") / "model", sees=True)
    raw = json.loads((directory / "tokenizer.json").read_text())
    raw["pre_tokenizer"] = {"type": "Split", "pattern": PANICS, "behavior": "Isolated", "invert": False}
    (directory / "tokenizer.json").write_text(json.dumps(raw))
    return directory


@pytest.fixture(scope="session")
def seeing_server(seeing_directory, picture_server, tmp_path_factory):
    """A server that sees images, and fetches those of the picture server. Some contents crash or hang its decoder."""
    patches = tmp_path_factory.mktemp("patches")
    (patches / "sitecustomize.py").write_text(PATCHES.format(port=picture_server.port, seconds=FETCH_SECONDS))
    path = os.pathsep.join(filter(None, (str(patches), os.environ.get("PYTHONPATH"))))
    options = ("--model", str(seeing_directory), "--name", "tiny", "--allow-remote-images", "--prepare-seconds", "2")
    with serving(tmp_path_factory.mktemp("log") / "log", *options, PYTHONPATH=path, RUST_BACKTRACE="0") as running:
        running.wait_ready()
        yield running


class Page(BaseHTTPRequestHandler):
    """An empty page of another origin."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>page</title><body>")

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def page_server():
    """Serve the page, and yield its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def page_port():
    with page_server() as port:
        yield port


@pytest.fixture(scope="session")
def bundled_server(page_port, tmp_path_factory):
    """A server of the bundled models. It allows the page at 127.0.0.1; the same page at localhost is another site."""
    log = tmp_path_factory.mktemp("bundled") / "log"
    with serving(log, "--cors-origin", f"http://127.0.0.1:{page_port}") as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="session")
def adapter_directory(served_model, tmp_path_factory):
    """A directory with `inside`, which requests may load adapters from, and an adapter outside of it."""
    directory = tmp_path_factory.mktemp("adapters")
    loras.write(served_model, directory / "inside", ("a", "b", "c"))
    loras.write(served_model, directory, ("outside",))
    return directory


@pytest.fixture(scope="session")
def server_with_keys(served_model, adapter_directory, tmp_path_factory):
    """A server of the tiny model with the adapter `a`. Its clients have the keys `one` and `two`; this is the first."""
    directory = tmp_path_factory.mktemp("keys")
    (directory / "keys").write_text("one\ntwo\n")
    inside = adapter_directory / "inside"
    adapters = ("--adapter", f"a={inside / 'a'}", "--adapter-dir", str(inside), "--max-adapters", "5")
    arguments = ("--api-key-file", str(directory / "keys"), "--request-tokens", "4000", "--max-batch", "4")
    model = ("--model", str(served_model), "--name", "tiny")
    with serving(directory / "log", *model, *arguments, *adapters) as running:
        running.http.headers["authorization"] = "Bearer one"
        running.wait_ready()
        yield running
