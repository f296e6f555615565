"""The tensor types of GGUF files: their numbers, and how many values and bytes a block has."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Type:
    name: str
    number: int  # in the file
    values: int  # per block; a row is a whole number of blocks
    bytes: int  # per block


TYPES: Mapping[str, Type] = MappingProxyType(
    {
        type.name: type
        for type in (
            Type("F32", 0, 1, 4),
            Type("F16", 1, 1, 2),
            Type("BF16", 30, 1, 2),
            Type("Q4_0", 2, 32, 18),
            Type("Q5_0", 6, 32, 22),
            Type("Q5_1", 7, 32, 24),
            Type("Q8_0", 8, 32, 34),
            Type("Q4_K", 12, 256, 144),
            Type("Q5_K", 13, 256, 176),
            Type("Q6_K", 14, 256, 210),
            Type("IQ4_NL", 20, 32, 18),
            Type("MXFP4", 39, 32, 17),
            Type("NVFP4", 40, 64, 36),
        )
    }
)
FLOATS = ("F32", "F16", "BF16")
BLOCKS = tuple(name for name in TYPES if name not in FLOATS)
BY_NUMBER: Mapping[int, Type] = MappingProxyType({type.number: type for type in TYPES.values()})

# Types that gesso does not read, so that an error can name them.
OTHERS: Mapping[int, str] = MappingProxyType(
    {
        3: "Q4_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
        19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
        29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 41: "Q1_0",
    }
)  # fmt: skip


def row_bytes(type: Type, values: int) -> int:
    """Return the size of a row of this many values, which must be whole blocks."""
    return values // type.values * type.bytes
