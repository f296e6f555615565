"""Read checkpoints of MLX, as mlx-vlm writes them.

    affine   weight U32 [O, I · bits / 32]; scales, biases [O, I / group]    value = code · scale + bias
             2, 3, 4, 5, 6 or 8 bits, groups of 32, 64 or 128
    mxfp4    weight U32 [O, I / 8]; scales U8 [O, I / 32]                    value = e2m1 · 2^(scale - 127)
    mxfp8    weight U32 [O, I / 4]; scales U8 [O, I / 32]                    value = e4m3 · 2^(scale - 127)
    nvfp4    weight U32 [O, I / 8]; scales U8 [O, I / 16], bits of e4m3      value = e2m1 · scale

A row of codes is a stream of bits, lowest first. Experts are fused, with a leading dimension E on every tensor, and
their names have the suffix `.weight` of a module. Shapes and dtypes determine mode, bits and group of a module; the
configuration, with settings for all modules and for single ones, must agree. A module without scales is not quantized.

Values are computed in float32. The library computes affine values in the dtype of the scales, so it rounds products
and sums to that dtype. O out, I in, G groups per row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gesso.checkpoint.linears import Shape, for_router, plain, recipe
from gesso.checkpoint.parameters import parameters
from gesso.checkpoint.quantize.codes import e2m1, e8m0, pack_nibbles, scaled, unpack_bits
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.checkpoint.quantize.matrices import Tensors
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.checkpoint.quantize.repack import (
    repacked,
    to_fp8,
    to_fp8_by_powers_of_two,
    to_nvfp4,
    to_uint4,
)
from gesso.checkpoint.stored import Inventory, ParameterRecipe
from gesso.checks import mapping
from gesso.errors import CheckpointError
from gesso.model.config import Config, first

_AFFINE = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
_MODES: Mapping[tuple[int, int], str] = {(4, 32): "mxfp4", (8, 32): "mxfp8", (4, 16): "nvfp4"}


@dataclass(frozen=True)
class Mode:
    name: str
    bits: Any
    group: Any

    def __str__(self) -> str:
        return f"{self.name}, {self.bits} bits, groups of {self.group}"


def recipes(config: Config, inventory: Inventory) -> dict[str, ParameterRecipe]:
    """Return the recipe of every parameter."""
    given = first(config.raw.get("quantization"), config.raw.get("quantization_config"))
    settings = mapping(given, "config: quantization")
    by_parameter = {}
    for parameter, shape in parameters(config).items():
        module = parameter.removesuffix(".weight")
        if f"{module}.scales" in inventory or f"{module}.biases" in inventory:
            parameter_recipe = _quantized(inventory, module, shape, settings)
        else:
            name = f"{module}.weight" if len(shape) == 3 and parameter not in inventory else parameter
            parameter_recipe = plain(inventory, {name: shape}, shape)
        if parameter_recipe is None:
            inventory.ignore(f"{module}.{key}" for key in ("weight", "scales", "biases"))  # the problem is noted
        else:
            by_parameter[parameter] = for_router(parameter_recipe) if ".router." in parameter else parameter_recipe
    return by_parameter


def _quantized(inventory: Inventory, module: str, shape: Shape, settings: Mapping[str, Any]) -> ParameterRecipe | None:
    weight = inventory.stored.get(f"{module}.weight")
    scales = inventory.stored.get(f"{module}.scales")
    if weight is None or scales is None:
        inventory.missing.append(f"{module}.{'weight' if weight is None else 'scales'}")
        return None
    affine = scales.dtype != "U8"
    rows, inputs = shape[:-1], shape[-1]
    words, count = (part.shape[-1] if part.shape else 0 for part in (weight, scales))
    bits = 32 * words // inputs
    group = inputs // max(1, count)
    name = "affine" if affine else _MODES.get((bits, group))
    fits = words * 32 == bits * inputs and count * group == inputs
    if name is None or not fits or (affine and (bits, group) not in _AFFINE):
        inventory.problems.append(
            f"tensor {module}.weight has shape {list(weight.shape)} and its scales {list(scales.shape)}, which no mode "
            f"of MLX has for {list(shape)}"
        )
        return None
    mode = Mode(name=name, bits=bits, group=group)
    scale_dtypes = ("BF16", "F16", "F32") if affine else ("U8",)
    keys = ("scales", "biases") if affine else ("scales",)
    parts = inventory.take_all(
        {f"{module}.weight": ((*rows, words), ("U32",))}
        | {f"{module}.{key}": ((*rows, count), scale_dtypes) for key in keys}
    )
    if parts is None or not _described(inventory, module, mode, settings):
        return None
    if name == "nvfp4" and len(shape) == 3:  # exact, so in this form from the beginning
        return recipe(parts, partial(_build_nvfp4, shape=shape), shape, "nvfp4")
    format = f"mlx-{bits}bit-g{group}" if affine else f"mlx-{name}"
    build = partial(_build, format=format, shape=shape, mode=mode, module=module)
    native, repack = _native(mode, len(shape) == 3)
    return recipe(parts, build, shape, format, native, repack)


def _native(mode: Mode, experts: bool) -> tuple[str, Callable[[Packed], Weight]]:
    if mode.name.startswith("mx"):
        return ("nvfp4", _as_nvfp4) if experts and mode.bits == 4 else ("fp8", to_fp8_by_powers_of_two)
    if mode.name == "affine" and mode.bits <= 4 and experts:
        return "uint4", partial(_as_uint4, bits=mode.bits)
    return "fp8", to_fp8


# --- configuration ------------------------------------------------------------------------------------------------


def _described(inventory: Inventory, module: str, mode: Mode, settings: Mapping[str, Any]) -> bool:
    """Return whether the configuration has this mode for the module; if not, note it.

    Modules that are quantized differently have settings of their own. Their names are those of the program that wrote
    the file, so a module without such settings may have the mode of any.
    """
    module_settings = settings.get(module, True)
    if isinstance(module_settings, Mapping):
        entries = [module_settings]
    else:
        entries = [settings, *(value for value in settings.values() if isinstance(value, Mapping))]
    modes = [Mode(entry.get("mode", "affine"), entry.get("bits"), entry.get("group_size")) for entry in entries]
    if module_settings is not False and mode in modes:
        return True
    expected = "not quantized" if module_settings is False else " or ".join(dict.fromkeys(map(str, modes)))
    inventory.problems.append(f"tensor {module}.weight is {mode}, but the config says: {expected}")
    return False


# --- values -------------------------------------------------------------------------------------------------------


def _build(tensors: Sequence[Tensor], *, format: str, shape: Shape, mode: Mode, module: str) -> Packed:
    scales = tensors[1]
    packed_tensors = {"weight": tensors[0].view(torch.uint8), "scales": scales}
    if mode.name == "affine":
        packed_tensors["biases"] = tensors[2]
        return Packed(format, shape, packed_tensors, partial(_unpack_affine, bits=mode.bits))
    # The scales are bytes, so the general check for NaN does not detect their reserved code.
    is_nan = scales & 127 == 127 if mode.name == "nvfp4" else scales == 255
    if is_nan.any():
        raise CheckpointError(f"tensor {module}.scales contains NaN; the file is damaged")
    return Packed(format, shape, packed_tensors, _UNPACK[mode.name])


def _build_nvfp4(tensors: Sequence[Tensor], *, shape: Shape) -> Packed:
    packed_tensors = {
        "weight_packed": tensors[0].view(torch.uint8),
        "weight_scale": tensors[1].view(torch.float8_e4m3fn),
        "weight_global_scale": torch.ones(shape[0], 1, device=tensors[0].device),
    }
    return FORMATS["nvfp4"].packed(shape, packed_tensors)


def _unpack_affine(tensors: Mapping[str, Tensor], *, bits: int) -> Tensor:
    code = unpack_bits(tensors["weight"], bits).float()
    scale = tensors["scales"].float()
    offset = tensors["biases"].float()
    return (code.unflatten(-1, (scale.shape[-1], -1)) * scale[..., None] + offset[..., None]).flatten(-2)


def _unpack_mxfp4(tensors: Mapping[str, Tensor]) -> Tensor:
    return scaled(e2m1(unpack_bits(tensors["weight"], 4)), e8m0(tensors["scales"]))


def _unpack_mxfp8(tensors: Mapping[str, Tensor]) -> Tensor:
    return scaled(tensors["weight"].view(torch.float8_e4m3fn).float(), e8m0(tensors["scales"]))


def _unpack_nvfp4(tensors: Mapping[str, Tensor]) -> Tensor:
    return scaled(e2m1(unpack_bits(tensors["weight"], 4)), tensors["scales"].view(torch.float8_e4m3fn).float())


_UNPACK = {"mxfp4": _unpack_mxfp4, "mxfp8": _unpack_mxfp8, "nvfp4": _unpack_nvfp4}


# --- formats of the kernels -----------------------------------------------------------------------------------------


def _as_uint4(packed: Packed, *, bits: int) -> Packed:
    """Return experts in uint4. Codes and bfloat16 scales and biases are exact."""

    def convert(tensors: Mapping[str, Tensor]) -> Tensors:
        byte = tensors["weight"]
        words = byte.view(torch.int32) if bits == 4 else pack_nibbles(unpack_bits(byte, bits))
        return to_uint4(words, tensors["scales"], tensors["biases"])

    return _by_expert("uint4", packed, convert)


def _as_nvfp4(packed: Packed) -> Packed:
    return _by_expert("nvfp4", packed, lambda tensors: to_nvfp4(unpack_bits(tensors["weight"], 4), tensors["scales"]))


def _by_expert(format: str, packed: Packed, convert: Callable[[Mapping[str, Tensor]], Tensors]) -> Packed:
    """Convert experts one by one."""
    experts = [convert(expert.tensors) for expert in packed.unbind()]
    tensors = {key: torch.stack([expert[key] for expert in experts]) for key in experts[0]}
    return repacked(format, packed, tensors)
