"""Keep freed memory in the process.

By default, glibc gives large blocks back to the system as soon as they are free. Every step then faults the pages of
its logits in again, thousands of them, which takes longer than the arithmetic on them.
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
BLOCK = 32 * 2**20  # largest block that is kept, and the largest that glibc allows here
KEPT = 128 * 2**20


def keep_freed_memory() -> None:
    """Let the allocator keep up to KEPT bytes. Without glibc, do nothing."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function; no such library (Windows)
        return
    mallopt(M_MMAP_THRESHOLD, BLOCK)
    mallopt(M_TRIM_THRESHOLD, KEPT)
