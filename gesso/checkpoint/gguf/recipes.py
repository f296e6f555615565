"""The model's parameters from the tensors of a GGUF file.

Blocks stay as they are stored: a `Packed` with one tensor of bytes, which unpacks to the values of the `gguf` package.
For the kernels of a GPU, experts become a four-bit format where one fits (`native`); everything else becomes FP8.
E experts, O out, B bytes of a row.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from gesso.checkpoint.gguf import blocks
from gesso.checkpoint.gguf.names import ROPE_FREQUENCIES, halves, names, scale
from gesso.checkpoint.gguf.native import NATIVE, four_bit
from gesso.checkpoint.gguf.types import BLOCKS, FLOATS
from gesso.checkpoint.parameters import parameters
from gesso.checkpoint.quantize.formats import is_expert
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.checkpoint.quantize.repack import to_fp8
from gesso.checkpoint.stored import Inventory, ParameterRecipe, Stored
from gesso.errors import CheckpointError
from gesso.model.config import Config


def recipes(config: Config, inventory: Inventory) -> dict[str, ParameterRecipe]:
    """Return a recipe for each parameter whose tensors are in the file; the inventory reports the others."""
    by_parameter = {name: _recipe(name, shape, inventory) for name, shape in parameters(config).items()}
    # `metadata` has read the values of this tensor. Scales of activations are not used: activations stay floats.
    dim = next(layer.head_dim for layer in config.layers if not layer.sliding)
    inventory.take(ROPE_FREQUENCIES, (dim // 2,), ("F32",))
    inventory.ignore(name for name in inventory.stored if name.endswith(".input_scale"))
    return {name: recipe for name, recipe in by_parameter.items() if recipe is not None}


def _recipe(parameter: str, shape: tuple[int, ...], inventory: Inventory) -> ParameterRecipe | None:
    candidates = names(parameter)
    name = next((name for name in candidates if name in inventory), candidates[0])
    if len(shape) == 1 or ".router." in parameter:
        part = inventory.take(name, shape, FLOATS)
        if part is None:
            return None
        return ParameterRecipe(parts=(part,), build=_only, shape=shape, format=part.dtype, native=part.dtype)
    if parameter.endswith("gate_up_proj") and name not in inventory:
        half_shape = (shape[0], shape[1] // 2, shape[2])
        return _matrix(parameter, shape, {half: half_shape for half in halves(name)}, inventory)
    return _matrix(parameter, shape, {name: shape}, inventory)


def _only(parts: Sequence[Tensor]) -> Tensor:
    return parts[0]


def _matrix(
    parameter: str, shape: tuple[int, ...], weights: Mapping[str, Sequence[int]], inventory: Inventory
) -> ParameterRecipe | None:
    """Return the recipe of a matrix, or of experts, whose rows are those of one or two stored tensors."""
    matrices = inventory.take_all({name: (matrix_shape, (*FLOATS, *BLOCKS)) for name, matrix_shape in weights.items()})
    # The scale of the experts' second matrices is a parameter by itself.
    scales = [] if parameter.endswith("experts.down_proj") else [scale(name) for name in weights]
    wanted = scales if any(name in inventory for name in scales) else []
    length = shape[0] if is_expert(parameter) else 1
    factors = inventory.take_all({name: ((length,), ("F32",)) for name in wanted})
    if matrices is None or factors is None:
        return None
    types = tuple(matrix.dtype for matrix in matrices)
    format = types[0] if len(set(types)) == 1 else "+".join(types)
    parts = (*matrices, *factors)
    if set(types) <= set(FLOATS):
        build = partial(_floats, count=len(matrices)) if len(parts) > 1 else _only
        return ParameterRecipe(parts=parts, build=build, shape=shape, format=format, native=format)
    fits = is_expert(parameter) and format in NATIVE and (not factors or format == "NVFP4")
    return ParameterRecipe(
        parts=parts,
        build=partial(_packed, matrices=matrices, format=format, shape=shape),
        shape=shape,
        format=format,
        native=NATIVE[format] if fits else "fp8",
        repack=four_bit if fits else to_fp8,
    )


def _floats(parts: Sequence[Tensor], count: int) -> Tensor:
    weights, factors = parts[:count], parts[count:]
    if not factors:
        return torch.cat(list(weights), -2)
    return torch.cat(
        [weight.float() * _column(factor, weight) for weight, factor in zip(weights, factors, strict=True)], -2
    )


def _packed(parts: Sequence[Tensor], matrices: Sequence[Stored], format: str, shape: tuple[int, ...]) -> Weight:
    """Return the stored bytes as one tensor [.., O, B], or two if gate and up have different types."""
    raw = [
        part.view(torch.uint8).reshape(*stored.shape[:-1], -1)
        for part, stored in zip(parts, matrices, strict=False)  # scales follow
    ]
    for part, stored in zip(raw, matrices, strict=True):
        if not blocks.is_finite(stored.dtype, part):
            raise CheckpointError(f"tensor {stored.name} contains NaN or infinite values; {stored.file} is damaged")
    types = tuple(stored.dtype for stored in matrices)
    if len(set(types)) > 1:
        tensors = dict(zip(("gate_blocks", "up_blocks"), raw, strict=True))
    else:
        tensors = {"blocks": torch.cat(raw, -2) if len(raw) > 1 else raw[0]}
    if factors := parts[len(matrices) :]:
        columns = [_column(factor, one) for factor, one in zip(factors, raw, strict=True)]
        tensors["scale"] = torch.cat(columns, -2)
    return Packed(format, shape, tensors, partial(_unpack, types=types))


def _column(factor: Tensor, weight: Tensor) -> Tensor:
    """Return the factor of a matrix, or of each expert, once per row: every part of a `Packed` has rows."""
    return factor.float().view(-1, *[1] * (weight.ndim - 1)).expand(*weight.shape[:-1], 1)


def _unpack(tensors: Mapping[str, Tensor], types: tuple[str, ...]) -> Tensor:
    raw = [part for key, part in tensors.items() if key != "scale"]
    if len(raw) == 1:
        value = blocks.unpack(types[0], raw[0])
    else:
        value = torch.cat([blocks.unpack(type, part) for type, part in zip(types, raw, strict=True)], -2)
    return value * tensors["scale"] if "scale" in tensors else value
