"""Quantities that change with the step. Steps count down: `remaining` runs from `steps` to 1."""

from gesso.settings import Diffusion


def temperature(settings: Diffusion, remaining: float) -> float:
    """Return the temperature, which falls from t_max on the first step to just above t_min."""
    return settings.t_min + (settings.t_max - settings.t_min) * remaining / settings.steps


def alpha(settings: Diffusion, remaining: float) -> float:
    """Return the fraction of clean tokens in the uniform process: 0 with all steps left, 1 with none."""
    return 1.0 - remaining / settings.steps
