"""The limits of a chat template, the work it has left, and the sizes of the values it creates."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateRuntimeError
from jinja2.utils import Namespace

MAX_TOKENS = 1 << 15  # of a template's source; 100 kB of a published template have fewer
MAX_CHARS = 1 << 23  # of one string, or of all elements of a list
MAX_BITS = 1 << 14  # of an integer; JSON can have integers of 4,300 digits
NODE = 64  # characters that an element of a list or dictionary counts as: a string object has as many bytes


class Runaway(TemplateRuntimeError):
    """A template exceeded one of the limits, or used an operation that is not available."""


@dataclass(frozen=True, kw_only=True)
class WorkLimits:
    """The most work of one rendering, or of one compilation.

    Published templates append to a text in a loop, and look back at all earlier messages for each one. So 400 tools of
    2 kB take 2 billion characters, which are 0.1 s, and 2,000 messages take 2 million steps in Gemma 4's template.
    """

    steps: int = 4_000_000  # loop iterations, elements of lazy filters, calls, filters, tests and operators
    characters: int = 1 << 32  # that are read and created
    held: int = 1 << 26  # characters of the results in use at one time, up to four bytes each
    seconds: float = 10.0  # of processor time: a busy machine refuses no more than an idle one


WORK_LIMITS = WorkLimits()


class RenderingBudget:
    """The work that one rendering, or one compilation, has left."""

    def __init__(self, limits: WorkLimits) -> None:
        self.limits = limits
        self.steps = limits.steps
        self.work = limits.characters
        self.held = HeldResults(limits.held)
        self.end = time.thread_time() + limits.seconds

    def spend(self, work: int, steps: int = 1) -> None:
        self.steps -= steps
        self.work -= work
        if self.steps < 0:
            raise Runaway(f"it takes more than {self.limits.steps:,} steps")
        if self.work < 0:
            raise Runaway(f"it reads and creates more than {self.limits.characters:,} characters")
        if time.thread_time() > self.end:
            raise Runaway(f"it takes more than {self.limits.seconds:g} s of processor time")


class HeldResults:
    """The results that a template still refers to, whose size is limited.

    Python does not tell when a text is freed. So each result is kept here until together they exceed the limit; then
    those without another reference are dropped.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0  # characters
        self.results: dict[int, tuple[Any, int]] = {}  # a result and its characters, by its identity

    def add(self, result: Any, characters: int) -> None:
        _, counted = self.results.get(id(result), (None, 0))
        self.results[id(result)] = (result, characters)
        self.total += characters - counted
        if self.total > self.limit:
            self._drop_unused()
        if self.total > self.limit:
            raise Runaway(f"it holds texts and lists of more than {self.limit:,} characters at one time")

    def _drop_unused(self) -> None:
        self.results = {key: entry for key, entry in self.results.items() if _references(entry) > _UNUSED}
        self.total = sum(characters for _, characters in self.results.values())


def _references(entry: tuple[Any, int]) -> int:
    return sys.getrefcount(entry[0])


_UNUSED = _references((object(), 0))  # references to a result that only its entry refers to


_budget: ContextVar[RenderingBudget | None] = ContextVar("template_budget", default=None)


@contextmanager
def limited(limits: WorkLimits = WORK_LIMITS) -> Iterator[None]:
    """Give the block its own budget. Nothing of a template is evaluated outside such a block."""
    token = _budget.set(RenderingBudget(limits))
    try:
        yield
    finally:
        _budget.reset(token)


def spend(work: int, steps: int = 1) -> None:
    """Take work from the budget of the template that is running."""
    _current().spend(work, steps)


def _current() -> RenderingBudget:
    budget = _budget.get()
    assert budget is not None, "templates are compiled and rendered in `limited()`"
    return budget


def charge(value: Any) -> Any:
    """Charge a result to the budget, and return it. An iterator is charged for each element that is taken from it."""
    characters = size(value)
    spend(characters)
    if characters > NODE:  # smaller ones are limited by the steps
        _current().held.add(value, NODE + characters)
    return _counted(value) if hasattr(value, "__next__") else value


def _counted(elements: Iterator[Any]) -> Iterator[Any]:
    for element in elements:
        spend(0)
        yield element


def size(value: Any) -> int:
    """Return the size of a value in characters. Shared parts count each time they occur, as in printing."""
    total = 0
    waiting = [value]
    while waiting and total <= MAX_CHARS:
        part = waiting.pop()
        if isinstance(part, str | bytes):
            total += len(part)
        elif isinstance(part, int):
            if part.bit_length() > MAX_BITS:
                raise Runaway(f"it creates a number of more than {MAX_BITS:,} bits")
            total += part.bit_length() // 3
        elif isinstance(part, list | tuple | set | frozenset):
            total += NODE * len(part)
            waiting.extend(part)
        elif isinstance(part, dict | Namespace):
            fields: dict[Any, Any] = part._Namespace__attrs if isinstance(part, Namespace) else part
            total += NODE * len(fields)
            waiting.extend(fields)
            waiting.extend(fields.values())
    if total > MAX_CHARS:
        raise Runaway(f"it creates a text or list of more than {MAX_CHARS:,} characters")
    return total


def check_size(characters: int) -> int:
    """Return the size of a value that is about to be created. Raise Runaway if it is too large."""
    if characters > MAX_CHARS:
        raise Runaway(f"it would create a text or list of {characters:,} characters; at most {MAX_CHARS:,} are allowed")
    return characters


def concatenated(parts: Iterable[str]) -> str:
    """Return the text of a macro or a block, of which the parts were charged one by one."""
    texts = list(parts)
    check_size(sum(map(len, texts)))
    return str(charge("".join(texts)))


def as_list(value: Any) -> Any:
    """Return an iterator as a list, whose size is known; return other values unchanged."""
    if not hasattr(value, "__next__"):
        return value
    elements: list[Any] = []
    total = 0
    for element in value:
        total += NODE + size(element)
        check_size(total)
        elements.append(element)
    return elements
