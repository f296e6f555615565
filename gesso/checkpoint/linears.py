"""Matrices as other tools store them: one linear layer per expert, each with tensors of its own.

The model has the experts of a layer in two parameters, `experts.gate_up_proj` [E, 2I, H] and `experts.down_proj`
[E, H, I]. Files of compressed-tensors and ModelOpt have `experts.0.gate_proj`, `experts.0.up_proj` and
`experts.0.down_proj`, and so on. In the order gate 0, up 0, gate 1, … their rows are those of the parameter.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gesso.checkpoint.quantize.formats import FORMATS
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.checkpoint.quantize.repack import to_dense
from gesso.checkpoint.stored import FLOATS, Inventory, ParameterRecipe, Stored
from gesso.model.config import Config

Shape = tuple[int, ...]
Wanted = dict[str, tuple[Shape | None, Sequence[str]]]  # shape and dtypes of stored tensors by name

# Calibration for the quantization of activations and of the KV cache, which weights do not depend on.
_CALIBRATION = ("input_scale", "input_global_scale", "output_scale", "k_scale", "v_scale", "q_scale")
ENCODER, DECODER = "model.encoder.language_model.", "model.decoder."


def matrices(inventory: Inventory, parameter: str, shape: Shape) -> dict[str, Shape]:
    """Return the matrices of a parameter as {name of the weight: shape}, in the order of their rows.

    A parameter is its own matrix, unless it is a stack of experts that the file does not have under its own name.
    """
    if len(shape) < 3 or parameter in inventory or f"{parameter}_packed" in inventory:
        return {parameter: shape}
    experts, rows, inputs = shape
    stem, _, leaf = parameter.rpartition(".")
    halves = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else (leaf,)
    each = (rows // len(halves), inputs)
    return {f"{stem}.{expert}.{half}.weight": each for expert in range(experts) for half in halves}


def take_each(
    inventory: Inventory, matrix_shapes: Mapping[str, Shape], wanted: Callable[[str, Shape], Wanted]
) -> tuple[Stored, ...] | None:
    """Return the tensors of all matrices, one matrix after the other, or None if one is missing or wrong."""
    return inventory.take_all({k: v for name, shape in matrix_shapes.items() for k, v in wanted(name, shape).items()})


def columns(parts: Sequence[Tensor], count: int) -> list[Sequence[Tensor]]:
    """Return parts by kind: all weights, all scales, and so on. Each matrix has `count` parts."""
    return [parts[i::count] for i in range(count)]


def fused(parts: Sequence[Tensor], lead: Sequence[int]) -> Tensor:
    """Return the rows of all matrices as one tensor [*lead, …]. FP8 is joined as bytes, which every device can."""
    if len(parts) == 1:
        return parts[0].view(*lead, -1)
    if parts[0].dtype == torch.float8_e4m3fn:
        return torch.cat([part.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn).view(*lead, -1)
    return torch.cat(list(parts)).view(*lead, -1)


def row_scales(parts: Sequence[Tensor], lead: Sequence[int]) -> Tensor:
    """Return one float32 scale per row, [*lead, 1], of matrices that have one per row, or one each."""
    rows = math.prod(lead) // len(parts)
    return torch.cat([part.reshape(-1).expand(rows) for part in parts]).float().view(*lead, 1)


def matrix_scales(parts: Sequence[Tensor], lead: Sequence[int]) -> Tensor:
    """Return the one scale of each matrix: [E, matrices per expert] of experts, and [O, 1] of a single matrix.

    The scale of a single matrix is repeated, so that rows of it can be looked up and split off.
    """
    scales = torch.cat([part.float().reshape(-1) for part in parts])
    return scales.view(lead[0], -1) if len(lead) == 2 else scales.expand(lead[0], 1).contiguous()


def one_scheme(inventory: Inventory, parameter: str, schemes: Mapping[str, str | None]) -> str | None:
    """Return the scheme of all matrices of a parameter, or None after noting that they differ or that one is missing.

    `schemes` has None for a matrix that the file does not have.
    """
    present = {name: scheme for name, scheme in schemes.items() if scheme is not None}
    if len(present) == len(schemes) and len(set(present.values())) == 1:
        return next(iter(present.values()))
    suffix = "_packed" if any(f"{name}_packed" in inventory for name in present) else ""
    inventory.missing += [name + suffix for name in schemes if name not in present]
    first = next(iter(present), parameter)
    for name, scheme in present.items():
        if scheme != present[first]:
            inventory.problems.append(
                f"tensor {name} is {scheme}, but {first} is {present[first]}; all matrices of {parameter} must have "
                "the same format"
            )
            break
    return None


def ignore_matrices(inventory: Inventory, names: Iterable[str]) -> None:
    """Accept all tensors of some matrices, about which a problem has been noted."""
    modules = {_module(name) for name in names}
    inventory.ignore(tensor for tensor in inventory.stored if _module(tensor) in modules)


def plain(inventory: Inventory, matrix_shapes: Mapping[str, Shape], shape: Shape) -> ParameterRecipe | None:
    """Return the recipe of a parameter that is not quantized."""
    parts = take_each(inventory, matrix_shapes, lambda name, shape: {name: (shape, FLOATS)})
    if parts is None:
        return None
    return recipe(parts, lambda tensors: fused(tensors, shape[:-1]).view(shape), shape, parts[0].dtype)


def recipe(
    parts: tuple[Stored, ...],
    build: Callable[[Sequence[Tensor]], Weight],
    shape: Shape,
    format: str,
    native: str | None = None,
    repack: Callable[[Packed], Weight] | None = None,
) -> ParameterRecipe:
    return ParameterRecipe(parts=parts, build=build, shape=shape, format=format, native=native or format, repack=repack)


def for_router(recipe: ParameterRecipe) -> ParameterRecipe:
    """Return the recipe of a router in bfloat16: it is small, and further rounding would select other experts."""
    return replace(recipe, native="BF16", repack=to_dense) if recipe.native in FORMATS else recipe


def ignore_unused(inventory: Inventory, config: Config) -> None:
    """Accept tensors that do not change the weights: calibration, and the decoder's tensors again for the encoder."""
    inventory.ignore(name for name in inventory.stored if name.rpartition(".")[2] in _CALIBRATION)
    if config.tie_word_embeddings:
        modules = {_module(name) for name in inventory.stored if name.startswith(DECODER)}
        encoder = [name for name in inventory.stored if name.startswith(ENCODER)]
        inventory.ignore(name for name in encoder if DECODER + _module(name).removeprefix(ENCODER) in modules)


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]
