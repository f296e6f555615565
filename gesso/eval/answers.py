"""The answers to a task's items, many under way at once.

A plan of `gesso.engine.plan` answers an item: attempts one after another, until one stands as far as the task can tell,
and each the likeliest of several candidates.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gesso.engine.events import Result
from gesso.engine.plan import Plan, PlanRun, likeliest
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.eval.task import Checkable, Holes, Item, Task
from gesso.infill.infill import infill

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


@dataclass(frozen=True)
class _UnderWay:
    index: int
    run: PlanRun[list[Result]]
    since: float


def answers(
    g: "Gesso", task: Task, questions: Sequence[Question], batch: int, tries: Tries
) -> Iterator[tuple[int, list[Result] | Exception, float]]:
    """Yield (index, all attempts or the error, seconds) of each question as it ends; the last attempt counts."""
    if g.engine.busy:  # this loop would take the events of those requests
        raise InputError("the engine has open requests; finish or close their streams before an evaluation")
    waiting = iter(range(len(questions)))
    running: dict[int, _UnderWay] = {}  # by request id; all requests of a question until it ends
    open_items = 0
    try:
        while True:
            while open_items < batch and (index := next(waiting, None)) is not None:
                under_way = _UnderWay(
                    index, PlanRun(_attempts(g, task, questions[index], tries), g.engine), time.perf_counter()
                )
                try:
                    under_way.run.start()
                except InputError as error:
                    yield index, error, 0.0
                    continue
                running |= dict.fromkeys(under_way.run.ids, under_way)
                open_items += 1
            if not running:
                return
            for event in g.engine.step():
                if event.request_id not in running:  # of a stream that was left early
                    continue
                under_way = running[event.request_id]
                found: list[Result] | Exception
                try:
                    if not under_way.run.take(event):
                        running |= dict.fromkeys(under_way.run.ids, under_way)
                        continue
                    found = under_way.run.result
                except Exception as error:
                    found = error
                for request_id in under_way.run.ids:
                    del running[request_id]
                open_items -= 1
                yield under_way.index, found, time.perf_counter() - under_way.since
    finally:
        for under_way in running.values():
            under_way.run.cancel()


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
