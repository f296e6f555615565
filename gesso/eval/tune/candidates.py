"""The settings that `gesso tune` tries: a fixed set for a checkpoint, some samplers and a seed."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from gesso.errors import InputError
from gesso.settings import STOPPINGS, Diffusion, choose

DRAWN = 18  # candidates with several settings changed at random
TRIES = 1000  # draws at most: a few samplers have fewer combinations than DRAWN
# Factors of the checkpoint's own values. All but 1 lead to fewer passes: that is what the search is for.
STEPS = (1, 1, 0.67, 0.5)
BOUNDS = (1, 1, 3, 10)
CONFIDENCES = (1, 4, 20)
TEMPERATURES = ((1, 1), (0.6, 1), (0.4, 0.5), (0.2, 0.2))  # of t_max and t_min
GREEDS = (0.0, 0.0, 0.5, 1.0)
LENGTHS = (None, None, None, 0.5)  # of a canvas
SHORTEST = 16  # tokens of a canvas
DRAFTS = (0.5, 1, 2)  # of a sampler that drafts some tokens and then decides: factors of its own draft


def candidates(default: Diffusion, samplers: Sequence[str], canvas: int, seed: int) -> list[Diffusion]:
    """Return different settings, the checkpoint's `default` first.

    Then come the default settings with every other sampler and stopping rule, and settings in which several values
    change at random. `canvas` is the length of a full canvas of the requests to tune for.
    """
    found = [default]
    for given in _single(default, samplers):
        _add(found, default, given)
    rng = random.Random(f"tune {seed}")
    wanted = len(found) + DRAWN
    groups = _groups(default, samplers)
    for number in range(TRIES):
        if len(found) >= wanted:
            break
        turn, which = divmod(number, len(groups))
        sampler = groups[which][turn % len(groups[which])]
        _add(found, default, _draw(rng, _neutral(default), sampler, canvas))
    return found


def _groups(default: Diffusion, samplers: Sequence[str]) -> list[list[str]]:
    """Return the samplers in groups that get equally many draws: the default's, which the checkpoint's settings suit;
    those that draft and decide, which have settings of their own; all others.
    """
    usual = [str(name) for name in samplers if name == default.sampler]
    drafting = [name for name in samplers if name not in usual and _draft(name) > 1]
    others = [name for name in samplers if name not in (*usual, *drafting)]
    return [group for group in (usual, drafting, others) if group]


def _draft(sampler: str) -> int:
    """Return the number of tokens that a sampler drafts before it decides token by token, or 0."""
    if not writes_tokens(sampler):
        return 0
    return choose(Diffusion(), sampler=sampler).canvas_length or 0  # type: ignore[arg-type]  # the names are checked


def writes_tokens(sampler: str) -> bool:
    """Return whether a sampler decides token by token, such as `autoregressive`, so that no canvas takes steps."""
    try:
        choose(Diffusion(), sampler=sampler, steps=2)  # type: ignore[arg-type]  # the names are checked
    except InputError:
        return True
    return False


def _single(default: Diffusion, samplers: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield settings with one change. A sampler that decides token by token is tried greedily, too."""
    for sampler in samplers:
        yield {"sampler": sampler}
        if writes_tokens(sampler):
            yield {"sampler": sampler, "greed": 1.0}
    for stopping in STOPPINGS if default.sampler in samplers and not writes_tokens(str(default.sampler)) else ():
        if stopping != "fixed":  # it takes all steps: never fewer
            yield {"stopping": stopping, "eos_settles": True}


def _draw(rng: random.Random, default: Diffusion, sampler: str, canvas: int) -> dict[str, Any]:
    hot, cold = rng.choice(TEMPERATURES)
    t_max = round(default.t_max * hot, 3)
    shared: dict[str, Any] = {
        "sampler": sampler,
        "t_max": t_max,
        "t_min": min(t_max, round(default.t_min * cold, 3)),
        "greed": rng.choice(GREEDS),
    }
    if writes_tokens(sampler):
        if (draft := _draft(sampler)) > 1:
            shared["canvas_length"] = max(2, round(draft * rng.choice(DRAFTS)))
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
    """Add settings unless they are known, or a sampler does not allow them."""
    try:
        settings = choose(_neutral(default), **given)
    except InputError:
        return
    if settings not in found:
        found.append(settings)


def _neutral(default: Diffusion) -> Diffusion:
    """Return the default settings as a start for canvases, also if they decide token by token."""
    if not writes_tokens(str(default.sampler)):
        return default
    plain = Diffusion()
    return replace(default, sampler=plain.sampler, stopping=plain.stopping, steps=plain.steps, canvas_length=None)


def changes(settings: Diffusion, default: Diffusion) -> str:
    """Return how settings differ from the default, as words for a table, without values that a sampler requires."""
    required = ("steps", "stopping", "settle") if writes_tokens(str(settings.sampler)) else ()
    different = [
        f"{item.name} {_shown(getattr(settings, item.name))}"
        for item in fields(settings)
        if getattr(settings, item.name) != getattr(default, item.name)
        and item.name not in required
        and (item.name, getattr(settings, item.name)) != ("canvas_length", 1)
    ]
    return ", ".join(different) or "default"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
