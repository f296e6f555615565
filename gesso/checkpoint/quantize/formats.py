"""The formats by name, the tensors they apply to, and the names of their tensors in a file.

A model is stored in `fp8`, or with its experts, nine tenths of all weights, at four bits: `int4` or `nvfp4`. The other
matrices are then FP8: with the tokens of a canvas, their products are compute-bound, and widening four-bit weights
would only add to that. The suffix `-layers` leaves the embeddings, which are also the head, as they are.

`uint4` is a format of experts that come from files of other tools, and `int8` one that matrices are converted to for a
CPU. No model is stored in them.
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
from gesso.model.config import LAYERS, QUANTIZATIONS


@dataclass(frozen=True)
class Format:
    name: str
    pack: Callable[[Tensor], Tensors]
    unpack: Callable[[Mapping[str, Tensor]], Tensor]
    layout: Callable[[Sequence[int]], Layout]

    def packed(self, shape: Sequence[int], tensors: Mapping[str, Tensor]) -> Packed:
        return Packed(self.name, tuple(shape), tensors, self.unpack)

    def stored(self, parameter: str, shape: Sequence[int]) -> Layout:
        """Return shape and dtype of the stored tensors of a parameter, by name."""
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
        "int8": Format("int8", int8.pack, int8.unpack, int8.layout),
        "nvfp4": Format("nvfp4", nvfp4.pack, nvfp4.unpack, nvfp4.layout),
        "uint4": Format("uint4", uint4.pack, uint4.unpack, uint4.layout),
    }
)


def check_known(quantization: str) -> None:
    if quantization.removesuffix(LAYERS) not in QUANTIZATIONS:
        raise InputError(
            f"unknown quantization {quantization!r}; known are {', '.join(QUANTIZATIONS)}, "
            f"and each with {LAYERS} appended, which leaves the embeddings as they are"
        )


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


def format_of(name: str, shape: Sequence[int], quantization: str) -> Format | None:
    """Return the format of a tensor of the text model, or None if it is not packed.

    Router, norms and scalars are not packed: they are small, and their precision matters.
    """
    check_known(quantization)
    packed = _MATRICES if quantization.endswith(LAYERS) else _MATRICES | _TABLES
    if len(shape) < 2 or packed.isdisjoint(name.split(".")):
        return None
    return FORMATS[quantization.removesuffix(LAYERS) if is_expert(name) else "fp8"]


LARGE = 10**8  # values; experts and embeddings of a large model have more


def clear(device: torch.device, shape: Sequence[int]) -> None:
    """Return the GPU memory of packing a large tensor to the driver.

    Otherwise the next packed tensor is placed inside the cached block and fragments it.
    """
    if device.type == "cuda" and math.prod(shape) > LARGE:
        torch.cuda.empty_cache()
