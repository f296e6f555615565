"""int8: integers -127..127, with one bfloat16 scale per 32 values of a row.

A CPU keeps matrices in it that lose too much at four bits. `gesso quantize` does not write it.

    weight        int8      [O, I]
    weight_scale  bfloat16  [O, I / 32]     value[o, i] = weight[o, i] · weight_scale[o, i // 32]

Experts have a leading dimension E on both. I must be a multiple of 32. The scale maps the largest value of a group to
127, and is never zero. A search for a better scale would gain little: the grid is fine enough to represent the largest
value without cost to the others. O out, I in, G groups per row, N = 32.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gesso.checkpoint.quantize.matrices import Layout, Tensors, by_rows, check

GROUP = 32
LARGEST = 127
TINY = torch.finfo(torch.bfloat16).tiny


def pack(weight: Tensor) -> Tensors:
    check(weight.shape, GROUP)
    return by_rows(_pack, weight)


def _pack(weight_OI: Tensor) -> Tensors:
    x_OGN = weight_OI.unflatten(1, (-1, GROUP))
    exact_OG1 = x_OGN.abs().amax(-1, keepdim=True) / LARGEST
    # As it is stored, so that values are rounded for this scale. A group of zeros has scale 1.
    scale_OG1 = torch.where(exact_OG1 > 0, exact_OG1.clamp(min=TINY), 1.0).to(torch.bfloat16)
    value_OI = (x_OGN / scale_OG1.float()).round().clamp_(-LARGEST, LARGEST).to(torch.int8).flatten(1)
    return {"weight": value_OI, "weight_scale": scale_OG1.squeeze(-1)}


def unpack(tensors: Mapping[str, Tensor]) -> Tensor:
    value = tensors["weight"].float().unflatten(-1, (-1, GROUP))
    return (value * tensors["weight_scale"].float()[..., None]).flatten(-2)


def draw(shape: Sequence[int], generator: torch.Generator) -> Tensors:
    """Return random integers with the deviation of random weights, I^-0.5, for models that only measure speed."""
    check(shape, GROUP)
    *rows, inputs = shape
    word = torch.empty(*rows, inputs // 8, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    scale = torch.full((*rows, inputs // GROUP), inputs**-0.5 * 3**0.5 / LARGEST, dtype=torch.bfloat16)
    return {"weight": word.view(torch.int8).clamp_(min=-LARGEST), "weight_scale": scale}


def layout(shape: Sequence[int]) -> Layout:
    check(shape, GROUP)
    *rows, inputs = shape
    return {"weight": (tuple(shape), torch.int8), "weight_scale": ((*rows, inputs // GROUP), torch.bfloat16)}
