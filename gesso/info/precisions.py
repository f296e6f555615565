"""The precisions and contexts of the tables of `gesso info`, and how their bytes are counted."""

from types import MappingProxyType

# The name of each value of --quantize in the tables, widest first.
TITLES = MappingProxyType({"none": "bf16", "fp8": "fp8", "int4": "4-bit"})
QUANTIZE = MappingProxyType({title: quantize for quantize, title in TITLES.items()})
PRECISIONS = tuple(QUANTIZE)
CONTEXTS = (8_192, 32_768, 262_144)
MEMORY_RULES = (
    "Weights: with the vision tower, which is in bf16 in every precision; --text-only leaves it out.",
    "bf16: 2 bytes per value.",
    "fp8: 1 byte per value of the attention, MLP, expert and self-conditioning matrices and of the embeddings, and a "
    "float32 scale for each of their output channels (of each expert); norms and router stay in bf16.",
    "4-bit: 4.5 bits per value of the experts, as counted for int4, in which 32 values share a scale in bf16 (in "
    "NVFP4, 16 share one in FP8); the rest as in fp8. Left out if rows of a matrix are not whole groups.",
    "Cache: bf16, one sequence; global layers keep every token, sliding layers the last window + 63.",
    "The workspace of a pass (activations, logits) comes on top.",
)
