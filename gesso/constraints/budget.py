"""Bound the number of terms and the time of a block of code, and let a block pause. Some constraints have exponential
size.

Threads that compile constraints give way to the engine's passes on a GPU. All threads share Python's interpreter lock,
and every tensor operation releases it: while another thread computes, each of the hundreds of operations of a step
waits to get it back.
"""

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import RLock
from typing import TypeVar

from gesso.errors import InputError

LOCKED_SECONDS = 0.001  # that a block of `pausing` waits for another thread
# A thread that gives way works and rests in turns.
WORK_SECONDS = 0.0005
REST_SECONDS = 0.002

T = TypeVar("T")
Awaited = Future[None] | None  # the work of another thread that code waits for before it can go on
Pauses = Generator[Awaited, None, T]


class Paused(Exception):
    """A block of `pausing` must stop. The states it has computed are kept, so it gets further when repeated."""

    def __init__(self, awaited: Awaited = None) -> None:
        super().__init__()
        self.awaited = awaited


class TookTooLong(InputError):
    """A block of `at_most` has exceeded its time."""


class _Budget(threading.local):
    left: int | None = None
    deadline = math.inf  # in seconds of this thread's CPU time
    is_over: Callable[[], bool] | None = None
    gives_way = False
    rested = 0.0  # when it last gave way


_budget = _Budget()
_going_first = 0  # blocks of `going_first` under way
_waiting: set[int] = set()  # threads that wait for a lock; adding and discarding are atomic


@contextmanager
def at_most(terms: int, seconds: float = math.inf) -> Iterator[None]:
    """Raise InputError if the block makes more terms or takes longer."""
    before = _budget.left, _budget.deadline
    _budget.left = terms
    _budget.deadline = min(_budget.deadline, time.thread_time() + seconds)
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
        if _budget.left % 64 == 0:
            check_time()


def check_time() -> None:
    """Raise InputError if the block of `at_most` has taken too long. Call this in work that makes no terms."""
    _give_way()
    if time.thread_time() > _budget.deadline:
        raise TookTooLong(
            "the constraint takes too long to compile (limits.seconds); simplify its patterns and conditions, or use "
            "fewer alternatives"
        )


@contextmanager
def pausing(is_over: Callable[[], bool]) -> Iterator[None]:
    """Raise Paused in the block after the first state that is computed once `is_over` returns True."""
    before, _budget.is_over = _budget.is_over, is_over
    try:
        yield
    finally:
        _budget.is_over = before


def pause_if_over() -> None:
    """Pause if the block of `pausing` must stop."""
    _give_way()
    if _budget.is_over is not None and _budget.is_over():
        raise Paused


def may_pause() -> bool:
    """Return whether this is a block of `pausing`."""
    return _budget.is_over is not None


@contextmanager
def going_first(applies: bool) -> Iterator[None]:
    """While the block runs, limit threads that give way to 20 % of the time. Do nothing unless it `applies`."""
    global _going_first
    _going_first += applies
    try:
        yield
    finally:
        _going_first -= applies


def give_way_to_passes() -> None:
    """Mark this thread as one that gives way."""
    _budget.gives_way = True


def _give_way() -> None:
    if _budget.gives_way and _going_first and not _waiting and time.monotonic() - _budget.rested >= WORK_SECONDS:
        time.sleep(REST_SECONDS)
        _budget.rested = time.monotonic()


@contextmanager
def holding(lock: RLock) -> Iterator[None]:
    """Hold a lock. A block of `pausing` pauses if another thread holds it too long."""
    if not lock.acquire(blocking=False):
        _waiting.add(threading.get_ident())  # so that the thread that holds the lock does not rest
        try:
            if not lock.acquire(timeout=LOCKED_SECONDS if may_pause() else -1):
                raise Paused
        finally:
            _waiting.discard(threading.get_ident())
    try:
        yield
    finally:
        lock.release()


def repeated(step: Callable[[], T]) -> Pauses[T]:
    """Repeat a step until it is not paused. Yield the work that it waits for."""
    while True:
        try:
            return step()
        except Paused as pause:
            awaited = pause.awaited
        yield awaited


def complete(parts: Pauses[T]) -> T:
    """Run a generator to its end, and return its result."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            result: T = end.value
            return result


def deadline(seconds: float) -> Callable[[], bool]:
    """Return a function that returns whether `seconds` have passed."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end
