"""Stopping rules: whether a canvas is done before its steps run out. C positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from gesso.diffusion.moment import order_independent, top_of
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.schedule import temperature
from gesso.settings import Diffusion, Need


class Stopping(Protocol):
    """A stopping rule. It may have the attributes `needs` and `memory`, as a sampler does."""

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor) -> bool | Tensor:
        """Return whether the canvas is done.

        `history` holds the predictions of all steps so far, the newest last. Only positions in `judged_C` count.
        """
        ...


def mean(values_C: Tensor, judged_C: Tensor) -> Tensor:
    """Return the mean over the judged positions, without indexing by them: that would need their number on the host."""
    return order_independent(values_C * judged_C).sum(-1) / judged_C.sum(-1)


def mean_entropy(prediction: Prediction, judged_C: Tensor) -> Tensor:
    return mean(prediction.entropy_C, judged_C)


def unchanged(history: Sequence[Prediction], judged_C: Tensor, stability: int) -> bool | Tensor:
    """Return whether the argmax of the judged positions is that of the `stability` steps before."""
    *earlier, now = history[-stability - 1 :]
    same: bool | Tensor = len(earlier) == stability
    for past in earlier:
        same = same & ((past.argmax_C == now.argmax_C) | ~judged_C).all(-1)
    return same


@dataclass(frozen=True)
class StableAndConfident:
    """Stop when the argmax has not changed for `stability` steps and the mean entropy is below `confidence`."""

    stability: int
    confidence: float

    @property
    def memory(self) -> int:
        return self.stability

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor) -> bool | Tensor:
        return unchanged(history, judged_C, self.stability) & (mean_entropy(history[-1], judged_C) < self.confidence)


@dataclass(frozen=True)
class Plateau:
    """Stop when the mean entropy has not fallen below its best by the fraction `tolerance` for `patience` steps."""

    patience: int = 4
    tolerance: float = 0.01

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor) -> bool:
        means = [mean_entropy(prediction, judged_C).item() for prediction in history]
        if len(means) <= self.patience:
            return False
        best_before = min(means[: -self.patience])
        return min(means[-self.patience :]) > best_before * (1 - self.tolerance)


@dataclass(frozen=True)
class TopTwoGap:
    """Stop when the mean gap between the two largest logits reaches a threshold that falls in three stages (Prophet,
    arXiv 2508.19982).

    The thresholds are for logits at a temperature of one. Progress is the fraction of the steps that are done, so more
    `steps` also make a canvas stop later.

    Two conditions are not in the paper, whose decoded tokens stay, and whose mean is over the answer only. The most
    likely tokens must not have changed for `stability` steps. And a gap counts as at most the first threshold: most
    positions of a canvas are certain early, and would make up for the others.
    """

    settings: Diffusion
    first: float = 7.5
    second: float = 5.0  # from a third of the steps on
    third: float = 2.5  # from two thirds on
    needs: ClassVar[frozenset[Need]] = frozenset({"top"})

    @property
    def memory(self) -> int:
        return self.settings.stability

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor) -> bool | Tensor:
        gap = mean_gap(self.settings, history[-1], judged_C, self.first)
        enough = gap >= self.threshold(steps_done(self.settings, history[-1]))
        return unchanged(history, judged_C, self.settings.stability) & enough

    def threshold(self, done: int | Tensor) -> float | Tensor:
        # Compare whole numbers: as a quotient, a third could be rounded differently on a GPU.
        late, last = 3 * done >= self.settings.steps, 3 * done >= 2 * self.settings.steps
        return self.first + (self.second - self.first) * late + (self.third - self.second) * last


@dataclass(frozen=True)
class GapSchedule(TopTwoGap):
    """Stop when the mean gap of the two largest logits reaches a threshold that falls from step to step (SchED, arXiv
    2512.02892): on a line from `first` to `third`. For gaps and progress, see `TopTwoGap`.
    """

    def threshold(self, done: int | Tensor) -> float | Tensor:
        return self.first + (self.third - self.first) * done / self.settings.steps


def mean_gap(settings: Diffusion, prediction: Prediction, judged_C: Tensor, most: float) -> Tensor:
    """Return the mean difference of the two largest logits at a temperature of one, each at most `most`, in float64."""
    assert prediction.remaining is not None
    first_C, second_C, *_ = top_of(prediction)[1]
    gap_C = (first_C.double().log() - second_C.double().clamp(min=1e-300).log()) * _temperature(settings, prediction)
    return mean(gap_C.clamp(max=most), judged_C)


def _temperature(settings: Diffusion, prediction: Prediction) -> float | Tensor:
    left = prediction.remaining
    assert left is not None
    return temperature(settings, left[:, None] if isinstance(left, Tensor) else left)


def steps_done(settings: Diffusion, prediction: Prediction) -> int | Tensor:
    """Return the number of steps that are done after this prediction."""
    assert prediction.remaining is not None
    return settings.steps - prediction.remaining + 1


@dataclass(frozen=True)
class FixedSteps:
    """Never stop early."""

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor) -> bool:
        return False


def stopping_of(settings: Diffusion) -> Stopping:
    """Return the stopping rule of these settings: a built-in one by name, or the caller's own."""
    match settings.stopping:
        case "stable":
            return StableAndConfident(settings.stability, settings.confidence)
        case "plateau":
            return Plateau()
        case "top-2-gap":
            return TopTwoGap(settings)
        case "schedule":
            return GapSchedule(settings)
        case "fixed":
            return FixedSteps()
        case stopping:
            return stopping
