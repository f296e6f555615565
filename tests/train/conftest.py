"""Data and a checkpoint for short training runs."""

import json
from contextlib import contextmanager

import pytest
from torch.nn.modules.module import register_module_forward_hook

from gesso.chat.tokenizer import Tokenizer
from tests.tiny import make
from tests.train.datasets import make_tokenizer


def write_rows(path):
    """Write a data set of eight short rows, and return its path."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    lines = [{"prompt": f"{i}: ", "completion": f"{word} and {word[::-1]}"} for i, word in enumerate(words)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def make_small(directory):
    """Write the tiny checkpoint with canvases of 16, for fast steps, and return its directory."""
    make(directory)
    raw = json.loads((directory / "config.json").read_text())
    raw["canvas_length"] = 16
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


@contextmanager
def watched(kind, look):
    """Call `look` with arguments and output of every module of a kind, and take what it returns as the output."""

    def hook(module, arguments, output):
        return look(arguments, output) if isinstance(module, kind) else None

    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl")


@pytest.fixture
def small(tmp_path):
    return make_small(tmp_path / "small")


@pytest.fixture(scope="session")
def seeing_model(tmp_path_factory):
    """The tiny checkpoint with a vision tower and canvases of 16, shared by tests: do not change it."""
    target = make(tmp_path_factory.mktemp("seeing") / "model", sees=True)
    raw = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(raw | {"canvas_length": 16}))
    return target


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
