"""Presets in files: the settings that `gesso tune --out FILE` found, or some of your own.

    {"diffusion": {"steps": 12, "entropy_bound": 0.3, "eos_settles": true}}

Settings that a file does not name have the defaults of `Diffusion`, as in the built-in presets. `tuning` says where the
settings come from, and has no effect.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from gesso import renamed
from gesso.checks import shown
from gesso.errors import InputError
from gesso.files import JSON_LIMIT, parse_json, read_text, replacing
from gesso.settings import PRESET, SETTINGS, Diffusion, PresetName, choose, unknown_settings

SUFFIX = ".json"  # tells a file from a name
Preset = PresetName | Path | Diffusion  # at run time, a text that ends in .json is a file as well


def resolved(preset: Preset | None) -> PresetName | Diffusion | None:
    """Return the settings of a preset in a file; names, settings and None as they are. Reject unknown names."""
    if isinstance(preset, Path) or (isinstance(preset, str) and preset.endswith(SUFFIX)):
        return read_preset(Path(preset))
    if not isinstance(preset, Diffusion):
        PRESET.check(preset)
    return preset


def read_preset(path: Path) -> Diffusion:
    """Return the settings in a preset file."""
    try:
        content = parse_json(read_text(path.expanduser(), JSON_LIMIT))
        if not isinstance(content, dict) or not isinstance(content.get("diffusion"), dict):
            raise InputError(f'expected {{"diffusion": {{settings}}}}, got {shown(content)}')
        if unknown := content.keys() - {"diffusion", "tuning"}:
            raise InputError(f"unknown key {shown(min(unknown))}; expected diffusion, and possibly tuning")
        return from_values(content["diffusion"])
    except ValueError as error:  # InputError is one
        problem = str(error) if isinstance(error, InputError) else f"not JSON: {error}"
        raise InputError(problem if str(path) in problem else f"{path}: {problem}") from None


def write_preset(path: Path, diffusion: Diffusion, tuning: Mapping[str, Any]) -> None:
    """Write a preset file, or replace it."""
    content = {"diffusion": values(diffusion), "tuning": dict(tuning)}
    with replacing(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def from_values(given: Mapping[str, Any]) -> Diffusion:
    if unknown := given.keys() - SETTINGS.keys():
        raise InputError(unknown_settings(unknown))
    settings: Any = renamed.translated(given)
    return choose(Diffusion(), **settings)


def values(diffusion: Diffusion) -> dict[str, Any]:
    """Return all settings by name. A sampler or stopping rule of the caller's own has no name, so it is rejected."""
    settings = {item.name: getattr(diffusion, item.name) for item in fields(diffusion)}
    for name in ("sampler", "stopping"):
        if not isinstance(settings[name], str):
            raise InputError(f"{name} {shown(settings[name])} cannot be written to a file; expected a built-in one")
    return settings
