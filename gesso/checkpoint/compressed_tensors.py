"""Read checkpoints of compressed-tensors, which llm-compressor and others write.

    fp8     weight F8_E4M3 [O, I]; weight_scale [O, 1], or [1] for all rows
            value = weight · scale
    int8    weight I8 [O, I]; weight_scale as for fp8
            value = weight · scale
    int4    weight_packed I32 [O, I / 8]; weight_scale [O, G]; weight_shape I64 [2]
            value = (nibble - 8) · scale
            asymmetric: weight_zero_point I32 [O / 8, G], packed along O
            value = (nibble - zero point) · scale, with nibbles of both
    nvfp4   weight_packed U8 [O, I / 2]; weight_scale F8_E4M3 [O, I / 16]; weight_global_scale F32 [1]
            value = e2m1 · (scale / global scale)

The tensors of a matrix determine its scheme, so that any part of a model may be quantized. `config_groups` must have a
group that describes them: a matrix that no group describes would be read wrongly without notice.

Values are computed in float32. The library computes them in the dtype of the scales: its results are these, rounded to
that dtype. O out, I in, G groups per row, E experts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gesso.checkpoint.linears import (
    Shape,
    Wanted,
    columns,
    for_router,
    fused,
    ignore_matrices,
    ignore_unused,
    matrices,
    matrix_scales,
    one_scheme,
    plain,
    recipe,
    row_scales,
    take_each,
)
from gesso.checkpoint.parameters import parameters
from gesso.checkpoint.quantize import fp8, int4, nvfp4
from gesso.checkpoint.quantize.codes import e2m1, scaled, unpack_bits
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.quantize.repack import repacked, to_fp8, to_int4, to_uint4
from gesso.checkpoint.stored import Inventory, ParameterRecipe
from gesso.checks import mapping, shown
from gesso.errors import CheckpointError
from gesso.model.config import Config

_SCALES = ("BF16", "F16", "F32")
_ONE: tuple[Shape, ...] = ((), (1,), (1, 1))  # shapes of a scale that belongs to a whole matrix


@dataclass(frozen=True)
class NumberFormat:
    """The encoding of values, as a group of the configuration or the tensors of a matrix define it."""

    bits: Any
    type: Any
    group: Any  # values that share a scale; None: all of a row
    symmetric: Any = True

    def __str__(self) -> str:
        kind = "symmetric" if self.symmetric else "asymmetric"
        blocks = f", groups of {shown(self.group)}" if self.group else ""
        return f"{shown(self.bits)}-bit {shown(self.type)}{blocks}, {kind}"


_FIXED: Mapping[str, NumberFormat] = {
    "fp8": NumberFormat(8, "float", None),
    "int8": NumberFormat(8, "int", None),
    "nvfp4": NumberFormat(4, "float", 16),
}


def recipes(config: Config, inventory: Inventory) -> dict[str, ParameterRecipe]:
    """Return the recipe of every parameter."""
    groups = _groups(mapping(config.raw.get("quantization_config"), "config: quantization_config"))
    by_parameter = {}
    for parameter, shape in parameters(config).items():
        weights = matrices(inventory, parameter, shape)
        scheme = one_scheme(inventory, parameter, {name: _scheme(inventory, name) for name in weights})
        parameter_recipe = None if scheme is None else _recipe(inventory, weights, shape, scheme, groups)
        if parameter_recipe is None:
            ignore_matrices(inventory, weights)  # the problem is noted
        else:
            by_parameter[parameter] = for_router(parameter_recipe) if ".router." in parameter else parameter_recipe
    ignore_unused(inventory, config)
    return by_parameter


def _recipe(
    inventory: Inventory, matrix_shapes: Mapping[str, Shape], shape: Shape, scheme: str, groups: Sequence[NumberFormat]
) -> ParameterRecipe | None:
    if scheme == "not quantized":
        return plain(inventory, matrix_shapes, shape)
    read = {"fp8": _rows, "int8": _rows, "int4": _int4, "nvfp4": _nvfp4}[scheme]
    return read(inventory, matrix_shapes, shape, scheme, groups)


def _scheme(inventory: Inventory, weight: str) -> str | None:
    """Return how a matrix is stored, or None if the file does not have it. Other dtypes are reported as not plain."""
    packed = inventory.stored.get(f"{weight}_packed")
    if f"{weight}_global_scale" in inventory or (packed is not None and packed.dtype == "U8"):
        return "nvfp4"
    if f"{weight}_shape" in inventory or packed is not None:
        return "int4"
    stored = inventory.stored.get(weight)
    if stored is None:
        return None
    return {"F8_E4M3": "fp8", "I8": "int8"}.get(stored.dtype, "not quantized")


# --- configuration ------------------------------------------------------------------------------------------------


def _groups(settings: Mapping[str, Any]) -> list[NumberFormat]:
    where = "config: quantization_config"
    if settings.get("transform_config"):
        raise CheckpointError(f"{where}.transform_config is not supported: gesso does not rotate activations")
    groups = mapping(settings.get("config_groups"), f"{where}.config_groups")
    if not groups:
        raise CheckpointError(f"{where}.config_groups is missing; expected a group with weights")
    formats = []
    for name, group in groups.items():
        weights = mapping(mapping(group, f"{where}.{name}").get("weights"), f"{where}.{name}.weights")
        size = weights.get("group_size")
        if size == -1 or weights.get("strategy") in ("channel", "tensor"):
            size = None
        formats.append(
            NumberFormat(
                bits=weights.get("num_bits"),
                type=weights.get("type"),
                group=size,
                symmetric=weights.get("symmetric", True),
            )
        )
    return formats


def _described(inventory: Inventory, tensor: str, numbers: NumberFormat, groups: Sequence[NumberFormat]) -> bool:
    """Return whether a group describes these numbers; if none does, note it."""
    if numbers in groups:
        return True
    inventory.problems.append(
        f"tensor {tensor} and its scales are {numbers}, but config_groups of quantization_config describe only "
        + "; ".join(map(str, groups))
    )
    return False


# --- one scheme each ------------------------------------------------------------------------------------------------


def _rows(
    inventory: Inventory, matrix_shapes: Mapping[str, Shape], shape: Shape, scheme: str, groups: Sequence[NumberFormat]
) -> ParameterRecipe | None:
    """Return the recipe of FP8 or INT8 with one scale per row, or per matrix."""
    dtype, format = ("F8_E4M3", "fp8") if scheme == "fp8" else ("I8", "int8-rows")

    def wanted(name: str, shape: Shape) -> Wanted:
        scale = f"{name}_scale"
        return {name: (shape, (dtype,)), scale: (_scale_shape(inventory, scale, shape, (*shape[:-1], 1)), _SCALES)}

    parts = take_each(inventory, matrix_shapes, wanted)
    if parts is None or not _described(inventory, parts[0].name, _FIXED[scheme], groups):
        return None
    build = partial(_build_rows, format=format, shape=shape)
    if scheme == "fp8":
        return recipe(parts, build, shape, format)
    return recipe(parts, build, shape, format, "fp8", to_fp8)


def _build_rows(tensors: Sequence[Tensor], *, format: str, shape: Shape) -> Packed:
    weights, scales = columns(tensors, 2)
    packed_tensors = {"weight": fused(weights, shape[:-1]), "weight_scale": row_scales(scales, shape[:-1])}
    return Packed(format, shape, packed_tensors, fp8.unpack)


def _scale_shape(inventory: Inventory, scale: str, matrix: Shape, shape: Shape) -> Shape | None:
    """Return the expected shape of a scale; None, which accepts any shape, if one scale is for a whole matrix."""
    whole = scale in inventory and inventory.stored[scale].shape in _ONE and len(matrix) == 2
    return None if whole else shape


def _nvfp4(
    inventory: Inventory, matrix_shapes: Mapping[str, Shape], shape: Shape, scheme: str, groups: Sequence[NumberFormat]
) -> ParameterRecipe | None:
    format = "nvfp4" if len(shape) == 3 else "nvfp4-rows"

    def wanted(name: str, shape: Shape) -> Wanted:
        scale = f"{name}_global_scale"
        return {
            f"{name}_packed": ((*shape[:-1], shape[-1] // 2), ("U8",)),
            f"{name}_scale": ((*shape[:-1], shape[-1] // 16), ("F8_E4M3",)),
            scale: (_scale_shape(inventory, scale, shape, (*shape[:-2], 1)), ("F32",)),
        }

    parts = take_each(inventory, matrix_shapes, wanted)
    if parts is None or not _described(inventory, parts[0].name, _FIXED[scheme], groups):
        return None
    build = partial(_build_nvfp4, format=format, shape=shape)
    if format == "nvfp4":
        return recipe(parts, build, shape, format)
    return recipe(parts, build, shape, format, "fp8", to_fp8)


def _build_nvfp4(tensors: Sequence[Tensor], *, format: str, shape: Shape) -> Packed:
    packed, scales, global_scales = columns(tensors, 3)
    packed_tensors = {
        "weight_packed": fused(packed, shape[:-1]),
        "weight_scale": fused(scales, shape[:-1]),
        "weight_global_scale": matrix_scales(global_scales, shape[:-1]),
    }
    return Packed(format, shape, packed_tensors, nvfp4.unpack if format == "nvfp4" else _unpack_nvfp4_rows)


def _unpack_nvfp4_rows(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the values of a matrix with its global scale on every row, [O, 1]."""
    scale = tensors["weight_scale"].float() / tensors["weight_global_scale"]
    return scaled(e2m1(unpack_bits(tensors["weight_packed"], 4)), scale)


def _int4(
    inventory: Inventory, matrix_shapes: Mapping[str, Shape], shape: Shape, scheme: str, groups: Sequence[NumberFormat]
) -> ParameterRecipe | None:
    name = next(iter(matrix_shapes))
    inputs = shape[-1]
    first = inventory.stored.get(f"{name}_scale")
    count = first.shape[-1] if first is not None and first.shape else 1  # of groups in a row
    if inputs % 8 or not count or inputs % count:
        inventory.problems.append(
            f"tensor {name}_packed: {inputs} inputs cannot be divided into words of 8 values and {count} groups"
        )
        return None
    symmetric = f"{name}_zero_point" not in inventory

    def wanted(name: str, shape: Shape) -> Wanted:
        rows, inputs = shape[:-1], shape[-1]
        parts: Wanted = {f"{name}_packed": ((*rows, inputs // 8), ("I32",)), f"{name}_scale": ((*rows, count), _SCALES)}
        if not symmetric:
            parts[f"{name}_zero_point"] = ((*rows[:-1], -(-rows[-1] // 8), count), ("I32",))
        return parts

    # Shapes follow from the configuration, so the values of `weight_shape` are not needed.
    shapes = {f"{name}_shape": ((*shape[:-2], 2), ("I64", "I32")) for name, shape in matrix_shapes.items()}
    parts = take_each(inventory, matrix_shapes, wanted)
    if inventory.take_all(shapes) is None or parts is None:
        return None
    group = inputs // count
    numbers = NumberFormat(4, "int", group, symmetric)
    whole_row = count == 1 and NumberFormat(4, "int", None, symmetric) in groups
    if not whole_row and not _described(inventory, parts[0].name, numbers, groups):
        return None

    kinds = {part.dtype for part in parts if part.name.endswith("_scale")}
    width = kinds.pop().lower() if len(kinds) == 1 else "mixed"
    format = f"int4{'' if symmetric else '-asymmetric'}-g{group}-{width}"
    build = partial(_build_int4, format=format, shape=shape)
    if len(shape) < 3 or group % int4.GROUP:
        return recipe(parts, build, shape, format, "fp8", to_fp8)
    if not symmetric:
        return recipe(parts, build, shape, format, "uint4", _as_uint4)
    if width == "bf16":  # exact, so in this form from the beginning
        return recipe(parts, lambda tensors: _as_int4(build(tensors)), shape, "int4")
    return recipe(parts, build, shape, format, "int4", _as_int4)


def _build_int4(tensors: Sequence[Tensor], *, format: str, shape: Shape) -> Packed:
    lead, asymmetric = shape[:-1], "asymmetric" in format
    packed, scales, *zeros = columns(tensors, 3 if asymmetric else 2)
    packed_tensors = {"weight_packed": fused(packed, lead), "weight_scale": fused(scales, lead)}
    if asymmetric:
        rows = math.prod(lead) // len(packed)
        packed_tensors["weight_zero_point"] = fused([_zero_points(part, rows) for part in zeros[0]], lead)
    return Packed(format, shape, packed_tensors, _unpack_int4)


def _zero_points(packed: Tensor, rows: int) -> Tensor:
    """Return zero points plus 8, uint8 [O, G], which are packed along O; the last word may be only partly used."""
    return unpack_bits(packed.mT.contiguous(), 4).mT[..., :rows, :].contiguous()


def _unpack_int4(tensors: Mapping[str, Tensor]) -> Tensor:
    code = unpack_bits(tensors["weight_packed"], 4).to(torch.int8)
    scale = tensors["weight_scale"].float()
    zero = tensors.get("weight_zero_point")
    if zero is None:
        return scaled((code - 8).float(), scale)
    centred = code.unflatten(-1, (scale.shape[-1], -1)) - zero.to(torch.int8)[..., None]
    return scaled(centred.flatten(-2).float(), scale)


def _as_int4(packed: Packed) -> Packed:
    stored = packed.tensors
    return repacked("int4", packed, to_int4(stored["weight_packed"], stored["weight_scale"]))


def _as_uint4(packed: Packed) -> Packed:
    """Return uint4; the error is at most 1/8 of a scale, and most of it is that of the rounded offset.

    The offset is that of the rounded scale, so that the error of a value near zero does not depend on the scale's.
    """
    stored = packed.tensors
    scale = stored["weight_scale"].bfloat16().float()
    offset = -stored["weight_zero_point"].float() * scale
    return repacked("uint4", packed, to_uint4(stored["weight_packed"], scale, offset))
