"""Counts of captured passes and compiled kernels in this process.

A server captures and compiles before it is ready. If these counts grow later, users have waited for it.
"""

from threading import Lock
from typing import Any

from triton import knobs

from gesso.backends.base import Counts

COUNTS = Counts()


def _count_compilations() -> None:
    before, lock = knobs.compilation.listener, Lock()  # several threads may compile

    def compiled(*, cache_hit: bool, **details: Any) -> None:
        with lock:
            COUNTS.compilations += not cache_hit
            COUNTS.kernel_loads += cache_hit
        if before is not None:
            before(cache_hit=cache_hit, **details)

    knobs.compilation.listener = compiled


_count_compilations()
