"""The formats of quantized weights, and `quantization_config` of a checkpoint's config.json, as compressed-tensors
describes them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gesso.checks import mapping, shown, strings
from gesso.errors import CheckpointError

# `format`, and the fields of `weights` that determine the meaning of the numbers.
QUANTIZATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "fp8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
        "int4": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}),
        "nvfp4": ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group",
                                           "group_size": 16}),
    }
)  # fmt: skip
TOOLS = ("compressed-tensors", "modelopt", "mlx", "gguf")
MIXED = "int4-int8"  # a quantization that a CPU applies while it loads a model; no model is stored in it
LAYERS = "-layers"  # suffix of the name of a stored model whose embeddings and head other tools left unpacked
_NOT_QUANTIZED = ("re:.*router.*", "re:.*vision_tower.*", "re:.*embed_vision.*")
_TABLES = ("lm_head", "re:.*embed_tokens")


def quantization_config(name: str) -> dict[str, Any]:
    """Return the `quantization_config` of a format.

    Four-bit formats apply to the experts; the other matrices are FP8, and so are the embeddings unless LAYERS is given.
    """
    format, layers = name.removesuffix(LAYERS), name.endswith(LAYERS)
    rest = _group("fp8", "Linear", *(() if layers else _TABLES))
    groups = [rest] if format == "fp8" else [_group(format, "re:.*experts.*"), rest]
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": groups[0]["format"] if len(groups) == 1 else "mixed-precision",
        "config_groups": {f"group_{i}": group for i, group in enumerate(groups)},
        "ignore": [*(_TABLES if layers else ()), *_NOT_QUANTIZED],
    }


def _group(name: str, *targets: str) -> dict[str, Any]:
    stored, weights = QUANTIZATIONS[name]
    return {
        "targets": list(targets),
        "weights": {**weights, "symmetric": True, "dynamic": False},
        "input_activations": None,
        "output_activations": None,
        "format": stored,
    }


def read_quantization(given: Any) -> str | None:
    """Return the name in QUANTIZATIONS that the file describes, with LAYERS appended if embeddings are not packed.

    Any other layout of a tool in TOOLS has the tool's name: its reader decides by the tensors. Settings for the
    quantization of activations are ignored.
    """
    if given is None:
        return None
    given = mapping(given, "config: quantization_config")
    tool = given.get("quant_method") or ("mlx" if "group_size" in given and "bits" in given else None)
    if tool not in TOOLS:
        raise CheckpointError(
            f"config: quantization_config has quant_method {shown(tool)}, which is not supported; expected "
            f"{', '.join(TOOLS)}"
        )
    groups = given.get("config_groups")
    if tool != "compressed-tensors" or not isinstance(groups, Mapping):
        return str(tool)
    described = [_described(group, given.get("format")) for group in groups.values()]
    for name in QUANTIZATIONS:
        if described == [_described(group, None) for group in quantization_config(name)["config_groups"].values()]:
            where = "config: targets in quantization_config"
            targets = {target for group in groups.values() for target in strings(group.get("targets"), where)}
            return name if targets & set(_TABLES) else name + LAYERS
    return str(tool)


def _described(group: Any, stored: Any) -> dict[str, Any]:
    """Return the fields that determine the meaning of a group's numbers. `stored` is the format of unnamed groups."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return {}
    fields = {field for _, fields in QUANTIZATIONS.values() for field in fields}
    fixed = {field: weights[field] for field in sorted(fields) if weights.get(field) is not None}
    return {"format": group.get("format", stored), "symmetric": weights.get("symmetric", True), **fixed}
