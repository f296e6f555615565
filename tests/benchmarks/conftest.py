"""Fixtures of the tests of benchmarks."""

import pytest

from gesso.engine.engine import Engine
from gesso.engine.request import Request


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests to the engines that a benchmark makes."""
    requests: list[Request] = []

    def submit(engine, request, submit=Engine.submit):
        requests.append(request)
        return submit(engine, request)

    monkeypatch.setattr(Engine, "submit", submit)  # a benchmark loads its model itself, and shows no requests
    return requests
