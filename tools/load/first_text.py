"""`python -m tools.load first-text`: at which step of the first canvas a stream has text to send, over held-out items.

A server streams settled text only, because settled text is never changed. The share is the step at which the first text
settled, divided by the steps of that canvas. A canvas that settles nothing before its end counts as 1.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gesso
from gesso.api import Gesso
from gesso.engine.events import Done, Draft, Failed
from gesso.eval import task
from gesso.eval.task import Item

SETTLE = 1  # as a server uses it
TASKS = ("structured", "python_infill")


@dataclass
class First:
    """The first canvas of one answer. If it comes out empty and is denoised again, all its steps count."""

    steps: int = 0
    shown_at: int | None = None

    @property
    def share(self) -> float:
        return (self.shown_at or self.steps) / self.steps

    def add(self, event: Draft) -> None:
        if event.canvas.index == 0:
            self.steps += 1
            if self.shown_at is None and event.decode(event.final_tokens):
                self.shown_at = self.steps


def measure(model: str | None, preset: str, count: int, tasks: Sequence[str] = TASKS) -> dict[str, Any]:
    """Run `count` items of each task with the settings of a server."""
    g = gesso.load(model)
    found = {}
    for name in tasks:
        chosen = task(name)
        options = {**chosen.options, "preset": preset, "settle": SETTLE}
        found[name] = _summary(list(_firsts(g, list(chosen.items("test", count, 0)), options)))
    shares = [one["mean_share"] for one in found.values()]
    return {"preset": preset, "settle": SETTLE, "mean_share": round(statistics.fmean(shares), 3), **found}


def _firsts(g: Gesso, items: list[Item], options: dict[str, Any]) -> Iterator[First]:
    """Submit all items at once; the engine batches them."""
    running: dict[int, First] = {}
    for seed, item in enumerate(items):
        if isinstance(item.prompt, str):
            request = g.request(item.prompt, seed=seed, **options)
        else:
            request = g.chat_request(item.prompt, tools=item.meta.get("tools"), seed=seed, **options)
        running[g.engine.submit(request)] = First()
    while running:
        for event in g.engine.step():
            match event:
                case Draft(request_id):
                    running[request_id].add(event)
                case Failed(_, error):
                    raise error
                case Done(request_id):
                    yield running.pop(request_id)


def _summary(firsts: list[First]) -> dict[str, Any]:
    return {
        "answers": len(firsts),
        "mean_share": round(statistics.fmean(first.share for first in firsts), 3),
        "shown_at_step": round(statistics.fmean(first.shown_at or first.steps for first in firsts), 2),
        "steps_of_canvas": round(statistics.fmean(first.steps for first in firsts), 2),
        "only_at_the_end": sum(first.shown_at in (None, first.steps) for first in firsts),
    }
