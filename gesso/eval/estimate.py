"""Means with 95 % confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959964  # 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval, which is None for fewer than two values."""

    mean: float
    low: float | None
    high: float | None

    def shown(self, scale: float = 1, sign: str = "") -> str:
        """Return mean and interval as text, multiplied by `scale`; the sign "+" shows that of positive numbers."""
        mean = f"{scale * self.mean:{sign}.1f}"
        if self.low is None or self.high is None:
            return mean
        return f"{mean} ({scale * self.low:{sign}.1f} to {scale * self.high:{sign}.1f})"


def wilson(successes: float, count: int) -> tuple[float, float]:
    """Return the interval of a proportion (Wilson 1927). It stays within 0 to 1 and is not empty at 0 % or 100 %."""
    share = successes / count
    z2 = Z * Z / count
    middle = share + z2 / 2
    reach = Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count))
    return max(0.0, (middle - reach) / (1 + z2)), min(1.0, (middle + reach) / (1 + z2))


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values with its normal interval."""
    if len(values) < 2:
        return Estimate(mean=sum(values), low=None, high=None)
    count = len(values)
    mean = math.fsum(values) / count
    reach = Z * math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    return Estimate(mean=mean, low=mean - reach, high=mean + reach)


def estimate_score(values: Sequence[float]) -> Estimate:
    """Return the mean of scores between 0 and 1. Scores that are all 0 or 1 get a Wilson interval."""
    if values and all(value in (0, 1) for value in values):
        low, high = wilson(sum(values), len(values))
        return Estimate(mean=sum(values) / len(values), low=low, high=high)
    normal = estimate(values)
    if normal.low is None or normal.high is None:
        return normal
    return Estimate(mean=normal.mean, low=max(normal.low, 0.0), high=min(normal.high, 1.0))
