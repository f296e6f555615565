"""A whole tuning run: measure every candidate on the tuning items, then confirm the choice on held-out items."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from gesso.api import Gesso
from gesso.errors import InputError
from gesso.eval.evaluate import Evaluation
from gesso.eval.paired import ComparedRun, Comparison, compare
from gesso.eval.task import LOG_PROBABILITY, Item
from gesso.eval.tune.grid import SettingsCandidate
from gesso.eval.tune.judge import Judge, Progress
from gesso.settings import Diffusion

SEARCH_SHARE = 0.4  # of the time, if it is limited; the rest is for the held-out items
MARGIN = 0.8  # of the time that is left, for as many held-out items as should fit
FEWEST = 6  # rows to split
FEWEST_PAIRS = 3  # for an interval
POINT = 100  # per cent of a score from 0 to 1

Watch = Callable[[str], AbstractContextManager[Progress]]  # shows the progress of the work with this name


class _OutOfTime(Exception):
    pass


@dataclass(frozen=True)
class Trial:
    """The answers of a candidate, and their difference to those of the default."""

    candidate: SettingsCandidate
    evaluation: Evaluation
    change: Comparison


@dataclass(kw_only=True)
class Tuning:
    """The result of a run."""

    name: str
    goal: tuple[str, ...]  # the scores that must not fall
    tolerance: float
    candidates: Sequence[SettingsCandidate]  # to try; the first is the default
    items: tuple[int, int]  # tuning and held-out items that there were
    seed: int
    trials: list[Trial] = field(default_factory=list)  # on the tuning items, of the default first
    confirmation: Trial | None = None  # of the choice, on the held-out items
    seconds: float = 0.0
    ended: str | None = None  # "time" or "interrupt", if it ended early

    @property
    def default(self) -> Diffusion:
        return self.candidates[0].settings

    @property
    def choice(self) -> Trial | None:
        """The candidate with the fewest passes of those whose scores are within the tolerance on the tuning items."""
        better = [
            trial
            for trial in self.trials
            if trial.change.passes.high is not None
            and trial.change.passes.high < 0
            and all(trial.change.scores[name].mean >= -self.tolerance for name in self.goal)
        ]
        return min(better, key=lambda trial: trial.change.passes_ratio.mean, default=None)

    @property
    def verdict(self) -> tuple[bool, str]:
        """Return whether the choice replaces the default, and why."""
        if len(self.trials) < 2:
            return False, "the run ended before any other settings had answered all tuning items"
        if self.choice is None:
            return False, "no settings take fewer passes beyond noise without a lower quality on the tuning items"
        if self.confirmation is None or self.ended == "interrupt":
            return False, "the choice was not confirmed on held-out items: the run was stopped before"
        change = self.confirmation.change
        if failures := self.confirmation.evaluation.failures:
            return False, f"the choice failed on a held-out item: {failures[0].error}"
        if change.passes.high is None or change.passes.high >= 0:
            return False, "the passes of the choice do not differ from the default's beyond noise"
        for name in self.goal:
            low = change.scores[name].low
            if low is None or low < -self.tolerance:
                least, most = (shown_change(value, name)[1:] for value in (low or 0.0, self.tolerance))
                reason = f"{name} may be lower by {least}, and the tolerance is {most}"
                return False, f"{reason}. More held-out items give a narrower interval"
        for name, score in change.scores.items():
            if score.high is not None and score.high < 0 and score.mean < -self.tolerance:
                return False, f"{name} is lower beyond noise and by more than the tolerance"
        return True, "fewer passes beyond noise, and no score is lower by more than the tolerance"

    @property
    def best(self) -> Diffusion:
        """The settings to use: the choice if it was confirmed, or else the default."""
        confirmed, _ = self.verdict
        return self.choice.candidate.settings if confirmed and self.choice else self.default


def shown_change(value: float, name: str) -> str:
    """Return a difference of scores with its sign and unit."""
    return f"{value:+.3f} nats" if name == LOG_PROBABILITY else f"{POINT * value:+.1f} points"


@dataclass(kw_only=True)
class Tuner:
    """A model, and how its answers are judged."""

    g: Gesso
    judge: Judge
    options: Mapping[str, Any]  # of `gesso.eval.evaluate`, such as max_new_tokens and seed
    watch: Watch
    finished: Callable[[Trial], None] = lambda trial: None  # called with each trial on the tuning items
    minutes: float | None = None
    clock: Callable[[], float] = time.monotonic

    def run(self, tuning: Tuning, items: Sequence[Item], held_out: Sequence[Item]) -> None:
        """Try the candidates on `items`, choose by these alone, and compare the choice with the default on `held_out`.

        After Ctrl-C or at the end of the time, the trials so far count.
        """
        if shared := {_question(item) for item in items} & {_question(item) for item in held_out}:
            raise InputError(f"{len(shared)} items are both for tuning and held out; remove them from one of the two")
        start = self.clock()
        limit = float("inf") if self.minutes is None else start + 60 * self.minutes
        until = limit if self.minutes is None else start + 60 * self.minutes * SEARCH_SHARE
        try:
            for candidate in tuning.candidates:
                tuning.trials.append(self._try(candidate, items, tuning.trials[:1], until))
                self.finished(tuning.trials[-1])
        except (_OutOfTime, KeyboardInterrupt) as end:
            tuning.ended = "time" if isinstance(end, _OutOfTime) else "interrupt"
        if tuning.choice is not None and tuning.ended != "interrupt":
            seconds = tuning.trials[0].evaluation.seconds + tuning.choice.evaluation.seconds
            fitting = MARGIN * (limit - self.clock()) / seconds * len(items)
            held_out = held_out[: int(min(len(held_out), fitting))]
            try:
                if len(held_out) >= FEWEST_PAIRS:
                    before = self._try(tuning.candidates[0], held_out, (), limit)
                    tuning.confirmation = self._try(tuning.choice.candidate, held_out, [before], limit)
            except (_OutOfTime, KeyboardInterrupt) as end:
                tuning.ended = "time" if isinstance(end, _OutOfTime) else "interrupt"
        tuning.seconds = self.clock() - start

    def _try(
        self, candidate: SettingsCandidate, items: Sequence[Item], default: Sequence[Trial], until: float
    ) -> Trial:
        """Answer items with some settings, and compare them with those of the default, if it has already answered."""
        with self.watch(f"{candidate.name}, {len(items)} items") as show:

            def progress(done: int, total: int) -> None:
                show(done, total)
                if self.clock() > until:
                    raise _OutOfTime

            evaluation = self.judge.evaluate(self.g, items, candidate.settings, self.options, progress)
        if not default and evaluation.failures:
            raise InputError(f"{evaluation.failures[0].name}: {evaluation.failures[0].error}")
        before = default[0].evaluation if default else evaluation
        return Trial(candidate, evaluation, compare(ComparedRun.of(before), ComparedRun.of(evaluation)))


def goal_of(judge: Judge, scores: Sequence[str]) -> tuple[str, ...]:
    """Return the scores that must not fall: those named, or by default all of the model or the first of a task."""
    if unknown := [name for name in scores if name not in judge.scores]:
        raise InputError(f"unknown score {unknown[0]!r}; expected {', '.join(judge.scores)}")
    every = LOG_PROBABILITY in judge.scores
    return tuple(scores) or (judge.scores if every else judge.scores[:1])


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


def _question(item: Item) -> str:
    return repr((item.prompt, item.meta.get("tools")))
