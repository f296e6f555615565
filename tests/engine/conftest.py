"""Fixtures of the engine's tests."""

import pytest

from gesso.api import Gesso
from gesso.backends.torch import TorchBackend
from gesso.engine.driver import Driver
from gesso.engine.engine import Engine
from tests.backends.passes import CapturesPlainly


@pytest.fixture
def engine(tiny):
    return Engine(tiny.model, tiny.decode)


@pytest.fixture
def passes(tiny, monkeypatch):
    """Record the pieces of every pass through the model."""
    seen, run = [], TorchBackend.run

    def record(self, pieces, cache):
        seen.append(list(pieces))
        return run(self, pieces, cache)

    monkeypatch.setattr(TorchBackend, "run", record)
    return seen


@pytest.fixture
def pair(tiny):
    """Return the tiny model twice: without and with graphs."""
    plain, graphed = (Gesso.__new__(Gesso) for _ in range(2))
    for each in (plain, graphed):
        each.__init__(tiny.model, tiny.tokenizer, tiny.defaults, tiny.directory, max_batch=4, max_length=None)
    graphed.engine = Engine(graphed.model, graphed.decode, max_batch=4, backend=CapturesPlainly(graphed.model))
    graphed.driver = Driver(graphed.engine)
    return plain, graphed
