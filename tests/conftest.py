"""Shared by all tests: nothing is fetched, nothing is written outside the test's directory, one thread a process."""

import io
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
if not torch.cuda.is_available():
    # Kernels run in Triton's interpreter. Asked for here, because triton reads it when it is imported, and importing
    # peft or the oracle imports triton.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)  # the processes of pytest-xdist share the cores


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    """Tests draw prompts from torch's generator; a test that passes must pass again."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    return Path(os.environ["XDG_CACHE_HOME"])


@pytest.fixture(scope="session")
def box(own_cache):
    """The model in the box, shared: an engine outlives its requests."""
    import gesso

    return gesso.load()


@pytest.fixture
def main(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The program in this process: faster than another, where the process itself is not what is tested."""

    from gesso import cli

    def run(*arguments: str, stdin: str | io.StringIO = "") -> SimpleNamespace:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        code = cli.main(list(arguments))
        output = capsys.readouterr()
        return SimpleNamespace(code=code, out=output.out, err=output.err)

    logger = logging.getLogger("gesso")
    before = logger.handlers, logger.propagate
    yield run
    logger.handlers, logger.propagate = before
