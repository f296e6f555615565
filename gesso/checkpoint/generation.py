"""Read and write the generation defaults of a checkpoint: generation_config.json.

Settings that the reference knows have its names there. All others are in the object `gesso`, by their own names; other
programs ignore it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from gesso import bundled, renamed
from gesso.checkpoint.cache import cache_directory
from gesso.checks import integer, mapping, shown
from gesso.errors import CheckpointError, InputError
from gesso.files import read_json, replacing
from gesso.model.config import SIZES, Config, first, token_ids
from gesso.settings import PRESETS, SETTINGS, Diffusion, choose, unknown_settings

FILE = "generation_config.json"
OWN = "gesso"  # the object of settings that the reference does not know
# Settings by their names in the reference's file; entropy_bound is in sampler_config.
KEYS = {
    "steps": "max_denoising_steps",
    "t_max": "t_max",
    "t_min": "t_min",
    "stability": "stability_threshold",
    "confidence": "confidence_threshold",
}
SAMPLER, BOUND = "sampler_config", "entropy_bound"
SAMPLER_CLASS = "EntropyBoundSamplerConfig"
MOST_NEW_TOKENS = SIZES["max_position_embeddings"][1]


@dataclass(frozen=True, kw_only=True)
class GenerationDefaults:
    """The values a checkpoint recommends for options that the caller does not set."""

    diffusion: Diffusion = PRESETS["balanced"]
    max_new_tokens: int = 256
    eos_token_ids: tuple[int, ...] = (1,)

    @classmethod
    def from_directory(cls, directory: Path, config: Config) -> Self:
        """Read generation_config.json. Where the file or a field is missing, use the reference's defaults."""
        path = directory / FILE
        raw = read_json(path) if path.exists() else {}
        try:
            return cls._from_dict(raw, config)
        except (CheckpointError, InputError) as error:
            raise CheckpointError(f"{path.name}: {error}") from None

    @classmethod
    def _from_dict(cls, raw: Mapping[str, Any], config: Config) -> Self:
        sampler = mapping(raw.get(SAMPLER), SAMPLER)
        name = sampler.get("_cls_name", SAMPLER_CLASS)
        if name != SAMPLER_CLASS:
            raise CheckpointError(f"{SAMPLER} {shown(name)} is unknown; expected {SAMPLER_CLASS}")
        given = {setting: raw.get(key) for setting, key in KEYS.items()} | {BOUND: sampler.get(BOUND)}
        gesso_settings = mapping(raw.get(OWN), OWN)
        if unknown := gesso_settings.keys() - SETTINGS.keys():
            raise CheckpointError(f"{OWN}: {unknown_settings(unknown)}")
        settings: Any = {key: value for key, value in given.items() if value is not None}
        gesso_settings = renamed.translated(gesso_settings)
        if gesso_settings.get("write", "canvas") != "canvas":
            settings.pop("steps", None)  # the steps in the reference's fields are for canvases
        settings |= gesso_settings
        eos = raw.get("eos_token_id")
        return cls(
            diffusion=choose(Diffusion(), **settings),
            max_new_tokens=integer(first(raw.get("max_new_tokens"), 256), "max_new_tokens", 1, MOST_NEW_TOKENS),
            eos_token_ids=config.eos_token_ids
            if eos is None
            else tuple(integer(token, "eos_token_id", 0, config.vocab_size - 1) for token in token_ids(eos)),
        )


def write_diffusion(directory: Path, diffusion: Diffusion) -> None:
    """Make settings the defaults of a checkpoint. All other fields of its generation_config.json stay."""
    check_writable(directory)
    path = directory / FILE
    raw = read_json(path) if path.exists() else {}
    raw |= {key: getattr(diffusion, setting) for setting, key in KEYS.items()}
    raw[SAMPLER] = {**mapping(raw.get(SAMPLER), SAMPLER), "_cls_name": SAMPLER_CLASS, BOUND: diffusion.entropy_bound}
    gesso_settings = {}  # without a field of the reference, and not the default
    for setting in fields(diffusion):
        value = getattr(diffusion, setting.name)
        if setting.name not in (*KEYS, BOUND) and value != setting.default:
            gesso_settings[setting.name] = value
    raw.pop(OWN, None)
    if gesso_settings:
        raw[OWN] = gesso_settings
    with replacing(path) as file:
        file.write((json.dumps(raw, indent=2) + "\n").encode())


def check_writable(directory: Path) -> None:
    """Reject directories whose files are not the user's own: those of the package and of the hub cache."""
    place = directory.resolve()
    if not place.is_dir():
        raise InputError(f"{directory} is not a checkpoint's directory; write the settings to a file of their own")
    for root, owner in (
        (bundled.directory().parent, "belongs to the package"),
        (cache_directory(), "is in the hub cache, which other programs share"),
    ):
        if place.is_relative_to(root.resolve()):
            raise InputError(f"{directory} {owner}; write the settings to a file of their own, or copy the checkpoint")
