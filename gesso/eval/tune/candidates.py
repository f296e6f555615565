"""The settings that `gesso tune` tries: a fixed set for a checkpoint, some ways of writing and a seed."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from gesso.errors import InputError
from gesso.settings import BY_TOKEN, STOPPINGS, Diffusion, WriteName, choose

DRAWN = 18  # candidates with several settings changed at random
TRIES = 1000  # draws at most: a few ways of writing have fewer combinations than DRAWN
# Factors of the checkpoint's own values. All but 1 lead to fewer passes: that is what the search is for.
STEPS = (1, 1, 0.67, 0.5)
BOUNDS = (1, 1, 3, 10)
CONFIDENCES = (1, 4, 20)
TEMPERATURES = ((1, 1), (0.6, 1), (0.4, 0.5), (0.2, 0.2))  # of t_max and t_min
GREEDS = (0.0, 0.0, 0.5, 1.0)
LENGTHS = (None, None, None, 0.5)  # of a canvas
SHORTEST = 16  # tokens of a canvas
DRAFTS = (0.5, 1, 2)  # of verified drafts: factors of their default length


def candidates(default: Diffusion, writes: Sequence[WriteName], canvas: int, seed: int) -> list[Diffusion]:
    """Return different settings, the checkpoint's `default` first.

    Then come the default settings with every other way of writing and stopping rule, and settings in which several
    values change at random. `canvas` is the length of a full canvas of the requests to tune for.
    """
    found = [default]
    for given in _single(default, writes):
        _add(found, default, given)
    rng = random.Random(f"tune {seed}")
    wanted = len(found) + DRAWN
    for number in range(TRIES):
        if len(found) >= wanted:
            break
        _add(found, default, _draw(rng, choose(default, write="canvas"), writes[number % len(writes)], canvas))
    return found


def _single(default: Diffusion, writes: Sequence[WriteName]) -> Iterator[dict[str, Any]]:
    """Yield settings with one change. A way that decides token by token is tried greedily, too."""
    for write in writes:
        yield {"write": write}
        if write in BY_TOKEN:
            yield {"write": write, "greed": 1.0}
    for stopping in STOPPINGS if default.write in writes and not default.by_token else ():
        if stopping != "fixed":  # it takes all steps: never fewer
            yield {"stopping": stopping, "eos_settles": True}


def _draw(rng: random.Random, default: Diffusion, write: WriteName, canvas: int) -> dict[str, Any]:
    hot, cold = rng.choice(TEMPERATURES)
    t_max = round(default.t_max * hot, 3)
    shared: dict[str, Any] = {
        "write": write,
        "t_max": t_max,
        "t_min": min(t_max, round(default.t_min * cold, 3)),
        "greed": rng.choice(GREEDS),
    }
    if write in BY_TOKEN:
        if write == "verified":
            shared["canvas_length"] = max(2, round((BY_TOKEN[write]["canvas_length"] or 0) * rng.choice(DRAFTS)))
        return shared
    length = rng.choice(LENGTHS)
    return shared | {
        "steps": max(1, round(default.steps * rng.choice(STEPS))),
        "entropy_bound": round(default.entropy_bound * rng.choice(BOUNDS), 6),
        "confidence": round(default.confidence * rng.choice(CONFIDENCES), 6),
        "stability": rng.choice((default.stability, default.stability, 0)),
        "eos_settles": rng.random() < 0.8,
        "canvas_length": default.canvas_length if length is None else max(SHORTEST, round(canvas * length)),
    }


def _add(found: list[Diffusion], default: Diffusion, given: Mapping[str, Any]) -> None:
    """Add settings unless they are known, or `write` does not allow them."""
    try:
        settings = choose(choose(default, write="canvas"), **given)
    except InputError:
        return
    if settings not in found:
        found.append(settings)


def changes(settings: Diffusion, default: Diffusion) -> str:
    """Return how settings differ from the default, as words for a table, without values that `write` fixes."""
    fixed = BY_TOKEN.get(settings.write, {})
    different = [
        f"{item.name} {_shown(getattr(settings, item.name))}"
        for item in fields(settings)
        if getattr(settings, item.name) != getattr(default, item.name)
        and not (item.name in fixed and (item.name, settings.write) != ("canvas_length", "verified"))
    ]
    return ", ".join(different) or "default"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
