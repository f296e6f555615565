"""The settings that `gesso tune` tries: a fixed set for a checkpoint, some samplers and a seed."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from gesso.errors import InputError
from gesso.settings import STOPPINGS, Diffusion, choose

DRAWN = 16  # candidates with several settings changed at random
TRIES = 1000  # draws at most: a few samplers have fewer combinations than DRAWN
# Factors of the checkpoint's own values. Most lead to fewer passes: that is what the search is for.
STEPS = (1, 0.67, 0.5, 0.33)
BOUNDS = (1, 3, 10, 30)
CONFIDENCES = (1, 4, 20)
TEMPERATURES = ((1, 1), (0.6, 1), (0.4, 0.5), (0.2, 0.2))  # of t_max and t_min
GREEDS = (0.0, 0.0, 0.5, 1.0)
LENGTHS = (None, None, None, 0.5)  # of a canvas
SHORTEST = 16  # tokens of a canvas


def candidates(default: Diffusion, samplers: Sequence[str], canvas: int, seed: int) -> list[Diffusion]:
    """Return different settings, the checkpoint's `default` first.

    Then come the default settings with every other sampler and stopping rule, and settings in which several values
    change at random. `canvas` is the length of a full canvas of the requests to tune for.
    """
    found = [default]
    for given in _single(default, samplers):
        _add(found, default, given)
    rng = random.Random(f"tune {seed}")
    canvases = [name for name in samplers if name != "autoregressive"]
    drawn = len(found) + DRAWN
    for number in range(TRIES if canvases else 0):
        if len(found) >= drawn:
            break
        _add(found, default, _draw(rng, default, canvases[number % len(canvases)], canvas))
    return found


def _single(default: Diffusion, samplers: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield settings with one change, each also in the variant that needs fewer passes."""
    for sampler in samplers:
        yield {"sampler": sampler}
        if sampler == "autoregressive":
            yield {"sampler": sampler, "greed": 1.0}
    canvases = [name for name in samplers if name != "autoregressive"]
    for stopping in STOPPINGS if default.sampler in canvases else ():
        if stopping != "fixed":  # it takes all steps: never fewer
            yield {"stopping": stopping, "eos_settles": True}


def _draw(rng: random.Random, default: Diffusion, sampler: str, canvas: int) -> dict[str, Any]:
    hot, cold = rng.choice(TEMPERATURES)
    t_max = round(default.t_max * hot, 3)
    length = rng.choice(LENGTHS)
    return {
        "sampler": sampler,
        "steps": max(1, round(default.steps * rng.choice(STEPS))),
        "entropy_bound": round(default.entropy_bound * rng.choice(BOUNDS), 6),
        "confidence": round(default.confidence * rng.choice(CONFIDENCES), 6),
        "t_max": t_max,
        "t_min": min(t_max, round(default.t_min * cold, 3)),
        "stability": rng.choice((default.stability, default.stability, 0)),
        "greed": rng.choice(GREEDS),
        "eos_settles": rng.random() < 0.8,
        "canvas_length": default.canvas_length if length is None else max(SHORTEST, round(canvas * length)),
    }


def _add(found: list[Diffusion], default: Diffusion, given: Mapping[str, Any]) -> None:
    """Add settings unless they are known, or a sampler does not allow them."""
    try:
        settings = choose(_neutral(default), **given)
    except InputError:
        return
    if settings not in found:
        found.append(settings)


def _neutral(default: Diffusion) -> Diffusion:
    """Return the default settings as a start for canvases, also if they are autoregressive."""
    if not default.autoregressive:
        return default
    plain = Diffusion()
    return replace(default, sampler=plain.sampler, stopping=plain.stopping, steps=plain.steps, canvas_length=None)


def changes(settings: Diffusion, default: Diffusion) -> str:
    """Return how settings differ from the default, as words for a table."""
    different = [
        f"{item.name} {_shown(getattr(settings, item.name))}"
        for item in fields(settings)
        if getattr(settings, item.name) != getattr(default, item.name)
    ]
    if settings.autoregressive and not default.autoregressive:
        different = [one for one in different if one.split()[0] in ("sampler", "greed", "t_max", "t_min")]
    return ", ".join(different) or "default"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
