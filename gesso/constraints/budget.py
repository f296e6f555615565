"""Bound the terms that a block of code makes, and its time, and let a block pause. Some constraints have exponential
size.
"""

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gesso.errors import InputError

T = TypeVar("T")


class Paused(Exception):
    """A block of `pausing` has to stop. The states that it has made are kept, so it gets further when repeated."""


class _Budget(threading.local):
    left: int | None = None
    deadline = math.inf  # in seconds of this thread's CPU time
    is_over: Callable[[], bool] | None = None


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


@contextmanager
def pausing(is_over: Callable[[], bool]) -> Iterator[None]:
    """Raise Paused in the block when it has made a state and `is_over`."""
    before, _budget.is_over = _budget.is_over, is_over
    try:
        yield
    finally:
        _budget.is_over = before


def pause_if_over() -> None:
    """Pause if the block of `pausing` has to stop."""
    if _budget.is_over is not None and _budget.is_over():
        raise Paused


def repeated(step: Callable[[], T]) -> Generator[None, None, T]:
    """Repeat a step until it is not paused."""
    while True:
        try:
            return step()
        except Paused:
            yield


def complete(parts: Generator[None, None, T]) -> T:
    """Run a generator to its end, and return what it returns."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            found: T = end.value
            return found


def deadline(seconds: float) -> Callable[[], bool]:
    """Return a function that tells whether this time has passed."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end
