"""A whole tuning run: search on the tuning items, then confirm the choice on held-out items."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gesso.api import Gesso
from gesso.errors import InputError
from gesso.eval.task import Item, Task
from gesso.eval.tune.candidates import candidates
from gesso.eval.tune.measure import LIKELIHOOD, Bench, Judge
from gesso.eval.tune.search import (
    DEFAULT,
    Goal,
    Measure,
    Measured,
    Search,
    Standing,
    Table,
    choice,
    collect,
    search,
    standing,
)
from gesso.settings import Diffusion, WriteName

SEARCH_SHARE = 0.4  # of the time, if it is limited; the rest is for the held-out items
FEWEST = 6  # rows to split
POINT = 100  # per cent of a score from 0 to 1

Progress = Callable[[str, int, int], None]  # (stage, done, total)


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The result of a run."""

    name: str
    goal: Goal
    settings: tuple[Diffusion, ...]  # all candidates; the first is the default
    search: Search
    chosen: int  # on the tuning items
    held_out: Table = field(default_factory=Table)
    items: tuple[int, int]  # tuning and held-out items that there were
    seed: int
    seconds: float
    ended: str | None  # "time" or "interrupt", if it ended early

    @property
    def confirmation(self) -> Standing | None:
        """The choice compared with the default on the held-out items, or None if it was not measured there."""
        if self.chosen == DEFAULT or len(self.held_out.common((DEFAULT, self.chosen))) < 3:
            return None
        return standing(self.held_out, self.chosen, self.goal.bounded)

    @property
    def verdict(self) -> tuple[bool, str]:
        """Return whether the choice replaces the default, and why."""
        found, goal = self.confirmation, self.goal
        if self.chosen == DEFAULT and self.ended is not None and not self.search.rounds:
            return False, "the run ended before all settings had answered the items of the first round"
        if self.chosen == DEFAULT:
            return False, "no settings take fewer passes beyond noise without a lower quality on the tuning items"
        if found is None or self.ended == "interrupt":
            return False, "the choice was not confirmed on held-out items: the run was stopped before"
        if error := self.held_out.errors.get(self.chosen):
            return False, f"the choice failed on a held-out item: {error}"
        if found.passes.high is None or found.passes.high >= 0:
            return False, "the passes of the choice do not differ from the default's beyond noise"
        for name in goal.scores:
            low = found.scores[name].low
            if low is None or low < -goal.tolerance:
                least, most = (shown_change(value, name)[1:] for value in (low or 0.0, goal.tolerance))
                reason = f"{name} may be lower by {least}, and the tolerance is {most}"
                return False, f"{reason}. More held-out items give a narrower interval"
        for name, change in found.scores.items():
            if change.high is not None and change.high < 0 and change.mean < -goal.tolerance:
                return False, f"{name} is lower beyond noise and by more than the tolerance"
        return True, "fewer passes beyond noise, and no score is lower by more than the tolerance"

    @property
    def best(self) -> Diffusion:
        """The settings to use: the choice if it was confirmed, or else the default."""
        return self.settings[self.chosen if self.verdict[0] else DEFAULT]


def shown_change(value: float, name: str) -> str:
    """Return a difference of scores with its sign and unit."""
    return f"{value:+.3f} nats" if name == LIKELIHOOD else f"{POINT * value:+.1f} points"


def tune(
    g: Gesso,
    name: str,
    judge: Judge,
    tuning: Sequence[Item],
    held_out: Sequence[Item],
    *,
    writes: Sequence[WriteName],
    scores: Sequence[str] = (),
    tolerance: float = 0.02,
    options: Mapping[str, Any],
    minutes: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tuning:
    """Return the settings with the fewest passes whose scores are not lower than the default's by `tolerance`.

    The choice is made on `tuning` items alone, and then compared with the default on `held_out` items. `scores` are
    those to which the tolerance applies (none: all of a judgement by the model, the first of a task).
    """
    start = time.monotonic()
    limit = None if minutes is None else start + 60 * minutes
    if shared := {_question(item) for item in tuning} & {_question(item) for item in held_out}:
        raise InputError(f"{len(shared)} items are both for tuning and held out; remove them from one of the two")
    goal = _goal(judge, scores, tolerance, len(held_out))
    most = options.get("max_new_tokens") or g.defaults.max_new_tokens
    settings = candidates(g.defaults.diffusion, writes, min(most, g.config.canvas_length), seed)

    def bench(items: Sequence[Item]) -> Bench:
        return Bench(g=g, judge=judge, items=items, settings=settings, options=options, seed=seed)

    until = None if minutes is None else start + 60 * minutes * SEARCH_SHARE
    watched = _watched(bench(tuning), progress, "round")
    found = search(watched, len(settings), len(tuning), goal, until)
    chosen, confirmed, ended = choice(found, goal), Table(), found.ended
    if chosen != DEFAULT and ended != "interrupt":
        measure = _watched(bench(held_out), progress, "held-out items")
        ended = collect(measure([DEFAULT, chosen], range(len(held_out))), confirmed, limit) or ended
    return Tuning(
        name=name,
        goal=goal,
        settings=tuple(settings),
        search=found,
        chosen=chosen,
        held_out=confirmed,
        items=(len(tuning), len(held_out)),
        seed=seed,
        seconds=time.monotonic() - start,
        ended=ended,
    )


def _goal(judge: Judge, scores: Sequence[str], tolerance: float, held_out: int) -> Goal:
    if unknown := [name for name in scores if name not in judge.scores]:
        raise InputError(f"unknown score {unknown[0]!r}; expected {', '.join(judge.scores)}")
    wanted = tuple(scores) or (judge.scores[:1] if judge.bounded else judge.scores)
    return Goal(scores=wanted, tolerance=tolerance, held_out=held_out, bounded=judge.bounded)


def _watched(measure: Measure, progress: Progress | None, name: str) -> Measure:
    """Return a measurement that reports its progress, by the name of its stage and numbers of rounds."""
    number = 0

    def watched(candidates: Sequence[int], items: range) -> Iterator[tuple[int, int, Measured | Exception]]:
        nonlocal number
        number += 1
        stage = f"{name} {number}: {len(candidates)} settings" if name == "round" else name
        total = len(candidates) * len(items)
        if progress:
            progress(stage, 0, total)
        for done, answer in enumerate(measure(candidates, items), 1):
            if progress:
                progress(stage, done, total)
            yield answer

    return watched


# --- items ------------------------------------------------------------------------------------------------------------


def split(items: Sequence[Item], held_out: int, seed: int) -> tuple[list[Item], list[Item]]:
    """Divide rows into those to tune on and `held_out` others, at most half of all, in random order.

    Rows with the same question are on the same side.
    """
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(_question(item), []).append(item)
    if len(groups) < FEWEST:
        raise InputError(f"tuning needs at least {FEWEST} different prompts, half of them to check the result on; got "
                         f"{len(groups)}")  # fmt: skip
    order = sorted(groups)
    random.Random(f"tune split {seed}").shuffle(order)
    most = min(held_out, len(items) // 2)
    sides: tuple[list[Item], list[Item]] = ([], [])
    for key in order:
        side = sides[1] if len(sides[1]) < most else sides[0]
        side.extend(groups[key])
    return sides


def draw(task: Task, count: int, held_out: int, seed: int) -> tuple[list[Item], list[Item]]:
    """Return tuning items of a task's validation split and held-out items of its test split."""
    return list(task.items("validation", count, seed)), list(task.items("test", held_out, seed))


def _question(item: Item) -> str:
    return repr((item.prompt, item.meta.get("tools")))
