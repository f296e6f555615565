"""Bytes of weights and KV cache, counted on the meta device by the modules that run the model."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gesso.checkpoint.source import Source
from gesso.checkpoint.stored import FLOATS
from gesso.model.config import Config
from gesso.model.quantization_config import LAYERS

if TYPE_CHECKING:  # importing torch takes a second, too long to report a bad path
    from torch import Tensor

PRECISIONS = ("bf16", "fp8", "4-bit")
CONTEXTS = (8_192, 32_768, 262_144)
MEMORY_RULES = (
    "Weights: with the vision tower, which is in bf16 in every precision; --text-only leaves it out.",
    "bf16: 2 bytes per value.",
    "fp8: 1 byte per value of the attention, MLP, expert and self-conditioning matrices and of the embeddings, and a "
    "float32 scale for each of their output channels (of each expert); norms and router stay in bf16.",
    "4-bit: 4.5 bits per value of the experts (NVFP4: 16 values share an FP8 scale; int4: 32 share one in bf16); the "
    "rest as in fp8.",
    "Cache: bf16, one sequence; global layers keep every token, sliding layers the last window + 63.",
    "The workspace of a pass (activations, logits) comes on top.",
)


def precision_of(quantization: str) -> str:
    """Return the name that MEMORY_RULES has for a quantization. The suffix LAYERS is kept."""
    kind = "fp8" if quantization.removesuffix(LAYERS) == "fp8" else "4-bit"
    return kind + LAYERS * quantization.endswith(LAYERS)


def weight_bytes(name: str, tensor: "Tensor", precision: str, value_bytes: int = 2) -> int:
    """Return the bytes of a tensor under MEMORY_RULES.

    If the precision ends in LAYERS, embeddings are not packed. An unpacked value has `value_bytes`, 2 in bf16.
    """
    from gesso.checkpoint.quantize.formats import format_of, is_expert

    kind, layers = precision.removesuffix(LAYERS), precision.endswith(LAYERS)
    if kind == "bf16" or format_of(name, tensor.shape, "fp8" + LAYERS * layers) is None:
        return value_bytes * tensor.numel()
    if kind == "fp8" or not is_expert(name):
        return tensor.numel() + 4 * math.prod(tensor.shape[:-1])
    return math.ceil(tensor.numel() * 4.5 / 8)


def cpu_weight_bytes(name: str, tensor: "Tensor", quantize: str, value_bytes: int) -> int:
    """Return the bytes of a tensor that a CPU packs while it loads a model."""
    from gesso.checkpoint.quantize.formats import format_of

    format = format_of(name, tensor.shape, quantize, on_cpu=True)
    if format is None:
        return value_bytes * tensor.numel()
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in format.stored(name, tensor.shape).values())


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


BITS = {"fp8": 8.0, "int4": 4.5, "uint4": 5.0, "nvfp4": 4.5}  # per value in the formats of the kernels, with scales


def unpacks(source: Source, value_bytes: int, size: int) -> bool:
    """Return whether a CPU with `size` bytes unpacks the matrices of another tool's checkpoint while it loads.

    Otherwise it unpacks them at every use, which takes several times as long as the products.
    """
    if not source.is_foreign:
        return False
    values = sum(math.prod(recipe.shape) for recipe in source.recipes.values())
    return 2 * value_bytes * values <= size


def recipe_bytes(source: Source, value_bytes: int, on_gpu: bool, *, unpacked: bool = False) -> dict[str, int]:
    """Return the bytes of every parameter of a checkpoint in memory, by its name in the model.

    A CPU keeps packed matrices as they are stored, or unpacked; a GPU has them in a format of its kernels.
    """
    from gesso.checkpoint.parameters import checkpoint_name, empty_model

    sizes = {}
    for name, parameter in empty_model(source.config).named_parameters():
        recipe = source.recipes[checkpoint_name(name)]
        if unpacked or recipe.format in FLOATS:
            sizes[name] = value_bytes * parameter.numel()
        elif not on_gpu:
            sizes[name] = recipe.nbytes
        else:
            sizes[name] = math.ceil(parameter.numel() * BITS.get(recipe.native, 8 * value_bytes) / 8)
            sizes[name] += 4 * math.prod(parameter.shape[:-1]) if recipe.native == "fp8" else 0
    return sizes


def cache_bytes(config: Config, context: int) -> int:
    """Return the bytes of the KV cache of one sequence in bf16."""
    import torch

    from gesso.model.cache import KVCache

    return KVCache(config, 1, context, torch.device("meta"), torch.bfloat16).nbytes


def sequence_bytes(config: Config, context: int, value_bytes: int = 2) -> int:
    """Return the bytes of one sequence in the engine: its KV cache, and the copy of its sliding-window rings."""
    import torch

    from gesso.model.cache import KVCache

    cache = KVCache(config, 1, context, torch.device("meta"), torch.bfloat16)
    cache.save(0, 0)
    return cache.nbytes * value_bytes // 2


def short(count: int, units: tuple[str, str, str, str] = (" B", " M", " K", "")) -> str:
    """Return a count in the largest unit that it reaches: billions, millions, thousands or ones."""
    for unit, size in zip(units, (1e9, 1e6, 1e3), strict=False):
        if count >= size:
            return f"{count / size:.2f}{unit}"
    return f"{count}{units[-1]}"


def gigabytes(size: int) -> str:
    return short(size, (" GB", " MB", " kB", " B"))
