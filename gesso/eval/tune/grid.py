"""The settings that `gesso tune` tries: the presets that take few passes, and a grid around the default settings."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from gesso.settings import PRESETS, Diffusion, PresetName, choose

TRIED: tuple[PresetName, ...] = ("balanced", "fast", "laptop")  # quality takes more passes by design
DRAFTS = (8, 16, 32)  # tokens of a verified draft
# Factors of the default's own values, which lead to fewer passes.
BOUNDS = (1, 3, 10)
CONFIDENCE = 4


@dataclass(frozen=True)
class SettingsCandidate:
    """Settings to try, and how they differ from the default."""

    name: str
    settings: Diffusion


def candidates(default: Diffusion, *, canvases_only: bool = False) -> list[SettingsCandidate]:
    """Return different settings, the checkpoint's `default` first.

    With `canvases_only`, settings that decide token by token are left out.
    """
    names = {default: "default"}
    for name, settings in _grid(default):
        if not (canvases_only and settings.by_token):
            names.setdefault(settings, name)
    return [SettingsCandidate(name, settings) for settings, name in names.items()]


def _grid(default: Diffusion) -> Iterator[tuple[str, Diffusion]]:
    for name in TRIED:
        yield name, PRESETS[name]
    for draft in DRAFTS:
        settings = choose(PRESETS["balanced"], write="verified", greed=1.0, canvas_length=draft)
        yield f"verified, canvas_length {draft}", settings
    start = PRESETS["balanced"] if default.by_token else default
    for bound, greed in product(BOUNDS, dict.fromkeys((start.greed, 1.0))):
        settings = replace(
            start,
            entropy_bound=start.entropy_bound * bound,
            confidence=start.confidence * CONFIDENCE,
            greed=greed,
            eos_settles=True,
        )
        yield changes(settings, default), settings


def changes(settings: Diffusion, default: Diffusion) -> str:
    """Return how settings differ from the default, as words for a table."""
    different = [
        f"{item.name} {_shown(getattr(settings, item.name))}"
        for item in fields(settings)
        if getattr(settings, item.name) != getattr(default, item.name)
    ]
    return ", ".join(different) or "default"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
