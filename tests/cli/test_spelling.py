"""Names of commands as users of other programs type them."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gesso.cli import spelling
from gesso.cli.main import app
from tests.cli.test_cli import Main

pytestmark = pytest.mark.usefixtures("environment")
READY = {
    "status": "ready", "device": "cpu", "dtype": "float32", "quantize": None, "write": "canvases (the default)",
    "max_length": 2048, "max_batch": 2, "fixed_bytes": 0, "budget_bytes": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", ["list", "ls"])
def test_the_models_are_listed_by_the_names_of_ollama(main: Main, name: str) -> None:
    assert main(name, "--json").out == main("models", "--json").out != ""


def test_run_is_chat(main: Main) -> None:
    assert "Chat with the model." in main("run", "--help").out


def test_every_meant_command_exists() -> None:
    import typer

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    meant = {*spelling.ALSO.values(), *spelling.MEANT.values()}
    assert {name.split()[0] for name in meant if not name.startswith("--")} <= commands.keys()
    assert not {*spelling.ALSO, *spelling.MEANT} & commands.keys()


def test_another_programs_command_is_answered_with_the_name_of_ours(main: Main) -> None:
    done = main("download", "diffusiongemma")
    assert (done.code, done.out) == (2, "")
    assert "is gesso pull meant?" in done.err
    assert "is gesso train meant?" in main("trian").err
    assert "gesso --help lists the commands" in main("xyzzy").err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bench --peer transformers", "python -m benchmarks.NAME"),
        ("bench kernels --only top", "python -m benchmarks.NAME"),
        ("eval decide --method encoder", "--method was removed"),
        ("serve --settle 0", "give diffusion.settle with a request"),
        ("tune rows.jsonl --sampler credit", "gesso tune tries all ways of writing"),
        ("chat --accept-ratio=0.5", "accept_ratio was removed"),
    ],
)
def test_a_removed_option_is_answered_with_what_replaces_it(main: Main, line: str, message: str) -> None:
    done = main(*line.split())
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_only_the_command_that_had_an_option_knows_it_as_removed(main: Main) -> None:
    assert "No such option: --peer" in main("chat", "--peer", "x").err


class _Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(READY).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Ready) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_ps_shows_what_a_server_runs(main: Main, server: str) -> None:
    shown = main("ps", "--url", server).out
    assert "device    cpu, float32" in shown
    assert "context   2,048 tokens, 2 requests at once" in shown
    assert json.loads(main("ps", "--url", server, "--json").out) == READY


def test_ps_without_a_server_says_how_to_start_one(main: Main) -> None:
    done = main("ps", "--url", "http://127.0.0.1:9")
    assert done.code == 2
    assert "start one with gesso serve" in done.err
