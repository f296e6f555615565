"""Fixtures of the engine's tests."""

import pytest

from gesso.backends.torch import TorchBackend


@pytest.fixture
def passes(tiny, monkeypatch):
    """Record the pieces of every pass through the model."""
    seen, run = [], TorchBackend.run

    def record(self, pieces, cache):
        seen.append(list(pieces))
        return run(self, pieces, cache)

    monkeypatch.setattr(TorchBackend, "run", record)
    return seen
