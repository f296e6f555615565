"""Read a checkpoint's config.json into a frozen dataclass.

Defaults are those of `transformers.DiffusionGemmaTextConfig`, because a saved config omits fields that equal them.
Every field that gesso uses has a type and bounds. Fields that would change the mathematics are rejected by name,
unknown fields are named in a warning, and fields that do not concern text generation are ignored.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from gesso.checks import flag, integer, is_integer, mapping, number, shown, strings
from gesso.errors import CheckpointError
from gesso.files import read_json
from gesso.model.quantization_config import quantization_config, read_quantization
from gesso.model.vision_config import VisionConfig

logger = logging.getLogger("gesso")

SLIDING, GLOBAL = "sliding_attention", "full_attention"
IMAGE_TOKENS = ("image_token_id", "boi_token_id", "eoi_token_id")

# Smallest and largest value of every size. They allow models a hundred times larger than any published one. Still, no
# tensor of such a model has more elements than torch can count, and building it without weights takes seconds.
SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "vocab_size": (1, 2**22),
        "hidden_size": (1, 2**17),
        "intermediate_size": (1, 2**20),
        "num_hidden_layers": (1, 1024),
        "num_attention_heads": (1, 2**10),
        "num_key_value_heads": (1, 2**10),
        "head_dim": (2, 2**12),
        "num_experts": (1, 2**12),
        "top_k_experts": (1, 2**12),
        "moe_intermediate_size": (1, 2**20),
        "sliding_window": (2, 2**24),
        "max_position_embeddings": (1, 2**24),
        "canvas_length": (1, 2**12),
    }
)
NUMBERS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "rms_norm_eps": (1e-12, 1.0),
        "final_logit_softcapping": (1e-3, 1e6),
        "rope_theta": (1.0, 1e12),
        "partial_rotary_factor": (1e-6, 1.0),
    }
)


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary embedding of one kind of layer. If `proportional`, only a `fraction` of the pairs is rotated."""

    theta: float
    fraction: float
    proportional: bool


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """Attention geometry of one layer. A global layer has no value projection: it uses the key projection."""

    sliding: bool
    head_dim: int
    kv_heads: int
    rope: Rope


@dataclass(frozen=True, kw_only=True)
class Config:
    num_experts: int
    top_k_experts: int
    moe_intermediate_size: int
    layers: tuple[LayerShape, ...]
    vocab_size: int = 262_144
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_attention_heads: int = 8
    sliding_window: int = 512
    canvas_length: int = 256
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-6
    final_logit_softcapping: float = 30.0
    tie_word_embeddings: bool = True
    pad_token_id: int = 0
    eos_token_ids: tuple[int, ...] = (1,)
    # An image in a prompt is a begin token, image tokens and an end token. They may be beyond a small vocabulary.
    image_token_id: int = 258_880
    boi_token_id: int = 255_999
    eoi_token_id: int = 258_882
    bidirectional_images: bool = False  # whether the tokens of an image see each other, or only the earlier ones
    # One of QUANTIZATIONS, with or without the suffix LAYERS, or the tool whose layout the weights have: one of TOOLS.
    quantization: str | None = None
    # The file as it was read. Saving writes it back with all fields that other tools may need.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = vars(self)
        for name in (name for name in SIZES if name in values):
            _size(values[name], name)
        for name in (name for name in NUMBERS if name in values):
            _number(values[name], name)
        flag(self.tie_word_embeddings, "config: tie_word_embeddings")
        integer(self.pad_token_id, "config: pad_token_id", 0, self.vocab_size - 1)
        for name in IMAGE_TOKENS:
            integer(values[name], f"config: {name}", 0, SIZES["vocab_size"][1])
        for token in self.eos_token_ids:
            integer(token, "config: eos_token_id", 0, self.vocab_size - 1)
        if not self.layers:
            raise CheckpointError("config: the model has no layers")
        if self.top_k_experts > self.num_experts:
            raise CheckpointError(f"config: top_k_experts {self.top_k_experts} exceeds num_experts {self.num_experts}")
        for i, layer in enumerate(self.layers):
            if self.num_attention_heads % layer.kv_heads:
                raise CheckpointError(
                    f"config: layer {i} has {layer.kv_heads} key/value heads, "
                    f"which do not divide {self.num_attention_heads} query heads"
                )
            if layer.head_dim % 2:
                raise CheckpointError(f"config: layer {i} has an odd head_dim, {layer.head_dim}; rotation turns pairs")

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        model_type = raw.get("model_type")
        if model_type != "diffusion_gemma":
            raise CheckpointError(
                f"config: model_type is {shown(model_type)}, but gesso runs only 'diffusion_gemma'; "
                "give a DiffusionGemma checkpoint"
            )
        if raw.get("text_config") is None:
            raise CheckpointError("config: text_config is missing")
        text = mapping(raw["text_config"], "config: text_config")
        _reject_unsupported(text)
        layers = _layers(text)
        for name in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            if text.get(name) is None:
                raise CheckpointError(f"config: text_config.{name} is missing; every DiffusionGemma layer needs it")
        given = {name: text.get(name) for name in _TEXT_FIELDS}
        # The outer flag counts: it ties the encoder to the decoder and the head to the embedding, all or nothing.
        given |= {name: raw.get(name) for name in ("canvas_length", "tie_word_embeddings", *IMAGE_TOKENS)}
        eos = first(raw.get("eos_token_id"), text.get("eos_token_id"), 1)
        return cls(
            layers=layers,
            eos_token_ids=token_ids(eos),
            bidirectional_images=text.get("use_bidirectional_attention") == "vision",
            quantization=read_quantization(first(raw.get("quantization_config"), raw.get("quantization"))),
            raw=MappingProxyType(dict(raw)),
            **{name: value for name, value in given.items() if value is not None},
        )

    @cached_property
    def vision(self) -> VisionConfig:
        """The sizes of the vision tower. It is read when it is needed: text does not need it."""
        return VisionConfig.from_dict(self.raw.get("vision_config"))

    @property
    def has_image_tokens(self) -> bool:
        """Whether images can be in a prompt: without these tokens, a tower is a placeholder."""
        return all(vars(self)[name] < self.vocab_size for name in IMAGE_TOKENS)

    @classmethod
    def from_directory(cls, directory: Path) -> Self:
        return cls.from_dict(read_json(directory / "config.json"))

    def quantized(self, name: str, on_cpu: bool = False) -> Self:
        """Return the configuration of the same model with its matrices in this format.

        A CPU may pack more of them than a stored model, so `raw` does not describe the formats there.
        """
        if on_cpu:
            return replace(self, quantization=name)
        raw = MappingProxyType({**self.raw, "quantization_config": quantization_config(name)})
        return replace(self, quantization=name, raw=raw)


_TEXT_FIELDS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_experts", "top_k_experts"),
    *("moe_intermediate_size", "sliding_window", "max_position_embeddings", "rms_norm_eps", "final_logit_softcapping"),
    "pad_token_id",
)


def _layers(text: Mapping[str, Any]) -> tuple[LayerShape, ...]:
    count = _size(first(text.get("num_hidden_layers"), 30), "num_hidden_layers")
    kinds = strings(text.get("layer_types"), "config: layer_types")
    kinds = kinds or [GLOBAL if (i + 1) % 6 == 0 else SLIDING for i in range(count)]
    if len(kinds) != count:
        raise CheckpointError(f"config: layer_types names {len(kinds)} layers, but num_hidden_layers is {count}")
    if unknown := set(kinds) - {SLIDING, GLOBAL}:
        raise CheckpointError(f"config: unknown layer_types {shown(sorted(unknown))}; expected {SLIDING} and {GLOBAL}")
    kinds = [*kinds[:-1], GLOBAL]  # the reference forces the last layer to be global

    ropes = _ropes(text.get("rope_parameters"))
    kv_heads = first(text.get("num_key_value_heads"), 4)
    shapes = {
        SLIDING: (first(text.get("head_dim"), 256), kv_heads),
        GLOBAL: (first(text.get("global_head_dim"), 512), first(text.get("num_global_key_value_heads"), kv_heads)),
    }
    # Newer files give the geometry per layer; a global layer without an entry then has the base shape.
    if text.get("per_layer_config") is not None:
        shapes[GLOBAL] = shapes[SLIDING]
    per_layer = mapping(text.get("per_layer_config"), "config: per_layer_config")
    if beyond := per_layer.keys() - {str(i) for i in range(count)}:
        raise CheckpointError(
            f"config: per_layer_config names layers {shown(sorted(beyond))}, but the model has 0 to {count - 1}"
        )
    layers = []
    for i, kind in enumerate(kinds):
        override = mapping(per_layer.get(str(i)), f"config: per_layer_config.{i}")
        if surplus := set(override) - {"head_dim", "num_key_value_heads"}:
            raise CheckpointError(
                f"config: per_layer_config.{i} sets {shown(sorted(surplus))}, which gesso cannot vary by layer"
            )
        head_dim, heads = shapes[kind]
        layers.append(
            LayerShape(
                sliding=kind == SLIDING,
                head_dim=_size(override.get("head_dim", head_dim), "head_dim"),
                kv_heads=_size(override.get("num_key_value_heads", heads), "num_key_value_heads"),
                rope=ropes[kind],
            )
        )
    return tuple(layers)


def _ropes(given: Any) -> dict[str, Rope]:
    ropes: dict[str, dict[str, Any]] = {
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    }
    for kind, fields in mapping(given, "config: rope_parameters").items():
        if kind not in ropes or not isinstance(fields, Mapping):
            raise CheckpointError(f"config: rope_parameters must be given by layer type, {SLIDING} and {GLOBAL}")
        ropes[kind] = {"rope_theta": ropes[kind]["rope_theta"], **fields}
    return {kind: _rope(kind, fields) for kind, fields in ropes.items()}


def _rope(kind: str, given: Mapping[str, Any]) -> Rope:
    name = given.get("rope_type", "default")
    if name not in ("default", "proportional"):
        raise CheckpointError(
            f"config: rope_type {shown(name)} of {kind} is not supported; expected default or proportional"
        )
    if given.get("factor", 1.0) != 1.0:
        raise CheckpointError(f"config: rope factor {shown(given['factor'])} of {kind} is not supported; expected 1.0")
    fraction = given.get("partial_rotary_factor", 1.0)
    if name == "default" and fraction != 1.0:
        raise CheckpointError(f"config: partial_rotary_factor of {kind} needs rope_type proportional")
    return Rope(
        theta=float(_number(given["rope_theta"], "rope_theta", f" of {kind}")),
        fraction=_number(fraction, "partial_rotary_factor", f" of {kind}"),
        proportional=name == "proportional",
    )


# The only values for which the implemented mathematics is correct.
_REQUIRED_VALUES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "use_bidirectional_attention": (None, "vision"),
        # The reference ties the matrices of encoder and decoder but not their biases; no checkpoint has biases.
        "attention_bias": (None, False),
        "attention_dropout": (None, 0, 0.0),
        "attn_logit_softcapping": (None,),
        "query_pre_attn_scalar": (None,),
        "rope_scaling": (None,),
        "enable_moe_block": (None, True),
        "attention_k_eq_v": (None, True),
        "num_kv_shared_layers": (None, 0),
        "hidden_size_per_layer_input": (None, 0),
        "vocab_size_per_layer_input": (None, 0),
        "use_double_wide_mlp": (None, False),
    }
)
_KNOWN = frozenset(
    (
        *_TEXT_FIELDS,
        *("num_hidden_layers", "head_dim", "num_key_value_heads", "global_head_dim", "num_global_key_value_heads"),
        *("per_layer_config", "layer_types", "rope_parameters", "eos_token_id", "bos_token_id", "tie_word_embeddings"),
        *("initializer_range", "model_type", "dtype", "torch_dtype", "transformers_version", "architectures"),
        *("use_cache", "is_causal"),
    )
)


def _reject_unsupported(text: Mapping[str, Any]) -> None:
    for name, allowed in _REQUIRED_VALUES.items():
        if name in text and text[name] not in allowed:
            expected = " or ".join(repr(value) for value in allowed)
            raise CheckpointError(
                f"config: text_config.{name} is {shown(text[name])}; gesso implements only {expected}"
            )
    unknown = {name for name, value in text.items() if value is not None} - _KNOWN - set(_REQUIRED_VALUES)
    if unknown:
        logger.warning("config: unknown fields are ignored: %s", ", ".join(sorted(unknown)))


def first(*values: Any) -> Any:
    """Return the first value that is not None."""
    return next((value for value in values if value is not None), None)


def token_ids(value: Any) -> tuple[int, ...]:
    """Return `eos_token_id`, which is a token id or a list of them, as a tuple."""
    ids = tuple(value) if isinstance(value, list) else (value,)
    if not ids or not all(map(is_integer, ids)):
        raise CheckpointError(f"eos_token_id must be a token id or a list of one or more, got {shown(value)}")
    return ids


def _size(value: Any, name: str) -> int:
    return integer(value, f"config: {name}", *SIZES[name])


def _number(value: Any, name: str, of: str = "") -> float:
    return number(value, f"config: {name}{of}", *NUMBERS[name])
