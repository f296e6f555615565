"""The sizes of the vision tower: `vision_config` of a checkpoint's config.json.

Defaults are those of `transformers.Gemma4VisionConfig`, because a saved config omits fields that equal them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Self

from gesso.checks import flag, integer, mapping, number, shown
from gesso.errors import CheckpointError

_MOST: Mapping[str, int] = MappingProxyType({"num_hidden_layers": 1024, "patch_size": 1024, "pooling_kernel_size": 64})
_FLAGS = ("standardize", "use_clipped_linears")
_NUMBERS: Mapping[str, tuple[float, float]] = MappingProxyType({"rms_norm_eps": (1e-12, 1.0), "theta": (1.0, 1e12)})


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 16
    num_attention_heads: int = 12
    num_key_value_heads: int = 12
    head_dim: int = 64
    patch_size: int = 16  # pixels of a side
    pooling_kernel_size: int = 3  # patches of a side that become one soft token
    position_embedding_size: int = 10_240  # patches of a side of an image, at most
    rms_norm_eps: float = 1e-6
    theta: float = 100.0  # of the rotary embedding
    standardize: bool = False  # whether soft tokens are shifted and scaled
    use_clipped_linears: bool = False  # whether inputs and outputs of the matrices are clipped

    def __post_init__(self) -> None:
        for field in fields(self):
            value, name = getattr(self, field.name), f"config: vision_config.{field.name}"
            if field.name in _FLAGS:
                flag(value, name)
            elif field.name in _NUMBERS:
                number(value, name, *_NUMBERS[field.name])
            else:
                integer(value, name, 1, _MOST.get(field.name, 2**20))
        if self.head_dim % 4:
            raise CheckpointError(
                f"config: vision_config.head_dim is {self.head_dim}; rotation in x and y needs a multiple of four"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"config: vision_config has {self.num_key_value_heads} key/value heads, "
                f"which do not divide {self.num_attention_heads} query heads"
            )

    @classmethod
    def from_dict(cls, raw: Any) -> Self:
        """Read `vision_config`. If it is absent or null, the reference builds a tower of the default sizes."""
        given = mapping(raw, "config: vision_config")
        if (activation := given.get("hidden_activation", "gelu_pytorch_tanh")) != "gelu_pytorch_tanh":
            raise CheckpointError(
                f"config: vision_config.hidden_activation is {shown(activation)}; gesso implements only "
                "'gelu_pytorch_tanh'"
            )
        rope = mapping(given.get("rope_parameters"), "config: vision_config.rope_parameters")
        if (kind := rope.get("rope_type", "axial")) != "axial":
            raise CheckpointError(
                f"config: vision_config.rope_parameters.rope_type is {shown(kind)}; gesso implements only 'axial'"
            )
        known = {field.name: given[field.name] for field in fields(cls) if field.name in given}
        return cls(**known | ({"theta": rope["rope_theta"]} if "rope_theta" in rope else {}))
