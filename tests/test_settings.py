"""Bounds of the diffusion settings."""

import math
from dataclasses import fields

import pytest

from gesso.errors import InputError
from gesso.settings import BOUNDS, PRESETS, Diffusion


def test_every_numeric_setting_has_bounds_that_contain_the_presets():
    numeric = {item.name for item in fields(Diffusion) if item.type in (int, float, int | None)}
    assert numeric == set(BOUNDS)
    for preset in PRESETS.values():
        for name, (low, high) in BOUNDS.items():
            assert (value := getattr(preset, name)) is None or low <= value <= high


@pytest.mark.parametrize("name", BOUNDS)
def test_both_bounds_are_accepted_and_anything_beyond_is_refused_by_name(name):
    low, high = BOUNDS[name]
    other = {"t_max": {"t_min": BOUNDS["t_min"][0]}, "t_min": {"t_max": BOUNDS["t_max"][1]}}.get(name, {})
    for value in (low, high):
        Diffusion(**{name: value}, **other)
    beyond = [math.nextafter(low, -math.inf), math.nextafter(high, math.inf)] if isinstance(low, float) else []
    for value in (*beyond, low - 1, high + 1, 10**400, math.nan, math.inf, -math.inf, 1e308, "1", True, [1]):
        with pytest.raises(InputError, match=rf"diffusion setting {name} must be .* from .* to .*, got"):
            Diffusion(**{name: value}, **other)
