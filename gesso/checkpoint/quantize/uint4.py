"""uint4: integers 0..15, with one bfloat16 scale and one bfloat16 offset per 32 values of a row.

GGUF's Q4_K and MLX's affine four-bit values become this format. `gesso quantize` does not write it.

    weight_packed        int32     [O, I / 8]
    weight_scale_offset  bfloat16  [O, I / 32, 2]     scale, then offset

    value[o, i] = nibble[o, i] · scale[o, i // 32] + offset[o, i // 32]

Nibbles are packed as in `int4`: value 8j + k of a row is at bit 4k of word j. Scale and offset of a group are one word
of 32 bits, so that a kernel reads both in one load. Experts have a leading dimension E on both tensors. I must be a
multiple of 32. Weights with one scale per 64 values have each pair twice. `pack` gives positive scales, and accepts
values up to 1e38. Kernels accept scales of any sign, below 2^35.

The 16 values of a group's grid span its smallest to its largest value. A search for a better scale would gain 3 % for
normal values, where int4 gains 10 %: the offset already fits the grid to the group. O out, I in, G groups per row,
N = 32.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gesso.checkpoint.quantize.matrices import Layout, Tensors, check, each

GROUP = 32
LARGEST = 15
TINY = torch.finfo(torch.bfloat16).tiny


def pack(weight: Tensor) -> Tensors:
    check(weight.shape, GROUP)
    return each(_pack, weight)


def _pack(weight_OI: Tensor) -> Tensors:
    x_OGN = weight_OI.unflatten(1, (-1, GROUP))
    bottom_OG1, top_OG1 = x_OGN.amin(-1, keepdim=True), x_OGN.amax(-1, keepdim=True)
    # Divide first: the span of finite values may be infinite.
    exact_OG1 = top_OG1 / LARGEST - bottom_OG1 / LARGEST
    # As they are stored, so that values are rounded for these. A group of equal values has scale 1.
    scale_OG1 = torch.where(exact_OG1 > 0, exact_OG1.clamp(min=TINY), 1.0).to(torch.bfloat16).float()
    offset_OG1 = bottom_OG1.to(torch.bfloat16).float()
    nibble_OI = ((x_OGN - offset_OG1) / scale_OG1).round().clamp_(0, LARGEST).to(torch.uint8).flatten(1)
    return {
        "weight_packed": (nibble_OI[:, 0::2] | (nibble_OI[:, 1::2] << 4)).view(torch.int32),
        "weight_scale_offset": torch.cat((scale_OG1, offset_OG1), -1).to(torch.bfloat16),
    }


def unpack(tensors: Mapping[str, Tensor]) -> Tensor:
    byte = tensors["weight_packed"].view(torch.uint8)
    nibble = torch.stack((byte & 15, byte >> 4), -1).flatten(-2).float()
    scale, offset = tensors["weight_scale_offset"].float()[..., None].unbind(-2)
    return (nibble.unflatten(-1, (-1, GROUP)) * scale + offset).flatten(-2)


def layout(shape: Sequence[int]) -> Layout:
    check(shape, GROUP)
    *rows, inputs = shape
    return {
        "weight_packed": ((*rows, inputs // 8), torch.int32),
        "weight_scale_offset": ((*rows, inputs // GROUP, 2), torch.bfloat16),
    }
