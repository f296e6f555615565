"""The answers to a task's items, many under way at once.

How an item is answered is a plan of `gesso.plan`: attempts one after another, until one stands as far as the task can
tell, and each the likeliest of several candidates.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gesso.engine.events import Done, Failed, Result
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.filling import infill
from gesso.plan import Plan, likeliest
from gesso.tasks.task import Checkable, Holes, Item, Task

if TYPE_CHECKING:
    from gesso.api import Gesso


@dataclass(frozen=True)
class Question:
    item: Item
    seed: int
    options: Mapping[str, Any]  # of `Gesso.generate`


@dataclass(frozen=True)
class Tries:
    """How often an item may be tried: one after another, and side by side."""

    attempts: int = 1
    candidates: int = 1
    pinned: bool = False  # holes are filled with what follows them pinned in the canvas, and not in the prompt

    def check(self, task: Task, items: Sequence[Item]) -> None:
        for name, count in (("attempts", self.attempts), ("candidates", self.candidates)):
            if count < 1:
                raise InputError(f"{name} must be at least 1, got {count}")
        if self.attempts > 1 and not isinstance(task, Checkable):
            raise InputError(f"attempts need a task that can tell a wrong answer by itself; {task.name} cannot")
        if self.pinned and not isinstance(task, Holes):
            raise InputError(f"pinned is for holes in a text; the items of {task.name} are none")
        if self.candidates > 1 and not all(isinstance(item.prompt, str) for item in items):
            raise InputError(f"candidates are for text to continue; the items of {task.name} are conversations")


@dataclass(eq=False)
class _UnderWay:
    index: int
    plan: Plan[list[Result]]
    since: float
    waiting: list[int] = field(default_factory=list)  # ids of the requests of this round, in order
    results: dict[int, Result] = field(default_factory=dict)


def answers(
    g: "Gesso", task: Task, questions: Sequence[Question], batch: int, tries: Tries
) -> Iterator[tuple[int, list[Result] | Exception, float]]:
    """(index, every attempt or what went wrong, seconds) of each question, as they come; the last attempt counts."""
    if g.engine.busy:  # their events would come to us and be lost to those who wait for them
        raise InputError("the engine has open requests; finish or close their streams before an evaluation")
    waiting = iter(range(len(questions)))
    running: dict[int, _UnderWay] = {}  # by request
    open_items = 0

    def go_on(under_way: _UnderWay, requests: Sequence[Request]) -> None:
        under_way.waiting = [g.engine.submit(request) for request in requests]
        running.update(dict.fromkeys(under_way.waiting, under_way))

    try:
        while True:
            while open_items < batch and (index := next(waiting, None)) is not None:
                try:
                    plan = _attempts(g, task, questions[index], tries)
                    go_on(_UnderWay(index, plan, time.perf_counter()), next(plan))
                    open_items += 1
                except InputError as error:
                    yield index, error, 0.0
            if not running:
                return
            for event in g.engine.step():
                if not isinstance(event, (Done, Failed)) or event.request_id not in running:  # a stream left early
                    continue
                under_way = running.pop(event.request_id)
                found: list[Result] | Exception
                if isinstance(event, Failed):
                    for other in under_way.waiting:
                        running.pop(other, None)
                        g.engine.cancel(other)
                    found = event.error
                else:
                    under_way.results[event.request_id] = event.result
                    if len(under_way.results) < len(under_way.waiting):
                        continue
                    try:
                        in_order = [under_way.results[request] for request in under_way.waiting]
                        under_way.results = {}
                        go_on(under_way, under_way.plan.send(in_order))
                        continue
                    except StopIteration as end:
                        found = end.value
                open_items -= 1
                yield under_way.index, found, time.perf_counter() - under_way.since
    finally:
        for request_id in running:
            g.engine.cancel(request_id)


def _attempts(g: "Gesso", task: Task, question: Question, tries: Tries) -> Plan[list[Result]]:
    item = question.item
    tried = [(yield from _one(g, task, item, question, tries))]
    while isinstance(task, Checkable) and len(tried) < tries.attempts and not task.stands(item, tried[-1].text):
        form, read = task.again(item, question.seed, len(tried))
        result = yield from _one(g, task, form, question, tries)
        tried.append(replace(result, text=read(result.text)))
    return tried


def _one(g: "Gesso", task: Task, item: Item, question: Question, tries: Tries) -> Plan[Result]:
    if not tries.pinned:
        return (yield from likeliest(g, _request(g, item, question), tries.candidates))
    assert isinstance(task, Holes)
    before, after = task.hole(item)
    options = {**question.options, "seed": question.seed, "candidates": tries.candidates}
    return (yield from infill(g, before, after, method="pinned", lengths=None, context=None, **options))


def _request(g: "Gesso", item: Item, question: Question) -> Request:
    options = {**question.options, "seed": question.seed}
    if isinstance(item.prompt, str):
        return g.request(item.prompt, **options)
    return g.chat_request(item.prompt, tools=item.meta.get("tools"), **options)
