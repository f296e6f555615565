"""Read checkpoints of NVIDIA's ModelOpt.

    nvfp4   weight U8 [O, I / 2]; weight_scale F8_E4M3 [O, I / 16]; weight_scale_2 F32 []
            value = e2m1 · (scale · scale 2)
    fp8     weight F8_E4M3 [O, I]; weight_scale F32 [], or one per row
            value = weight · scale

The dtype of a weight determines its scheme. `quant_algo` must agree. Scales of activations and of the KV cache are
ignored. O out, I in, E experts.
"""

from collections.abc import Mapping, Sequence
from functools import partial

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
from gesso.checkpoint.quantize import fp8
from gesso.checkpoint.quantize.codes import e2m1, scaled, unpack_bits
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.quantize.repack import repacked, to_fp8
from gesso.checkpoint.stored import Inventory, ParameterRecipe
from gesso.checks import mapping, shown
from gesso.errors import CheckpointError
from gesso.model.config import Config

_ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "NVFP4": ("nvfp4",),
    "FP8": ("fp8",),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8",),
    "MIXED_PRECISION": ("nvfp4", "fp8"),
}


def recipes(config: Config, inventory: Inventory) -> dict[str, ParameterRecipe]:
    """Return the recipe of every parameter."""
    settings = mapping(config.raw.get("quantization_config"), "config: quantization_config")
    algorithm = settings.get("quant_algo")
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise CheckpointError(
            f"config: quant_algo {shown(algorithm)} is not supported; expected {', '.join(_ALGORITHMS)}"
        )
    by_parameter = {}
    for parameter, shape in parameters(config).items():
        weights = matrices(inventory, parameter, shape)
        scheme = one_scheme(inventory, parameter, {name: _scheme(inventory, name) for name in weights})
        parameter_recipe = None if scheme is None else _recipe(inventory, weights, shape, scheme, algorithm)
        if parameter_recipe is None:
            ignore_matrices(inventory, weights)  # the problem is noted
        else:
            by_parameter[parameter] = for_router(parameter_recipe) if ".router." in parameter else parameter_recipe
    ignore_unused(inventory, config)
    return by_parameter


def _scheme(inventory: Inventory, weight: str) -> str | None:
    """Return how a matrix is stored, or None if the file does not have it. Other dtypes are reported as not plain."""
    stored = inventory.stored.get(weight)
    if stored is None:
        return None
    return {"U8": "nvfp4", "F8_E4M3": "fp8"}.get(stored.dtype, "not quantized")


def _recipe(
    inventory: Inventory, matrix_shapes: Mapping[str, Shape], shape: Shape, scheme: str, algorithm: str
) -> ParameterRecipe | None:
    if scheme == "not quantized":
        return plain(inventory, matrix_shapes, shape)
    if scheme not in _ALGORITHMS[algorithm]:
        inventory.problems.append(
            f"tensor {next(iter(matrix_shapes))} is {scheme}, but quant_algo of the config is {algorithm}"
        )
        return None
    read = _nvfp4 if scheme == "nvfp4" else _fp8
    return read(inventory, matrix_shapes, shape)


def _fp8(inventory: Inventory, matrix_shapes: Mapping[str, Shape], shape: Shape) -> ParameterRecipe | None:
    def wanted(name: str, shape: Shape) -> Wanted:
        scale = inventory.stored.get(f"{name}_scale")
        rows = shape[:-1] if scale is not None and len(scale.shape) == 1 else (*shape[:-1], 1)
        whole = scale is not None and scale.shape in ((), (1,))
        return {name: (shape, ("F8_E4M3",)), f"{name}_scale": (None if whole else rows, ("F32", "BF16", "F16"))}

    parts = take_each(inventory, matrix_shapes, wanted)
    return None if parts is None else recipe(parts, partial(_build_fp8, shape=shape), shape, "fp8")


def _build_fp8(tensors: Sequence[Tensor], *, shape: Shape) -> Packed:
    weights, scales = columns(tensors, 2)
    packed_tensors = {"weight": fused(weights, shape[:-1]), "weight_scale": row_scales(scales, shape[:-1])}
    return Packed("fp8", shape, packed_tensors, fp8.unpack)


def _nvfp4(inventory: Inventory, matrix_shapes: Mapping[str, Shape], shape: Shape) -> ParameterRecipe | None:
    def wanted(name: str, shape: Shape) -> Wanted:
        rows, inputs = shape[:-1], shape[-1]
        second = inventory.stored.get(f"{name}_scale_2")
        return {
            name: ((*rows, inputs // 2), ("U8",)),
            f"{name}_scale": ((*rows, inputs // 16), ("F8_E4M3",)),
            f"{name}_scale_2": ((1,) if second is not None and second.shape else (), ("F32",)),
        }

    parts = take_each(inventory, matrix_shapes, wanted)
    if parts is None:
        return None
    build = partial(_build_nvfp4, shape=shape)
    if len(shape) == 3:
        return recipe(parts, build, shape, "modelopt-nvfp4", "nvfp4", _to_nvfp4)
    return recipe(parts, build, shape, "modelopt-nvfp4", "fp8", to_fp8)


def _build_nvfp4(tensors: Sequence[Tensor], *, shape: Shape) -> Packed:
    packed, scales, second_scales = columns(tensors, 3)
    packed_tensors = {
        "weight_packed": fused(packed, shape[:-1]),
        "weight_scale": fused(scales, shape[:-1]),
        "weight_scale_2": matrix_scales(second_scales, shape[:-1]),
    }
    return Packed("modelopt-nvfp4", shape, packed_tensors, _unpack_nvfp4)


def _unpack_nvfp4(tensors: Mapping[str, Tensor]) -> Tensor:
    scale, second = tensors["weight_scale"].float(), tensors["weight_scale_2"]
    if second.ndim < scale.ndim:  # one per matrix of an expert; other matrices have one per row
        second = second.repeat_interleave(scale.shape[-2] // second.shape[-1], -1)[..., None]
    return scaled(e2m1(unpack_bits(tensors["weight_packed"], 4)), scale * second)


def _to_nvfp4(packed: Packed) -> Packed:
    """Return experts in NVFP4, whose global scale divides instead of multiplying.

    The quotient and its inverse are rounded, so a value differs by at most 2^-21 of itself.
    """
    stored = packed.tensors
    largest = torch.finfo(torch.float32).max  # the scale of a matrix of zeros is zero
    converted = {
        "weight_packed": stored["weight_packed"],
        "weight_scale": stored["weight_scale"],
        "weight_global_scale": stored["weight_scale_2"].reciprocal().clamp(max=largest),
    }
    return repacked("nvfp4", packed, converted)
