"""Names and shapes of the vision tower's tensors.

gesso never runs the tower. It counts its parameters, recognizes its tensors, and keeps them when it saves a checkpoint.
Names and shapes are those that `transformers` 5.22 writes for `Gemma4VisionConfig`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gesso.checks import flag, integer, mapping
from gesso.model.config import Config

TOWER, EMBEDDER = "model.encoder.vision_tower.", "model.encoder.embed_vision."

_DEFAULTS: Mapping[str, int] = MappingProxyType(
    {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 64,
        "patch_size": 16,
        "position_embedding_size": 10_240,
    }
)
_MOST: Mapping[str, int] = MappingProxyType({"num_hidden_layers": 1024, "patch_size": 1024})
# Buffers, stored with the weights: calibration, not trained parameters.
_STANDARDIZE = ("std_bias", "std_scale")
_CLIPS = ("input_min", "input_max", "output_min", "output_max")


def is_vision(name: str) -> bool:
    return name.startswith((TOWER, EMBEDDER))


def is_buffer(name: str) -> bool:
    """Return whether a vision tensor is a buffer; published parameter counts leave those out."""
    return is_vision(name) and name.rpartition(".")[2] in (*_STANDARDIZE, *_CLIPS)


def vision_tensors(config: Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every stored tensor of the tower and of its projection into the text model, by name.

    Every DiffusionGemma has a tower: if `vision_config` is absent or null, the reference builds and saves the default.
    """
    vision, sizes = _read(config)
    hidden, head_dim = sizes["hidden_size"], sizes["head_dim"]
    queries, keys = sizes["num_attention_heads"] * head_dim, sizes["num_key_value_heads"] * head_dim
    # The reference ignores `attention_bias`: no linear layer of the tower has a bias.
    linears = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (sizes["intermediate_size"], hidden),
        "mlp.up_proj": (sizes["intermediate_size"], hidden),
        "mlp.down_proj": (hidden, sizes["intermediate_size"]),
    }
    norms = {
        "self_attn.q_norm": head_dim,
        "self_attn.k_norm": head_dim,
        "input_layernorm": hidden,
        "post_attention_layernorm": hidden,
        "pre_feedforward_layernorm": hidden,
        "post_feedforward_layernorm": hidden,
    }
    tensors: dict[str, tuple[int, ...]] = {
        f"{EMBEDDER}embedding_projection.weight": (config.hidden_size, hidden),
        f"{TOWER}patch_embedder.input_proj.weight": (hidden, 3 * sizes["patch_size"] ** 2),
        f"{TOWER}patch_embedder.position_embedding_table": (2, sizes["position_embedding_size"], hidden),
    }
    if vision.get("standardize", False):
        tensors |= {f"{TOWER}{name}": (hidden,) for name in _STANDARDIZE}
    clips = _CLIPS if vision.get("use_clipped_linears", False) else ()
    for i in range(sizes["num_hidden_layers"]):
        layer = f"{TOWER}encoder.layers.{i}."
        for name, shape in linears.items():
            tensors[f"{layer}{name}.linear.weight"] = shape
            tensors |= {f"{layer}{name}.{clip}": () for clip in clips}
        tensors |= {f"{layer}{name}.weight": (size,) for name, size in norms.items()}
    return tensors


def _read(config: Config) -> tuple[Mapping[str, Any], dict[str, int]]:
    vision = mapping(config.raw.get("vision_config"), "config: vision_config")
    sizes = {name: vision.get(name, default) for name, default in _DEFAULTS.items()}
    for name, size in sizes.items():
        integer(size, f"config: vision_config.{name}", 1, _MOST.get(name, 2**20))
    for name in ("standardize", "use_clipped_linears"):
        flag(vision.get(name, False), f"config: vision_config.{name}")
    return vision, sizes
