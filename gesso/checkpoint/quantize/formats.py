"""The formats by name, which tensors they are for, and what those are called in a file.

A model is kept in `fp8`, or with its experts at four bits, `int4` or `nvfp4`. Those are nine tenths of all weights; at
four bits, too, the other matrices are FP8. With the tokens of a canvas a product with one of them takes longer to
compute than to read, and widening its weights would only add to that. With `-layers` behind the name the embeddings,
which are the head as well, stay as they are.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from gesso.checkpoint.quantize import fp8, int4, nvfp4
from gesso.checkpoint.quantize.matrices import Layout, Tensors
from gesso.checkpoint.quantize.packed import Packed
from gesso.errors import InputError
from gesso.model.config import LAYERS


@dataclass(frozen=True)
class Format:
    name: str
    pack: Callable[[Tensor], Tensors]
    unpack: Callable[[Mapping[str, Tensor]], Tensor]
    layout: Callable[[Sequence[int]], Layout]

    def packed(self, shape: Sequence[int], tensors: Mapping[str, Tensor]) -> Packed:
        return Packed(self.name, tuple(shape), tensors, self.unpack)

    def stored(self, parameter: str, shape: Sequence[int]) -> Layout:
        """Name, shape and dtype of what a file holds for this parameter."""
        try:
            return {stored_name(parameter, key): found for key, found in self.layout(shape).items()}
        except InputError as error:
            raise InputError(f"tensor {parameter} cannot be stored as {self.name}: {error}") from None

    def quantize(self, parameter: str, weight: Tensor) -> Packed:
        try:
            return self.packed(weight.shape, self.pack(weight))
        except InputError as error:
            raise InputError(f"tensor {parameter} cannot be stored as {self.name}: {error}") from None


FORMATS = MappingProxyType(
    {
        "fp8": Format("fp8", fp8.pack, fp8.unpack, fp8.layout),
        "int4": Format("int4", int4.pack, int4.unpack, int4.layout),
        "nvfp4": Format("nvfp4", nvfp4.pack, nvfp4.unpack, nvfp4.layout),
    }
)


def check_known(quantization: str) -> None:
    if quantization.removesuffix(LAYERS) not in FORMATS:
        raise InputError(
            f"unknown format {quantization!r} to quantize to; known are {', '.join(FORMATS)}, "
            f"and each with {LAYERS} behind it, which leaves the embeddings as they are"
        )


def stored_name(parameter: str, key: str) -> str:
    """`…q_proj.weight` has a `…q_proj.weight_scale`, and the experts' `…gate_up_proj` a `…gate_up_proj_scale`."""
    return parameter + key.removeprefix("weight")


_MATRICES = frozenset(("self_attn", "mlp", "experts", "self_conditioning"))
_TABLES = frozenset(("embed_tokens", "lm_head"))


def is_expert(name: str) -> bool:
    return "experts" in name.split(".")


def is_table(name: str) -> bool:
    """The embeddings of the vocabulary, and the head where it is not the same tensor."""
    return not _TABLES.isdisjoint(name.split("."))


def format_of(name: str, shape: Sequence[int], quantization: str) -> Format | None:
    """What a tensor of this name in the text model is kept in. None: it stays as it is.

    Router, norms and scalars do: they are small, and what they decide is not.
    """
    check_known(quantization)
    packed = _MATRICES if quantization.endswith(LAYERS) else _MATRICES | _TABLES
    if len(shape) < 2 or packed.isdisjoint(name.split(".")):
        return None
    return FORMATS[quantization.removesuffix(LAYERS) if is_expert(name) else "fp8"]


# --- tensors on their way into a model ----------------------------------------------------------------------------


def gather(
    quantization: str, shapes: Mapping[str, Sequence[int]], stored: Iterable[tuple[str, Tensor]], device: torch.device
) -> Iterator[tuple[str, Tensor | Packed]]:
    """Packed matrices out of their tensors, which may come in any order; what is not packed passes as it is."""
    formats = {name: found for name, shape in shapes.items() if (found := format_of(name, shape, quantization))}
    layouts = {parameter: format.layout(shapes[parameter]) for parameter, format in formats.items()}
    parts = {stored_name(parameter, key): (parameter, key) for parameter, keys in layouts.items() for key in keys}
    arrived: dict[str, Tensors] = {parameter: {} for parameter in layouts}
    for name, tensor in stored:
        if name not in parts:
            yield name, tensor
            continue
        parameter, key = parts[name]
        _, dtype = layouts[parameter][key]
        arrived[parameter][key] = tensor.to(device=device, dtype=dtype, copy=True)
        if len(arrived[parameter]) == len(layouts[parameter]):
            yield parameter, formats[parameter].packed(shapes[parameter], arrived.pop(parameter))


def pack_all(
    quantization: str, stored: Iterable[tuple[str, Tensor]], device: torch.device
) -> Iterator[tuple[str, Tensor | Packed]]:
    """Every matrix packed as it comes, from the values as they are stored: the same numbers as `gesso quantize`."""
    for name, tensor in stored:
        format = format_of(name, tensor.shape, quantization)
        yield name, format.quantize(name, tensor.to(device)) if format else tensor
        clear(device, tensor.shape)


LARGE = 10**8  # values: experts and embeddings of a large model


def clear(device: torch.device, shape: Sequence[int]) -> None:
    """What packing took of a GPU goes back to it. Else what stays of the next would be put in the midst of it,
    and the rest of it could be given to nobody else."""
    if device.type == "cuda" and math.prod(shape) > LARGE:
        torch.cuda.empty_cache()
