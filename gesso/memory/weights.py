"""Bytes of weights: the counter for a loaded model, and for one that a configuration or file headers describe.

A packed matrix has the tensors that `Format.stored` lists, in memory as in files.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from gesso.checkpoint.source import CheckpointSource
from gesso.checkpoint.stored import FLOATS
from gesso.model.config import Config

if TYPE_CHECKING:  # importing torch takes a second, too long to report a bad path
    from torch import nn

    from gesso.checkpoint.quantize.formats import Format

NOT_PACKED = "none"  # as a value of --quantize


@dataclass(frozen=True)
class WeightSize:
    """The bytes of one weight in memory. If it streams from host memory, `resident` of them stay on the device."""

    nbytes: int
    resident: int = 0


def loaded_sizes(model: "nn.Module") -> dict[str, int]:
    """Return the bytes of every weight of a loaded model, packed or not, by its name."""
    from gesso.checkpoint.quantize.packed import Packed

    sizes = {name: parameter.nbytes for name, parameter in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            sizes[name] = sum(tensor.nbytes for tensor in module.tensors.values())
    return sizes


def loaded_bytes(model: "nn.Module") -> int:
    return sum(loaded_sizes(model).values())


@lru_cache(maxsize=32)  # a plan needs the sizes in several precisions, and plans for many cards need the same ones
def config_sizes(config: Config, quantize: str, value_bytes: int, *, on_cpu: bool = False) -> Mapping[str, WeightSize]:
    """Return the size of every weight of the text model by its name. An unpacked value has `value_bytes`.

    The weights are packed as the checkpoint is, or else to `quantize`. With `on_cpu`, the latter applies to as many
    matrices as on a CPU. Raise an InputError if a matrix cannot be stored in its format.
    """
    from gesso.checkpoint.parameters import empty_model
    from gesso.checkpoint.quantize.formats import format_of

    quantization = config.quantization or quantize
    packs_on_cpu = on_cpu and config.quantization is None
    sizes = {}
    for name, parameter in empty_model(replace(config, quantization=None)).named_parameters():
        packed = quantization != NOT_PACKED
        format = format_of(name, parameter.shape, quantization, packs_on_cpu) if packed else None
        sizes[name] = _size(name, parameter.shape, format, value_bytes)
    return MappingProxyType(sizes)


def source_sizes(
    source: CheckpointSource, value_bytes: int, on_gpu: bool, *, unpacked: bool = False
) -> dict[str, WeightSize]:
    """Return the size of every weight of a checkpoint in another tool's formats, by its name in the model.

    A CPU keeps packed matrices as they are stored, or unpacked; a GPU has them in a format of its kernels.
    """
    from gesso.checkpoint.parameters import checkpoint_name, empty_model
    from gesso.checkpoint.quantize.formats import FORMATS

    sizes = {}
    for name, parameter in empty_model(source.config).named_parameters():
        recipe = source.recipes[checkpoint_name(name)]
        if unpacked or recipe.format in FLOATS:
            sizes[name] = _size(name, parameter.shape, None, value_bytes)
        elif on_gpu:
            sizes[name] = _size(name, parameter.shape, FORMATS.get(recipe.native), value_bytes)
        else:
            sizes[name] = WeightSize(nbytes=recipe.nbytes)
    return sizes


def _size(name: str, shape: Sequence[int], format: "Format | None", value_bytes: int) -> WeightSize:
    from gesso.checkpoint.quantize.formats import stored_name
    from gesso.checkpoint.streamed import RESIDENT

    if format is None:
        return WeightSize(nbytes=value_bytes * math.prod(shape))
    tensors = {key: math.prod(part) * dtype.itemsize for key, (part, dtype) in format.stored(name, shape).items()}
    resident = {stored_name(name, key) for key in RESIDENT}
    return WeightSize(
        nbytes=sum(tensors.values()), resident=sum(size for key, size in tensors.items() if key in resident)
    )


def unpacks(source: CheckpointSource, value_bytes: int, size: int) -> bool:
    """Return whether a CPU with `size` bytes unpacks the matrices of another tool's checkpoint while it loads.

    Otherwise it unpacks them at every use, which takes several times as long as the products.
    """
    if not source.is_foreign:
        return False
    values = sum(math.prod(recipe.shape) for recipe in source.recipes.values())
    return 2 * value_bytes * values <= size


def token_bytes(sizes: Mapping[str, int], config: Config) -> int:
    """Return the bytes that writing one token by itself reads, from the bytes of all weights by name.

    A token passes through the causal stack with its chosen experts, and through the head. Of the embeddings it reads
    one row, and of self-conditioning and the vision tower nothing.
    """
    tied, total = config.tie_word_embeddings, 0
    for name, size in sizes.items():
        part = name.partition(".")[0]
        if part in ("self_conditioning", "vision") or (not tied and (part == "decoder" or "embed_tokens" in name)):
            continue
        total += size * config.top_k_experts // config.num_experts if ".experts." in name else size
    return total
