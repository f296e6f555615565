"""Successive halving: measure all candidates on few items, the better half on more, and so on.

Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter optimization, 2016. The aim here is
not the best score but the fewest passes without a lower score. Candidates are ranked by the passes that they can be
expected to save: the share that they save, times the probability that held-out items confirm their quality.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean

from gesso.eval.estimate import Estimate, Z
from gesso.eval.paired import difference, ratio, score_difference

FINALISTS = 4  # candidates in the last round, beside the default
FIRST = 8  # items of the first round
FEWEST_ROUNDS = 2  # however short the time
DEFAULT = 0  # the candidate to compare with


@dataclass(frozen=True)
class Measured:
    """The answer to one item with some settings."""

    scores: Mapping[str, float]
    passes: float


# Yields (candidate, item, answer or error) for all given candidates on the items of a range, in any order.
Measure = Callable[[Sequence[int], range], Iterator[tuple[int, int, Measured | Exception]]]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The condition for settings to be chosen: how far which scores may fall, as held-out items have to confirm."""

    scores: tuple[str, ...]
    tolerance: float
    held_out: int  # items
    bounded: bool = True  # scores are from 0 to 1


@dataclass
class Table:
    """All answers so far, by candidate and item."""

    answers: dict[int, dict[int, Measured]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)  # of candidates that failed

    def add(self, candidate: int, item: int, found: Measured | Exception) -> None:
        if isinstance(found, Exception):
            self.errors.setdefault(candidate, str(found) or repr(found))
        else:
            self.answers.setdefault(candidate, {})[item] = found

    def common(self, candidates: Iterable[int]) -> list[int]:
        """Return the items that all these candidates have answered."""
        sets = [self.answers.get(candidate, {}).keys() for candidate in candidates]
        return sorted(set.intersection(*map(set, sets))) if sets else []

    def scores(self, candidate: int, items: Sequence[int], name: str) -> list[float]:
        return [self.answers[candidate][item].scores[name] for item in items]

    def quality(self, candidate: int, items: Sequence[int]) -> list[float]:
        """Return the mean of all scores per item. It varies less than a single score that is 0 or 1."""
        return [fmean(self.answers[candidate][item].scores.values()) for item in items]

    def passes(self, candidate: int, items: Sequence[int]) -> list[float]:
        return [self.answers[candidate][item].passes for item in items]


@dataclass(frozen=True)
class Standing:
    """A candidate compared with the default on the same items."""

    candidate: int
    count: int
    quality: Estimate  # difference of the mean of all scores
    scores: Mapping[str, Estimate]  # differences
    passes: Estimate  # difference
    ratio: Estimate  # of the passes


def standing(table: Table, candidate: int, bounded: bool, base: int = DEFAULT) -> Standing:
    """Compare a candidate with another, the default, on the items that both have answered."""
    items = table.common((base, candidate))
    names = table.answers[base][items[0]].scores if items else ()
    compare = score_difference if bounded else difference
    passes = table.passes(base, items), table.passes(candidate, items)
    return Standing(
        candidate=candidate,
        count=len(items),
        quality=difference(table.quality(base, items), table.quality(candidate, items)),
        scores={name: compare(table.scores(base, items, name), table.scores(candidate, items, name)) for name in names},
        passes=difference(*passes),
        ratio=ratio(*passes),
    )


# --- ranking ----------------------------------------------------------------------------------------------------------


def chance(found: Estimate, count: int, goal: Goal) -> float:
    """Return the probability that the interval on the held-out items will be above −tolerance.

    The mean there will differ from this one by the errors of both. Its interval reaches as far as this one, scaled by
    the numbers of items.
    """
    if found.low is None or found.high is None:
        return 0.5
    error = max((found.high - found.low) / 2 / Z, 1e-9)
    held_out = error * math.sqrt(count / goal.held_out)
    return NormalDist().cdf((found.mean + goal.tolerance - Z * held_out) / math.hypot(error, held_out))


def expected_saving(found: Standing, goal: Goal) -> float:
    """Return the share of passes that a candidate saves, times the probability that its quality is confirmed."""
    likely = [chance(found.quality, found.count, goal)]
    likely += [chance(found.scores[name], found.count, goal) for name in goal.scores]
    return (1 - found.ratio.mean) * min(likely)


def dominated(table: Table, candidate: int, others: Iterable[int]) -> bool:
    """Return whether another candidate is better by one measure beyond noise, and not worse by the other."""
    for other in others:
        if other == candidate:
            continue
        change = standing(table, other, bounded=False, base=candidate)  # from `candidate` to `other`
        if change.passes.high is None or change.quality.low is None:
            continue
        if change.passes.high < 0 and change.quality.mean >= 0:
            return True
        if change.quality.low > 0 and change.passes.mean <= 0:
            return True
    return False


def survivors(table: Table, alive: Sequence[int], keep: int, goal: Goal) -> list[int]:
    """Return the default and at most `keep` others.

    Dominated candidates are dropped, and those whose quality is too low beyond noise. The best quality stays, so that
    the result shows what more passes buy; then come the highest expected savings.
    """
    others = [one for one in alive if one != DEFAULT and one not in table.errors]
    found = {one: standing(table, one, goal.bounded) for one in others}
    hopeless = [one for one in others if (high := found[one].quality.high) is not None and high < -goal.tolerance]
    rest = [one for one in others if one not in hopeless and not dominated(table, one, [DEFAULT, *others])]
    ranked = sorted(rest, key=lambda one: (-expected_saving(found[one], goal), one))
    best = max(rest, key=lambda one: (found[one].quality.mean, -one), default=None)
    kept = ranked[:keep]
    if best is not None and best not in kept:
        kept = [*kept[: keep - 1], best]
    return [DEFAULT, *sorted(kept)]


def front(table: Table, candidates: Sequence[int]) -> list[int]:
    """Return the candidates of which no other has both fewer passes and a higher quality, by their means."""
    items = table.common(candidates)
    points = {one: (fmean(table.passes(one, items)), -fmean(table.quality(one, items))) for one in candidates}
    return [
        one
        for one, point in points.items()
        if not any(all(a <= b for a, b in zip(q, point, strict=True)) and q != point for q in points.values())
    ]


# --- the search -------------------------------------------------------------------------------------------------------


@dataclass
class Search:
    """The answers on the tuning items, the candidates of each round, and the choice."""

    table: Table
    rounds: list[tuple[int, list[int]]] = field(default_factory=list)  # (items, candidates) of each finished round
    alive: list[int] = field(default_factory=list)
    ended: str | None = None  # reason for an early end: "time" or "interrupt"


def rounds(count: int) -> list[int]:
    """Return the number of items after each round: doubled from FIRST up to `count`."""
    counts = [count]
    while counts[0] > FIRST:
        counts.insert(0, math.ceil(counts[0] / 2))
    return counts


def kept(alive: int) -> int:
    """Return how many of `alive` candidates may stay after a round, beside the default."""
    return min(alive - 1, max(FINALISTS, math.ceil((alive - 1) / 2)))


def affordable(alive: int, done: int, targets: Sequence[int], answers: float) -> int:
    """Return how many of the candidates can go through these rounds with so many answers: FINALISTS + 1 or more.

    The rounds lead from `done` items to each of `targets`.
    """

    def cost(count: int) -> int:
        total, before = 0, done
        for target in targets:
            total += count * (target - before)
            count, before = 1 + kept(count), target
        return total

    least = min(alive, FINALISTS + 1)
    return next((count for count in range(alive, least, -1) if cost(count) <= answers), least)


def search(measure: Measure, candidates: int, count: int, goal: Goal, until: float | None = None) -> Search:
    """Measure candidates 0 to `candidates` − 1 on up to `count` items and drop the worse half in every round.

    If there is a time `until` (of `time.monotonic`) to end at, the default answers first, which tells how many answers
    there is time for. There are then fewer rounds until half of the candidates can go through all of them, and fewer
    candidates in each. At that time or after Ctrl-C, the answers so far count.
    """
    found = Search(Table(), alive=list(range(candidates)))
    targets, done, start = rounds(count), 0, time.monotonic()

    def most(remaining: Sequence[int]) -> int:
        """Return for how many candidates there is time in the remaining rounds."""
        if until is None:
            return len(found.alive)
        now, answers = time.monotonic(), sum(map(len, found.table.answers.values()))
        return affordable(len(found.alive), done, remaining, (until - now) * answers / max(now - start, 1e-9))

    if until is not None:
        found.ended = collect(measure([DEFAULT], range(targets[0])), found.table, until)
        while len(targets) > FEWEST_ROUNDS and most(targets) < candidates / 2:
            targets.pop()
        found.alive = spread(candidates, most(targets))
    for number, target in enumerate(targets, 1):
        if found.ended is not None or found.alive == [DEFAULT]:
            break
        asked = [one for one in found.alive if target - 1 not in found.table.answers.get(one, ())]
        found.ended = collect(measure(asked, range(done, target)), found.table, until)
        if found.ended is None:
            found.rounds.append((target, list(found.alive)))
            done = target
            keep = min(kept(len(found.alive)), most(targets[number:]) - 1)
            found.alive = survivors(found.table, found.alive, keep, goal)
    return found


def spread(candidates: int, count: int) -> list[int]:
    """Return the default and others at equal distances, `count` in all: single changes come first, then random ones."""
    return [DEFAULT, *(1 + each * (candidates - 1) // (count - 1) for each in range(count - 1))]


def collect(answers: Iterator[tuple[int, int, Measured | Exception]], table: Table, until: float | None) -> str | None:
    """Add answers to a table as they arrive. Return why it ended early, or None."""
    try:
        for candidate, item, answer in answers:
            table.add(candidate, item, answer)
            if until is not None and time.monotonic() > until:
                return "time"
    except KeyboardInterrupt:
        return "interrupt"
    return None


def choice(found: Search, goal: Goal) -> int:
    """Return the candidate with the highest expected saving on the tuning items; the default if none saves passes."""
    possible = {}
    for one in found.alive:
        if one == DEFAULT or one in found.table.errors or not found.table.common((DEFAULT, one)):
            continue
        change = standing(found.table, one, goal.bounded)
        if change.passes.high is not None and change.passes.high < 0:
            possible[one] = expected_saving(change, goal)
    return max(possible, key=lambda one: (possible[one], -one), default=DEFAULT)
