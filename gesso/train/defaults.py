"""The defaults of `gesso train --data` that depend on the size of the model.

A large model needs few steps at a low rank to answer like the rows, and training stops by the loss of held-out rows. A
small model cannot generalize from few rows, but it can memorize them with a higher rank, more trained weights and many
passes. In that case no row is held out: the loss of a row that shares nothing with the others rises while they are
memorized.
"""

import math
from dataclasses import dataclass

from gesso.checkpoint.parameters import parameters
from gesso.model.config import Config

LARGE = 10**9  # parameters
BY_HEART = 200  # rows at most that a small model learns by heart

EPOCHS = 3  # passes over the rows, at least
SHOWN = 2000  # rows to show: a small dataset gets more passes
BY_HEART_EPOCHS = 22  # of a small model, for the rows that it learns by heart
USUAL_RESPONSE = 28  # tokens of the longest response; with longer ones, rows are shown more often
MOST_REPEATS = 2.0

# The published rate is that of the 26B model. The best rate of Adam falls with the width (arXiv 2203.03466): of 1.3e-3,
# 4e-3 and 1e-2, the second was best for gesso-mini, of width 320. The power is that between the two.
PUBLISHED_LR = 1.5e-4
PUBLISHED_WIDTH = 2816
POWER = 1.5


@dataclass(frozen=True, kw_only=True)
class Defaults:
    rank: int
    targets: tuple[str, ...]
    batch_size: int  # rows per step
    draws: int  # noise levels of a canvas per step: more of them cost less than more steps
    encoder_weight: float
    rate: float  # times the rate for the model's width


LARGE_MODEL = Defaults(rank=16, targets=("attention", "mlp"), batch_size=16, draws=1, encoder_weight=1.0, rate=1.0)
# Without the loss of the encoder, the model need not read the text of a row beyond its prompt, and it learns the
# canvases in fewer steps.
SMALL_MODEL = Defaults(
    rank=64,
    targets=("attention", "mlp", "experts", "self_conditioning"),
    batch_size=8,
    draws=2,
    encoder_weight=0.0,
    rate=0.75,
)


def defaults_of(parameters: int) -> Defaults:
    return LARGE_MODEL if parameters >= LARGE else SMALL_MODEL


def learns_by_heart(parameters: int, rows: int) -> bool:
    """Return whether a model is to learn all rows by heart instead of holding out some of them."""
    return parameters < LARGE and rows <= BY_HEART


def epochs_of(parameters: int, rows: int, response: int) -> int:
    """Return the passes over the rows, of which the longest response has `response` tokens.

    A small model is shown as many rows as it takes to learn 200 of them by heart.
    """
    if parameters >= LARGE:
        return max(EPOCHS, math.ceil(SHOWN / rows))
    shown = max(SHOWN, BY_HEART_EPOCHS * min(rows, BY_HEART))
    repeats = min(max(response / USUAL_RESPONSE, 1.0), MOST_REPEATS)
    return max(EPOCHS, math.ceil(repeats * shown / rows))


def adapter_rate(config: Config, factor: float = 1.0) -> float:
    """Return `factor` times the learning rate of an adapter for a model of this width."""
    return float(f"{factor * PUBLISHED_LR * (PUBLISHED_WIDTH / config.hidden_size) ** POWER:.2g}")


def parameter_count(config: Config) -> int:
    return sum(math.prod(shape) for shape in parameters(config).values())
