"""Fixtures of the tests of CPU kernels."""

from collections.abc import Callable

import pytest


@pytest.fixture
def own_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that gives the kernels so many threads of their own, as where torch's cannot be used."""
    from gesso.backends.cpu import threads

    def give(count: int) -> None:
        monkeypatch.setattr(threads, "_parallel", lambda: None)  # this torch has threads
        monkeypatch.setattr(threads, "count", lambda parts: count)  # the number of cores is the machine's

    return give
