"""Bound the terms that a block of code makes, and its time. Some constraints have exponential size."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gesso.errors import InputError


class _Budget(threading.local):
    left: int | None = None
    deadline = math.inf  # in seconds of this thread's CPU time


_budget = _Budget()


@contextmanager
def at_most(terms: int, seconds: float = math.inf) -> Iterator[None]:
    """Raise InputError if the block makes more terms or takes longer."""
    before = _budget.left, _budget.deadline
    _budget.left, _budget.deadline = terms, min(_budget.deadline, time.thread_time() + seconds)
    try:
        yield
    except RecursionError:
        raise InputError("the constraint nests too deeply; flatten it") from None
    finally:
        _budget.left, _budget.deadline = before


def count_term() -> None:
    """Count a new term against the block of `at_most`."""
    if _budget.left is not None:
        _budget.left -= 1
        if _budget.left < 0:
            raise InputError(
                "the constraint is too large to compile (limits.terms); use fewer alternatives, simpler patterns or "
                "less nesting"
            )
        if _budget.left % 256 == 0:
            check_time()


def check_time() -> None:
    """Raise InputError if the block of `at_most` has taken too long. Work that makes no terms has to call it."""
    if time.thread_time() > _budget.deadline:
        raise InputError(
            "the constraint takes too long to compile (limits.seconds); simplify its patterns and conditions, or use "
            "fewer alternatives"
        )
