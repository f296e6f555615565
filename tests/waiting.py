"""Waiting in tests: long enough for a machine that stalls for minutes, so that only a hang fails."""

import time
from collections.abc import Callable

PATIENCE = 300.0  # seconds


def wait_until(holds: Callable[[], object], message: Callable[[], str] = str) -> None:
    """Wait until a condition holds. `message` explains the failure."""
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until, message() or "the condition never held"
        time.sleep(0.02)
