"""Recipes of checkpoints in the Hugging Face layout, in bfloat16 or quantized by `gesso quantize`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gesso.checkpoint.parameters import parameters
from gesso.checkpoint.stored import FLOATS, Inventory, ParameterRecipe, Stored
from gesso.model.config import Config

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gesso.checkpoint.quantize.formats import Format
    from gesso.checkpoint.quantize.packed import Packed


def recipes(config: Config, inventory: Inventory) -> dict[str, ParameterRecipe]:
    by_name = {name: recipe(name, shape, config.quantization, inventory) for name, shape in parameters(config).items()}
    return {name: present for name, present in by_name.items() if present is not None}


def recipe(name: str, shape: tuple[int, ...], quantization: str | None, inventory: Inventory) -> ParameterRecipe | None:
    """Return the recipe of one parameter, or None if its tensors are missing or wrong."""
    from gesso.checkpoint.quantize.formats import format_of, stored_name

    format = None if quantization is None else format_of(name, shape, quantization)
    if format is None:
        return plain(name, shape, inventory)
    layout = format.stored(name, shape)
    parts = inventory.take_all({part: (size, _dtypes(dtype)) for part, (size, dtype) in layout.items()})
    if parts is None:
        return None
    keys = {stored_name(name, key): key for key in format.layout(shape)}
    return ParameterRecipe(
        parts=parts,
        build=partial(_packed, format, shape, {keys[part]: dtype for part, (_, dtype) in layout.items()}),
        shape=shape,
        format=format.name,
        native=format.name,
    )


def plain(name: str, shape: tuple[int, ...], inventory: Inventory) -> ParameterRecipe | None:
    """Return the recipe of a parameter that is stored in full, as floating-point numbers."""
    part = inventory.take(name, shape, FLOATS)
    return None if part is None else in_full(part)


def in_full(part: Stored) -> ParameterRecipe:
    """Return the recipe of a parameter that is one stored tensor, as it is."""
    return ParameterRecipe(parts=(part,), build=_only, shape=part.shape, format=part.dtype, native=part.dtype)


def _only(parts: "Sequence[Tensor]") -> "Tensor":
    return parts[0]


def _packed(
    format: "Format", shape: tuple[int, ...], dtypes: "Mapping[str, torch.dtype]", parts: "Sequence[Tensor]"
) -> "Packed":
    tensors = {key: part.to(dtype) for (key, dtype), part in zip(dtypes.items(), parts, strict=True)}
    return format.packed(shape, tensors)


def _dtypes(dtype: "torch.dtype") -> tuple[str, ...]:
    """Return the safetensors names of a dtype. A float32 scale may be stored in a shorter float, which is exact."""
    names = {"float8_e4m3fn": "F8_E4M3", "uint8": "U8", "int32": "I32", "int64": "I64", "bfloat16": "BF16"}
    return (names[name],) if (name := str(dtype).removeprefix("torch.")) in names else ("F32", "BF16", "F16")
