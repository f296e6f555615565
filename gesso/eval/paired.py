"""Paired differences between two evaluations of the same items, with 95 % intervals.

The same items are hard for both evaluations, so the differences item by item vary much less than the scores.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gesso.checks import shown
from gesso.errors import InputError
from gesso.eval.estimate import Estimate, Z
from gesso.eval.task import LOG_PROBABILITY
from gesso.files import parse_json, read_text

if TYPE_CHECKING:
    from gesso.eval.evaluate import Evaluation

Values = Sequence[float]


# --- intervals ------------------------------------------------------------------------------------------------------


def difference(before: Values, after: Values) -> Estimate:
    """Return the mean of after − before with Student's interval, which is None for fewer than three pairs."""
    changes = [b - a for a, b in zip(before, after, strict=True)]
    mean = math.fsum(changes) / len(changes) if changes else 0.0
    if len(changes) < 3:
        return Estimate(mean=mean, low=None, high=None)
    reach = student(len(changes) - 1) * _standard_error(changes)
    return Estimate(mean=mean, low=mean - reach, high=mean + reach)


def score_difference(before: Values, after: Values) -> Estimate:
    """Return the mean of after − before for scores from 0 to 1. Scores that are all 0 or 1 get Tango's interval."""
    if before and all(value in (0, 1) for value in (*before, *after)):
        pairs = list(zip(before, after, strict=True))
        return tango(pairs.count((0, 1)), pairs.count((1, 0)), len(pairs))
    change = difference(before, after)
    if change.low is None or change.high is None:
        return change
    return Estimate(mean=change.mean, low=max(change.low, -1.0), high=min(change.high, 1.0))


def ratio(before: Values, after: Values) -> Estimate:
    """Return mean(after) / mean(before) of paired positive values with Fieller's interval.

    Fieller 1954, Journal of the Royal Statistical Society B 16. The interval contains 1 exactly if that of `difference`
    contains 0. It is None if the mean of `before` is too uncertain.
    """
    count = len(before)
    sum_before = math.fsum(before)
    if not sum_before:
        return Estimate(mean=1.0, low=None, high=None)
    share = math.fsum(after) / sum_before
    if count < 3:
        return Estimate(mean=share, low=None, high=None)
    # The ratios r for which the mean of after − r before is t standard errors from 0: the roots of a r² − 2 b r + c.
    t = student(count - 1)
    mean_before = sum_before / count
    mean_after = math.fsum(after) / count
    deviations = [(x - mean_before, y - mean_after) for x, y in zip(before, after, strict=True)]
    scale = t * t / (count - 1) / count
    a = mean_before * mean_before - scale * math.fsum(dx**2 for dx, _ in deviations)
    b = mean_before * mean_after - scale * math.fsum(dx * dy for dx, dy in deviations)
    c = mean_after * mean_after - scale * math.fsum(dy**2 for _, dy in deviations)
    if a <= 0:
        return Estimate(mean=share, low=None, high=None)
    reach = math.sqrt(max(b * b - a * c, 0.0))
    return Estimate(mean=share, low=(b - reach) / a, high=(b + reach) / a)


def tango(gained: int, lost: int, count: int) -> Estimate:
    """Return the difference of two paired proportions with its score interval (Tango 1998, Statistics in Medicine 17).

    `gained` of `count` items are right only after, `lost` only before. Unlike the normal interval it is not empty if
    nothing changed: of 100 equal answers, the difference is within ±3.7 points.
    """

    def score(difference: float) -> float:
        """Return the standardized distance of the data from a true difference."""
        # The most likely share of lost items, given the difference: the root of a x² + b x + c.
        a = 2 * count
        c = -lost * difference * (1 - difference)
        b = -gained - lost + (2 * count - gained + lost) * difference
        share = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
        variance = count * (2 * share + difference * (1 - difference))
        distance = gained - lost - count * difference
        return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)

    mean = (gained - lost) / count
    low = _crossing(lambda at: score(at) > Z, -1.0, mean)
    high = _crossing(lambda at: score(at) > -Z, mean, 1.0)
    return Estimate(mean=mean, low=low, high=high)


def _crossing(is_left: Callable[[float], bool], low: float, high: float) -> float:
    """Return the place between two bounds where `is_left` turns false, by bisection."""
    for _ in range(50):
        middle = (low + high) / 2
        if is_left(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    Cornish and Fisher's expansion (Abramowitz and Stegun 1964, 26.7.5): 1 % too low at 2 degrees of freedom, then less.
    """
    z, n = Z, freedom
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / n**power for power, term in enumerate(terms, 1))


def _standard_error(values: Values) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


# --- evaluations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """The part of an evaluation that a comparison needs, item by item. Passes are None if an item failed."""

    task: str
    fingerprint: str
    scores: Mapping[str, Values]
    passes: Sequence[float | None]

    @classmethod
    def of(cls, evaluation: "Evaluation") -> "ComparedRun":
        return cls.from_dict(evaluation.to_dict())

    @classmethod
    def from_dict(cls, raw: Any) -> "ComparedRun":
        """Return the run of an evaluation as `gesso eval --json` prints it."""
        try:
            items = raw["items"]
            return cls(
                task=str(raw["task"]),
                fingerprint=str(raw["fingerprint"]),
                scores={name: [float(item["scores"][name]) for item in items] for name in raw["scores"]},
                passes=[None if item["error"] is not None else float(item["denoising_steps"]) for item in items],
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"expected an evaluation as gesso eval --json prints it, got {shown(raw)}") from None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The change from one evaluation to another of the same items."""

    count: int
    scores: Mapping[str, Estimate]
    passes: Estimate
    passes_ratio: Estimate

    def summary(self) -> str:
        """Return the differences and their intervals as text."""
        lines = [f"  difference to the earlier run, paired over {self.count} items"]
        for name, change in self.scores.items():
            scale, unit = (1, "") if name == LOG_PROBABILITY else (100, " points")
            lines.append(f"  {name:16}{_signed(change, scale)}{unit}")
        if self.passes_ratio.mean != 1 or self.passes.mean:
            share = f", {100 * (self.passes_ratio.mean - 1):+.0f} %"
            lines.append(f"  {'denoising steps':16}{_signed(self.passes, 1)}{share}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_same_items(before: str, after: str) -> None:
    """Reject a comparison of evaluations with different fingerprints."""
    if before != after:
        raise InputError(
            f"the evaluations have different items (fingerprints {before} and {after}); use the same task, count, "
            "split, seed and data for both"
        )


def compare(before: ComparedRun, after: ComparedRun) -> Comparison:
    """Return the paired differences of two evaluations. They must have the same items."""
    check_same_items(before.fingerprint, after.fingerprint)
    both = [(a, b) for a, b in zip(before.passes, after.passes, strict=True) if a is not None and b is not None]
    passes_before = [a for a, _ in both]
    passes_after = [b for _, b in both]
    return Comparison(
        count=len(after.passes),
        scores={
            name: (difference if name == LOG_PROBABILITY else score_difference)(before.scores[name], values)
            for name, values in after.scores.items()
            if name in before.scores
        },
        passes=difference(passes_before, passes_after),
        passes_ratio=ratio(passes_before, passes_after),
    )


def read_runs(path: Path) -> list[ComparedRun]:
    """Return the evaluations in a file that `gesso eval --json` printed."""
    try:
        raw = parse_json(read_text(path))
        if not isinstance(raw, list) or not raw:
            raise InputError(f"expected a list of evaluations as gesso eval --json prints it, got {shown(raw)}")
        return [ComparedRun.from_dict(evaluation) for evaluation in raw]
    except ValueError as error:  # InputError is one
        raise InputError(f"{path}: {error if isinstance(error, InputError) else f'not JSON: {error}'}") from None


def _signed(change: Estimate, scale: float) -> str:
    interval = ""
    if change.low is not None and change.high is not None:
        interval = f"  ({scale * change.low:+.1f} to {scale * change.high:+.1f})"
    return f"{scale * change.mean:+6.1f}{interval}"
