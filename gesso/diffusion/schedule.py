"""Quantities that change with the step. Steps count down: `remaining` runs from `steps` to 1."""

from typing import TypeVar

from torch import Tensor

from gesso.settings import Diffusion

N = TypeVar("N", float, Tensor, float | Tensor)  # of one canvas, or of several: [B], or [B, 1] beside their positions


def temperature(settings: Diffusion, remaining: N) -> N:
    """Return the temperature, which falls from t_max on the first step to just above t_min."""
    return settings.t_min + (settings.t_max - settings.t_min) * remaining / settings.steps


def alpha(settings: Diffusion, remaining: N) -> N:
    """Return the fraction of clean tokens in the uniform process: 0 with all steps left, 1 with none."""
    return 1.0 - remaining / settings.steps
