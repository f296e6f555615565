"""Stopping rules: whether a canvas is done before its steps run out. C positions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gesso.diffusion.moment import order_independent
from gesso.diffusion.prediction import Prediction
from gesso.rules import EVERY_STEP, Rule
from gesso.settings import Diffusion


class Stopping(Rule, ABC):
    """The rule that ends a canvas."""

    kind: ClassVar[str] = "stopping"

    @abstractmethod
    def __call__(self, history: Sequence[Prediction], judged_C: Tensor, settings: Diffusion) -> bool | Tensor:
        """Return whether the canvas is done.

        `history` holds the prediction of this step, and before it those of at most `memory` earlier steps. Only
        positions in `judged_C` count. `settings` are those of the request.
        """


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
class StableAndConfident(Stopping):
    """Stop when the argmax has not changed for `stability` steps and the mean entropy is below `confidence`."""

    stability: int
    confidence: float

    @property
    def memory(self) -> int:
        return self.stability

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor, settings: Diffusion) -> bool | Tensor:
        return unchanged(history, judged_C, self.stability) & (mean_entropy(history[-1], judged_C) < self.confidence)


@dataclass(frozen=True)
class FixedSteps(Stopping):
    """Never stop early."""

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor, settings: Diffusion) -> bool:
        return False


@dataclass(frozen=True)
class StoppingFunction(Stopping):
    """A caller's function as a stopping rule. It may read all earlier predictions, but no logits."""

    function: Callable[..., bool | Tensor]

    @property
    def memory(self) -> int:
        return EVERY_STEP

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor, settings: Diffusion) -> bool | Tensor:
        return self.function(history, judged_C)


def stopping_of(settings: Diffusion) -> Stopping:
    """Return the stopping rule of these settings: a built-in one by name, or the caller's own."""
    stopping = settings.stopping
    if stopping == "stable":
        return StableAndConfident(settings.stability, settings.confidence)
    if stopping == "fixed":
        return FixedSteps()
    if isinstance(stopping, Stopping):
        return stopping
    assert not isinstance(stopping, str | Rule), "the settings have been checked"
    return StoppingFunction(stopping)
