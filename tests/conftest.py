"""Fixtures and markers of all tests. No test uses the network, and each process uses one thread."""

import atexit
import gc
import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

gc.disable()  # until all tests are imported: see pytest_collection_finish
import torch  # noqa: E402

from tests import durations, units  # noqa: E402
from tests.interpreter import speed_up  # noqa: E402

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # in processes that tests start, too: their models are small
if not torch.cuda.is_available():
    # Run kernels in Triton's interpreter. Triton reads this when it is first imported, and peft imports it, so it must
    # be set before any test file.
    os.environ["TRITON_INTERPRET"] = "1"


TESTS = Path(__file__).parent
WITHOUT_SERVER = {
    "serve/test_adapter_board.py",
    "serve/test_page.py", "serve/test_prepare.py", "serve/test_remote_images.py", "serve/test_shares.py",
    "serve/test_stored.py", "serve/test_worker.py",
}  # fmt: skip
# Fast tests in slow files, which `make check` runs all the same.
CORE = (
    "adapters/test_adapters.py::test_adapters_are_switched_by_name",
    "bench/test_bench.py::test_a_token_reads_its_experts_the_causal_layers_and_the_head",
    "bundled/test_bundled.py::test_bundled_name_takes_precedence_over_a_directory",
    "cli/test_cli.py::test_bad_usage_is_one_line_and_exit_code_2_before_loading",
    "distill/test_record.py::test_replaying_a_step_from_the_recorded_canvas_gives_the_next_one",
    "engine/test_ending.py::test_a_stop_string_is_found_across_canvases_and_multibyte_characters",
    "engine/test_engine.py::test_same_seed_same_text_with_any_cache_contents[300]",
    "engine/test_scoring.py::test_same_scores_and_same_texts_in_any_batch",
    "model/test_parity.py::test_hidden_states_and_logits_equal_the_reference_at_every_prompt_length[3]",
    "model/test_parity.py::test_hidden_states_and_logits_equal_the_reference_at_every_prompt_length[7]",
    "trace/test_trace.py::test_a_run_has_every_step",
)


def starts_server(path: Path) -> bool:
    """Return whether a test file, relative to `tests`, starts a server."""
    return path.parts[0] in ("attack", "serve") and str(path) not in WITHOUT_SERVER


def is_slow(file: str) -> bool:
    """Return whether `make check` leaves a file out because of its recorded duration."""
    return durations.recorded().get(file, 0.0) >= durations.SLOW


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files whose tests are all deselected by `-m`. Otherwise each process of pytest-xdist imports them."""
    chosen = config.getoption("markexpr")
    if collection_path.suffix != ".py" or " or " in chosen:
        return None
    path = collection_path.relative_to(TESTS)
    has_core = any(core.startswith(f"{path}::") for core in CORE)
    marked = {
        "gpu": path.parts[0] == "gpu",
        "server": starts_server(path),
        "slow": is_slow(str(path)) and not has_core,
    }
    return any(applies and f"not {mark}" in chosen for mark, applies in marked.items()) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they need, so that `make check` can leave them out, and order files by their recorded
    durations."""
    if "triton" in sys.modules and not torch.cuda.is_available():
        speed_up()
    seconds = durations.recorded()
    for item in items:
        path, fixtures = item.path.relative_to(TESTS), set(getattr(item, "fixturenames", ()))
        if is_slow(str(path)) and not f"{path}::{item.name}".startswith(CORE):
            item.add_marker("slow")
        if starts_server(path):
            item.add_marker("server")
        if fixtures & {"studio", "browser"}:
            item.add_marker("browser")

    files = list(dict.fromkeys(str(item.path.relative_to(TESTS)) for item in items))
    ordered = durations.order(files, seconds, starts_server=lambda file: starts_server(Path(file)))
    first: dict[str, int] = {}  # place of the longest file, by unit
    for i, file in enumerate(ordered):
        first.setdefault(units.unit(file), i)
    ordered.sort(key=lambda file: first[units.unit(file)])  # stable, so that the files of a unit keep their order
    place = {file: i for i, file in enumerate(ordered)}
    items.sort(key=lambda item: place[str(item.path.relative_to(TESTS))])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Divide the tests into units that share a server or a browser."""
    return units.scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Start the garbage collector, which never looks at the imported modules: they live as long as the process.

    When the interpreter exits, it collects them. Otherwise Triton's library reports their kernels as leaks, below the
    result of the tests. pytest_unconfigure would be too late: pytest-xdist interrupts processes that are slow to end.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)  # the processes of pytest-xdist share the cores


@pytest.fixture(scope="session", autouse=True)
def without_onednn():
    """Disable oneDNN: on ARM it takes a millisecond to prepare a product of a few microseconds. The engine avoids it
    for small products (`backends/torch.py`), but the reference and the trainer do not."""
    with warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=False):
        yield


@pytest.fixture(autouse=True)
def torch_seed():
    """Seed torch's generator before each test, so that tests are reproducible."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory of this run, instead of the user's."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["GESSO_CONFIG"] = ""  # not the file of the person who runs the tests
    return Path(os.environ["XDG_CACHE_HOME"])


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, shared by tests: do not change it."""
    from tests.tiny import make

    return make(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def tiny(tiny_directory: Path):
    """The tiny model, loaded once for all tests."""
    import gesso

    return gesso.load(tiny_directory)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stand-in for the Hugging Face hub and an empty cache, for this process and for those that it starts."""
    from huggingface_hub import constants, file_download

    from tests.hub import serving

    with serving() as running:
        settings = {"HF_ENDPOINT": running.url, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0",
                    "HF_TOKEN": "", "HF_TOKEN_PATH": str(tmp_path / "token"), "NO_PROXY": "127.0.0.1"}  # fmt: skip
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        in_this_process = {
            "ENDPOINT": running.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": running.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,  # upload by plain HTTP
            "HF_HUB_CACHE": settings["HF_HUB_CACHE"],
            "HF_TOKEN_PATH": settings["HF_TOKEN_PATH"],
            "DOWNLOAD_CHUNK_SIZE": 1000,  # bytes that a broken connection may lose
        }
        for name, value in in_this_process.items():
            monkeypatch.setattr(constants, name, value)  # huggingface_hub has read its environment already
        monkeypatch.setattr(file_download, "time", SimpleNamespace(sleep=lambda _: None))  # before it tries again
        yield running


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Return a function that takes the stand-in for the models that commands of this process load."""
    import gesso

    # A command names its model by text, so a stand-in has no other door.
    return lambda load: monkeypatch.setattr(gesso, "load", load)


@pytest.fixture
def any_model_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `gesso bench` measure models of any size on a CPU as it does large ones."""
    from gesso.bench import model

    monkeypatch.setattr(model, "LEAST_BYTES", 1)  # no test has a model of gigabytes


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return a function that takes the total and free memory of this machine, which change while a test runs."""
    from gesso.memory import device

    # No test has a machine of a given size.
    return lambda total, free: monkeypatch.setattr(device, "host_memory", lambda: (total, free))


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of each server that `gesso serve` would have started."""
    from gesso.serve import run

    settings: list[Any] = []
    monkeypatch.setattr(run, "serve", lambda given, *_, **__: settings.append(given))  # a server would not end
    return settings


@pytest.fixture(scope="session")
def marked(tiny, tmp_path_factory):
    """The tiny model with a tokenizer that has the fill-in-the-middle markers."""
    import gesso
    from gesso.chat.tokenizer import FILL

    directory = tmp_path_factory.mktemp("marked") / "model"
    tiny.save(directory)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    for i, mark in enumerate(FILL, start=107):
        vocabulary = tokenizer["model"]["vocab"]
        del vocabulary[f"<unused{i}>"]
        vocabulary[mark] = i
        tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] != i]
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": i, "content": mark})
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return gesso.load(directory)


@pytest.fixture(scope="session")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.serving import make_model

    return make_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="session")
def plain_server(served_model: Path, tmp_path_factory: pytest.TempPathFactory):
    """A server of the tiny model with default settings: see `tests.serving.server_fixture`."""
    from tests.serving import serving

    log = tmp_path_factory.mktemp("plain") / "log"
    with serving(log, "--model", str(served_model), "--name", "tiny") as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def client(server):
    """The official OpenAI client, connected to the `server` fixture of the test file."""
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none needed", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def studio_files():
    """The URL of the studio's files without an engine: tests answer the requests for text themselves."""
    from tests.studio import ABOUT
    from tools.load.scrubbing import StudioFiles

    with StudioFiles(ABOUT) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    """A browser per module: Playwright runs an event loop, which tests in other modules must not share."""
    from tests.studio import browsing

    with browsing() as browser:
        yield browser


@pytest.fixture
def main(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run the command line in this process, which is faster than starting another. Of `terminals`, such as "stderr",
    it takes what it reads and writes for a terminal."""
    from gesso.cli import main as cli

    def run(*arguments: str, stdin: str | io.StringIO = "", terminals: Sequence[str] = ()) -> SimpleNamespace:
        with monkeypatch.context() as patch:
            # As a shell gives it to a process.
            patch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
            for name in terminals:
                # No terminal is attached to the tests.
                patch.setattr(getattr(sys, name), "isatty", lambda: True, raising=False)
            code = cli.main(list(arguments))
        output = capsys.readouterr()
        return SimpleNamespace(code=code, out=output.out, err=output.err)

    # Commands install handlers that write to the stderr of this test, which is closed at its end.
    loggers = [logging.getLogger(name) for name in ("gesso", "gesso.serve", "uvicorn.error")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield run
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
