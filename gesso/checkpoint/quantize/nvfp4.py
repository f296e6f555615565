"""NVFP4: e2m1 values, one e4m3 scale per 16 values of a row and one float32 scale per matrix, as in compressed-tensors'
`nvfp4-pack-quantized`.

    weight_packed        uint8          [O, I / 2]
    weight_scale         float8_e4m3fn  [O, I / 16]
    weight_global_scale  float32        [1], or [2]

    value[o, i] = e2m1[o, i] · weight_scale[o, i // 16] / weight_global_scale

The global scale *divides*: it is 448 · 6 / the largest value of the matrix, so that the block with that value has the
largest e4m3 scale. (Files of other tools call its inverse `weight_scale_2`.) Byte j of a row has value 2j in its low
half and 2j + 1 in its high half; a half is a sign bit and three bits that count through 0, 0.5, 1, 1.5, 2, 3, 4, 6.
Experts have a leading dimension E on every tensor, so one global scale each. I must be a multiple of 16. No scale is
ever zero.

Two global scales are those of the two halves of the rows. Files of other tools may have one for the gate and one for
the up matrix of an expert, which are one matrix here. `pack` computes one scale for both.

Each block takes the best of four scales by squared error, 11 % lower for normal values than the scale that maps the
largest value to 6. Two of the four map it to 4 and to 6 (arXiv 2512.02010): e2m1 has no value between these, and a
value of 5/6 of the largest would lose a tenth of itself. O out, I in, G blocks per row, N = 16.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from gesso.checkpoint.quantize.matrices import Layout, Tensors, best_scale, check, each

BLOCK = 16
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Candidate scales are the largest value of a block over these: the best of all sets of four from 3.5 to 7.5.
DIVISORS = (6.0, 4.0, 5.5, 6.5)
LARGEST_SCALE, SMALLEST_SCALE = 448.0, 2.0**-9  # of e4m3


def pack(weight: Tensor, divisors: Sequence[float] = DIVISORS) -> Tensors:
    check(weight.shape, BLOCK)
    return each(partial(_pack, divisors=divisors), weight)


def _pack(weight_OI: Tensor, divisors: Sequence[float]) -> Tensors:
    top = weight_OI.abs().max()
    largest = torch.finfo(torch.float32).max
    global_scale = torch.where(top > 0, (LARGEST_SCALE * VALUES[-1] / top).clamp(max=largest), 1.0)
    x_OGN = weight_OI.unflatten(1, (-1, BLOCK)) * global_scale
    top_OG1 = x_OGN.abs().amax(-1, keepdim=True)
    scale_OG1 = best_scale(x_OGN, (_scale(top_OG1 / divisor) for divisor in divisors), _round)
    code_OI = _encode(_round(x_OGN / scale_OG1)).flatten(1)
    return {
        "weight_packed": code_OI[:, 0::2] | (code_OI[:, 1::2] << 4),
        "weight_scale": scale_OG1.squeeze(-1).to(torch.float8_e4m3fn),
        "weight_global_scale": global_scale.reshape(1),
    }


def _scale(exact_OG1: Tensor) -> Tensor:
    """Return the scale as it is stored, so that values are rounded for that scale."""
    return exact_OG1.clamp(SMALLEST_SCALE, LARGEST_SCALE).to(torch.float8_e4m3fn).float()


def _round(scaled: Tensor) -> Tensor:
    """Round to the nearest of VALUES, ties to the even code, as for e4m3 and IEEE numbers.

    Steps are 0.5 below 2, 1 below 4, 2 above: half the power of two below the value, which its exponent bits give.
    """
    scaled = scaled.clamp(-VALUES[-1], VALUES[-1])
    step = (scaled.abs().clamp_(min=1.0).view(torch.int32) & 0x7F80_0000).view(torch.float32) / 2
    return (scaled / step).round_() * step


def _encode(value: Tensor) -> Tensor:
    codes = torch.zeros(13, dtype=torch.uint8, device=value.device)
    codes[[int(2 * v) for v in VALUES]] = torch.arange(8, dtype=torch.uint8, device=value.device)
    return codes[(value.abs() * 2).int()] | ((value < 0).to(torch.uint8) << 3)


def unpack(tensors: Mapping[str, Tensor]) -> Tensor:
    byte = tensors["weight_packed"]
    values = torch.tensor([*VALUES, *(-v for v in VALUES)], device=byte.device)
    value = values[torch.stack((byte & 15, byte >> 4), -1).flatten(-2).int()]
    scale, global_scale = tensors["weight_scale"].float(), tensors["weight_global_scale"]
    rows = scale.shape[-2] // global_scale.shape[-1]  # that share a global scale
    scale = scale / global_scale.repeat_interleave(rows, -1)[..., None]
    return (value.unflatten(-1, (-1, BLOCK)) * scale[..., None]).flatten(-2)


def layout(shape: Sequence[int]) -> Layout:
    check(shape, BLOCK)
    *rows, inputs = shape
    return {
        "weight_packed": ((*rows, inputs // 2), torch.uint8),
        "weight_scale": ((*rows, inputs // BLOCK), torch.float8_e4m3fn),
        "weight_global_scale": ((*rows[:-1], 1), torch.float32),
    }
