"""Read the generation defaults of a checkpoint from its generation_config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gesso.checks import integer, mapping, shown
from gesso.errors import CheckpointError, InputError
from gesso.files import read_json
from gesso.model.config import SIZES, Config, first, token_ids
from gesso.settings import PRESETS, Diffusion

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
        path = directory / "generation_config.json"
        raw = read_json(path) if path.exists() else {}
        try:
            return cls._from_dict(raw, config)
        except (CheckpointError, InputError) as error:
            raise CheckpointError(f"{path.name}: {error}") from None

    @classmethod
    def _from_dict(cls, raw: Mapping[str, Any], config: Config) -> Self:
        sampler = mapping(raw.get("sampler_config"), "sampler_config")
        name = sampler.get("_cls_name", "EntropyBoundSamplerConfig")
        if name != "EntropyBoundSamplerConfig":
            raise CheckpointError(f"sampler_config {shown(name)} is unknown; expected EntropyBoundSamplerConfig")
        given = {
            "steps": raw.get("max_denoising_steps"),
            "entropy_bound": sampler.get("entropy_bound"),
            "t_max": raw.get("t_max"),
            "t_min": raw.get("t_min"),
            "stability": raw.get("stability_threshold"),
            "confidence": raw.get("confidence_threshold"),
        }
        eos = raw.get("eos_token_id")
        return cls(
            diffusion=Diffusion(**{key: value for key, value in given.items() if value is not None}),
            max_new_tokens=integer(first(raw.get("max_new_tokens"), 256), "max_new_tokens", 1, MOST_NEW_TOKENS),
            eos_token_ids=config.eos_token_ids
            if eos is None
            else tuple(integer(token, "eos_token_id", 0, config.vocab_size - 1) for token in token_ids(eos)),
        )
