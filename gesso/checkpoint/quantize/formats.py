"""The formats by name, the tensors they apply to, and the names of their tensors in a file.

A model is stored in `fp8`, or with its experts, nine tenths of all weights, at four bits: `int4` or `nvfp4`. The other
matrices are then FP8: with the tokens of a canvas, their products are compute-bound, and widening four-bit weights
would only add to that. Where another tool has left the embeddings, which are also the head, unpacked, the name of the
stored model ends in `-layers`.

On a CPU, a token written by itself reads few experts, so the other matrices count as much: when `int4` is applied
while loading, all of them have four bits. `int4-int8` keeps those that lose most, attention and embeddings, at eight.

`uint4` is a format of experts that come from files of other tools. No model is stored in it, nor in `int8`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from gesso.checkpoint.quantize import fp8, int4, int8, nvfp4, uint4
from gesso.checkpoint.quantize.matrices import Layout, Tensors
from gesso.checkpoint.quantize.packed import Packed
from gesso.errors import InputError
from gesso.model.quantization_config import LAYERS, MIXED, QUANTIZATIONS
from gesso.removed import REMOVED


@dataclass(frozen=True)
class Format:
    name: str
    pack: Callable[[Tensor], Tensors]
    unpack: Callable[[Mapping[str, Tensor]], Tensor]
    layout: Callable[[Sequence[int]], Layout]
    draw: Callable[[Sequence[int], torch.Generator], Tensors] | None = None  # random weights without packing any

    def packed(self, shape: Sequence[int], tensors: Mapping[str, Tensor]) -> Packed:
        return Packed(self.name, tuple(shape), tensors, self.unpack)

    def stored(self, parameter: str, shape: Sequence[int]) -> Layout:
        """Return shape and dtype of the stored tensors of a parameter, by name."""
        try:
            return {stored_name(parameter, key): layout for key, layout in self.layout(shape).items()}
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
        "int4": Format("int4", int4.pack, int4.unpack, int4.layout, int4.draw),
        "int8": Format("int8", int8.pack, int8.unpack, int8.layout, int8.draw),
        "nvfp4": Format("nvfp4", nvfp4.pack, nvfp4.unpack, nvfp4.layout),
        "uint4": Format("uint4", uint4.pack, uint4.unpack, uint4.layout),
    }
)


ON_CPU = ("int4", MIXED)  # quantizations that apply to all matrices when a CPU loads a model


def check_known(quantization: str, on_cpu: bool = False) -> None:
    names = (*QUANTIZATIONS, MIXED) if on_cpu else QUANTIZATIONS
    if quantization not in names:
        unknown = f"unknown quantization {quantization!r}; known are {', '.join(names)}"
        on_cpu_only = f"; {MIXED} is for loading on a CPU" if quantization == MIXED else ""
        raise InputError(REMOVED.get(quantization, unknown + on_cpu_only))


def stored_name(parameter: str, key: str) -> str:
    """Return the file name of a part: `…q_proj.weight_scale` of `…q_proj.weight`, `…up_proj_scale` of `…up_proj`."""
    return parameter + key.removeprefix("weight")


_MATRICES = frozenset(("self_attn", "mlp", "experts", "self_conditioning"))
_TABLES = frozenset(("embed_tokens", "lm_head"))


def is_expert(name: str) -> bool:
    return "experts" in name.split(".")


def is_table(name: str) -> bool:
    """Return whether this is the embedding of the vocabulary, or a head with its own tensor."""
    return not _TABLES.isdisjoint(name.split("."))


def format_of(name: str, shape: Sequence[int], quantization: str, on_cpu: bool = False) -> Format | None:
    """Return the format of a tensor of the text model, or None if it is not packed.

    Router, norms and scalars are not packed: they are small, and their precision matters. With `on_cpu`, return the
    format that a CPU packs the tensor to while it loads a model. The suffix LAYERS is that of stored models only.
    """
    kind = quantization.removesuffix(LAYERS)
    check_known(kind, on_cpu)
    packed = _MATRICES if quantization.endswith(LAYERS) else _MATRICES | _TABLES
    if len(shape) < 2 or packed.isdisjoint(name.split(".")):
        return None
    if on_cpu and kind in ON_CPU:
        return FORMATS[_format_on_cpu(name, shape, kind)]
    return FORMATS[kind if is_expert(name) else "fp8"]


def _format_on_cpu(name: str, shape: Sequence[int], quantization: str) -> str:
    if shape[-1] % int4.GROUP:
        return "fp8"  # has no groups
    eight = quantization == MIXED and (is_table(name) or "self_attn" in name.split("."))
    return "int8" if eight else "int4"


LARGE = 10**8  # values; experts and embeddings of a large model have more


def clear(device: torch.device, shape: Sequence[int]) -> None:
    """Return the GPU memory of packing a large tensor to the driver.

    Otherwise the next packed tensor is placed inside the cached block and fragments it.
    """
    if device.type == "cuda" and math.prod(shape) > LARGE:
        torch.cuda.empty_cache()
