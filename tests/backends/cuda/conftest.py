"""Fixtures of the tests of the CUDA backend."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def replace_layer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Return a function that takes what runs in place of a layer: its kernels take seconds in the interpreter."""
    pytest.importorskip("triton")
    from gesso.backends.cuda import network

    # A backend has no other door to its layers.
    return lambda run_layer: monkeypatch.setattr(network, "run_layer", run_layer)
