"""Garbage collection of an engine process, at times when no request waits for it.

The states of constraints are very many objects that refer to each other. A full collection visits all of them, which
takes up to half a second, and Python would start one in the middle of a step. So Python collects only young objects by
itself. The worker starts a full collection when it is idle, or when memory has grown too much.
"""

import gc

from gesso.memory.device import resident_bytes

NEVER = 1 << 30  # collections of younger objects before Python starts a full one
GROWTH = 2**30  # bytes


def take_over() -> None:
    """Stop full collections by Python. Objects that exist now are kept, and never visited again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], NEVER)


class Collector:
    """Knows when a full collection is due."""

    def __init__(self) -> None:
        self.is_due = False  # whether constraints may have left garbage, to collect when idle
        self.least = resident_bytes()[0]  # after the last collection

    def collect(self) -> None:
        gc.collect()
        self.is_due, self.least = False, resident_bytes()[0]

    def collect_if_grown(self, resident: int) -> None:
        """Collect at once if a process with this much memory has grown too much since the last collection."""
        if resident > self.least + GROWTH:
            self.collect()
