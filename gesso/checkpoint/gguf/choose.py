"""The type of each tensor in a GGUF file that gesso writes, by llama.cpp's rules (`llama-quant.cpp`) for this model.

Matrices have the type that the file is named after. The exceptions: the embedding, which is also the head, is Q6_K in
four-bit files; in `q4_k_m`, about half of the layers have Q6_K in place of Q4_K for values and second matrices of MLP
and experts. A row that is not a whole number of blocks takes a type with smaller blocks, or F16. In the 26B, that is
each second matrix: 704 and 2112 are not multiples of 256. The router, norms and scales are F32.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gesso.checkpoint.gguf.types import TYPES
from gesso.errors import InputError


@dataclass(frozen=True)
class Mixture:
    """The types of a file: of matrices, and of the embedding. `number` is the file's `general.file_type`."""

    number: int
    matrix: str
    embedding: str
    more: str  # for the layers that get more bits


MIXTURES: Mapping[str, Mixture] = MappingProxyType(
    {
        "bf16": Mixture(32, "BF16", "BF16", "BF16"),
        "q8_0": Mixture(7, "Q8_0", "Q8_0", "Q8_0"),
        "q4_0": Mixture(2, "Q4_0", "Q6_K", "Q4_0"),
        "q4_k_m": Mixture(15, "Q4_K", "Q6_K", "Q6_K"),
    }
)
_FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}  # with blocks of 32 values


def mixture(to: str) -> Mixture:
    if to not in MIXTURES:
        raise InputError(f"unknown type {to!r} for a GGUF file; known are {', '.join(MIXTURES)}")
    return MIXTURES[to]


def choose(shapes: Mapping[str, Sequence[int]], to: str) -> dict[str, str]:
    """Return the type of every tensor, given by its name in the file."""
    values = [name for name in shapes if name.endswith(".attn_v.weight")]  # global layers have none
    return {name: _type(name, shape, mixture(to), values, _layers(shapes)) for name, shape in shapes.items()}


def _layers(names: Mapping[str, Sequence[int]]) -> int:
    return 1 + max((int(match[1]) for name in names if (match := re.match(r"blk\.(\d+)\.", name))), default=-1)


def _type(name: str, shape: Sequence[int], mixture: Mixture, values: Sequence[str], layers: int) -> str:
    if len(shape) == 1 or "ffn_gate_inp" in name:
        return "F32"
    type = mixture.matrix
    if name == "token_embd.weight":
        type = mixture.embedding
    elif name in values:
        type = mixture.more if _gets_more(values.index(name), len(values)) else type
    elif match := re.fullmatch(r"blk\.(\d+)\.ffn_down(_exps)?\.weight", name):
        type = mixture.more if _gets_more(int(match[1]), layers) else type
    for candidate in (type, _FALLBACKS.get(type, type)):
        if shape[-1] % TYPES[candidate].values == 0:
            return candidate
    return "F16"


def _gets_more(i: int, count: int) -> bool:
    """Return whether a layer gets more bits: the first and last eighth, and every third one between."""
    return i < count // 8 or i >= 7 * count // 8 or (i - count // 8) % 3 == 2
