"""Convert experts from GGUF blocks to the four-bit formats that the GPU kernels run.

    Q4_0   int4   Codes are the same. The float16 scale is rounded to bfloat16: an error of at most 2^-8 of a value.
    Q4_K   uint4  Codes are the same. Scale and minimum are rounded to bfloat16: an error of at most
                  2^-8 · (n · |d · s| + |dmin · m|) for code n.
    MXFP4  nvfp4  Exact where the scales of an expert span 2^17 or less. Values in blocks whose scale is smaller become
                  zero; they are less than 2^-17 of the largest value that the expert can have.
    NVFP4  nvfp4  Codes and block scales are the same. The scale of the matrix, if there is one, becomes its inverse, by
                  which the format divides: an error of at most 2^-22 of a value.

All other types become FP8 (`quantize/repack.py`). Experts are converted one by one. O out, I in, G blocks of a row.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from gesso.checkpoint.gguf.blocks import e4m3, half, k_scales, nibbles, split
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.checkpoint.quantize.matrices import Tensors
from gesso.checkpoint.quantize.packed import Packed

LARGEST, SPAN = 8, 17  # of a power of two in e4m3: 2^8 to 2^-9


def four_bit(packed: Packed) -> Packed:
    """Return experts of one of the types in NATIVE in their format for the kernels."""
    name, convert = _CONVERSIONS[packed.format]
    each = [convert(expert.tensors) for expert in packed.unbind()]
    tensors = {key: torch.stack([one[key] for one in each]) for key in each[0]}
    result = FORMATS[name].packed(packed.shape, tensors)
    result.dtype = packed.dtype
    return result


def _q4_0(tensors: Mapping[str, Tensor]) -> Tensors:
    block_OGB = split("Q4_0", tensors["blocks"])
    code_OI = nibbles(block_OGB[..., 2:], 16).flatten(1)
    return {
        "weight_packed": _pairs(code_OI).view(torch.int32),
        "weight_scale": half(block_OGB, 0).squeeze(-1).to(torch.bfloat16),
        "weight_shape": torch.tensor(code_OI.shape, device=code_OI.device),
    }


def _q4_k(tensors: Mapping[str, Tensor]) -> Tensors:
    block_OGB = split("Q4_K", tensors["blocks"])
    scale_OG8, minimum_OG8 = k_scales(block_OGB)
    return {
        "weight_packed": _pairs(nibbles(block_OGB[..., 16:], 32).flatten(1)).view(torch.int32),
        "weight_scale_offset": torch.stack((scale_OG8, -minimum_OG8), -1).flatten(1, 2).to(torch.bfloat16),
    }


def _mxfp4(tensors: Mapping[str, Tensor]) -> Tensors:
    block_OGB = split("MXFP4", tensors["blocks"])
    exponent_OG = block_OGB[..., 0].int()
    top = exponent_OG.max().clamp(min=LARGEST)  # so that the global scale, 2^(8 - (top - 127)), is finite
    below_OG = top - exponent_OG
    code_OGN = torch.where((below_OG <= SPAN)[..., None], nibbles(block_OGB[..., 1:], 16), 0)
    scale_OG = torch.ldexp(torch.ones_like(below_OG, dtype=torch.float32), LARGEST - below_OG.clamp(max=SPAN))
    return {
        "weight_packed": _pairs(code_OGN.flatten(1)),
        "weight_scale": scale_OG.repeat_interleave(2, -1).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.ldexp(torch.ones(1, device=top.device), LARGEST + 127 - top),
    }


def _nvfp4(tensors: Mapping[str, Tensor]) -> Tensors:
    block_OGB = split("NVFP4", tensors["blocks"])
    rows = len(block_OGB)
    scale_O1 = tensors.get("scale")
    # Gate and up may have scales of their own: one for each half of the rows.
    scale = torch.ones(1, device=block_OGB.device) if scale_O1 is None else scale_O1[:: rows // 2, 0]
    return {
        "weight_packed": _pairs(nibbles(block_OGB[..., 4:], 8).flatten(1)),
        "weight_scale": e4m3(block_OGB[..., :4]).flatten(1),
        "weight_global_scale": scale.reciprocal(),
    }


def _pairs(code_OI: Tensor) -> Tensor:
    """Return bytes [O, I / 2] with value 2j in the low half of byte j."""
    return code_OI[:, 0::2] | code_OI[:, 1::2] << 4


_CONVERSIONS: Mapping[str, tuple[str, Callable[[Mapping[str, Tensor]], Tensors]]] = MappingProxyType(
    {
        "Q4_0": ("int4", _q4_0),
        "Q4_K": ("uint4", _q4_k),
        "MXFP4": ("nvfp4", _mxfp4),
        "NVFP4": ("nvfp4", _nvfp4),
    }
)
NATIVE: Mapping[str, str] = MappingProxyType({type: name for type, (name, _) in _CONVERSIONS.items()})
