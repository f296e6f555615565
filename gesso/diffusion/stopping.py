"""Stopping rules: whether a canvas is done before its steps run out. C positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gesso.diffusion.prediction import Prediction
from gesso.diffusion.samplers import order_independent
from gesso.settings import Diffusion


class Stopping(Protocol):
    """A stopping rule."""

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor) -> bool | Tensor:
        """Return whether the canvas is done.

        `history` holds the predictions of all steps so far, the newest last. Only positions in `judged_C` count.
        """
        ...


def mean_entropy(prediction: Prediction, judged_C: Tensor) -> Tensor:
    """Return the mean over the judged positions, without indexing by them: that would need their number on the host."""
    return order_independent(prediction.entropy_C * judged_C).sum(-1) / judged_C.sum(-1)


@dataclass(frozen=True)
class StableAndConfident:
    """Stop when the argmax has not changed for `stability` steps and the mean entropy is below `confidence`."""

    stability: int
    confidence: float

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor) -> bool | Tensor:
        *earlier, now = history[-self.stability - 1 :]
        if len(earlier) < self.stability:
            return False
        done = mean_entropy(now, judged_C) < self.confidence
        for past in earlier:
            done = done & ((past.argmax_C == now.argmax_C) | ~judged_C).all(-1)
        return done


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
        case "fixed":
            return FixedSteps()
        case stopping:
            return stopping
