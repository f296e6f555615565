"""When a canvas is done before its steps run out. C positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gesso.diffusion.prediction import Prediction
from gesso.diffusion.samplers import order_independent
from gesso.settings import Diffusion


class Stopping(Protocol):
    def __call__(self, history: Sequence[Prediction], judged_C: Tensor) -> bool | Tensor:
        """`history` holds the predictions of all steps so far, the newest last; only `judged_C` positions count."""
        ...


def mean_entropy(prediction: Prediction, judged_C: Tensor) -> Tensor:
    """Return the mean over the judged positions, without indexing by them: the host need not know how many they are."""
    return order_independent(prediction.entropy_C * judged_C).sum(-1) / judged_C.sum(-1)


@dataclass(frozen=True)
class StableAndConfident:
    """The argmax has not changed for `stability` steps, and the mean entropy is below `confidence`."""

    stability: int
    confidence: float

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor) -> bool | Tensor:
        *earlier, now = history[-self.stability - 1 :]
        if len(earlier) < self.stability:
            return False
        stands = mean_entropy(now, judged_C) < self.confidence
        for past in earlier:
            stands = stands & ((past.argmax_C == now.argmax_C) | ~judged_C).all(-1)
        return stands


@dataclass(frozen=True)
class Plateau:
    """The mean entropy has not fallen by a hundredth below its best for `patience` steps: more steps buy nothing."""

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
    """Every canvas takes all its steps."""

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor) -> bool:
        return False


def stopping_of(settings: Diffusion) -> Stopping:
    match settings.stopping:
        case "stable":
            return StableAndConfident(settings.stability, settings.confidence)
        case "plateau":
            return Plateau()
        case "fixed":
            return FixedSteps()
        case stopping:
            return stopping
