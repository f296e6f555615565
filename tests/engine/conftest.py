"""Fixtures of the engine's tests."""

import pytest

from gesso.backends.torch import TorchBackend
from gesso.engine.engine import Engine
from tests.engine.models import with_engine, with_graphs


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

    monkeypatch.setattr(TorchBackend, "run", record)  # also of engines that a test loads
    return seen


@pytest.fixture
def pair(tiny):
    """Return the tiny model twice: without and with graphs."""
    return with_engine(tiny), with_graphs(tiny)
