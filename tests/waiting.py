"""Limits on time in tests: long enough for a machine that stalls for minutes, so that only a hang fails."""

import contextlib
import time
from collections.abc import Callable, Iterator

PATIENCE = 300.0  # seconds
WORK = 30.0  # seconds of processor time; every bounded block of a test takes less than one on an idle core
PAUSE = 0.25  # longest, in seconds, between two looks at a condition


def wait_until(holds: Callable[[], object], message: Callable[[], str] = str) -> None:
    """Wait until a condition holds. `message` explains the failure.

    Many conditions ask a server, which takes processor time from what they wait for. A long wait looks less often.
    """
    began = time.monotonic()
    while not holds():
        waited = time.monotonic() - began
        assert waited < PATIENCE, message() or "the condition never held"
        time.sleep(min(PAUSE, 0.01 + waited / 8))


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Assert that the block ends after a limited amount of work."""
    began = time.process_time()
    yield
    assert time.process_time() - began < WORK
