"""FP8: e4m3 values and one float32 scale per output channel, as in compressed-tensors' `float-quantized`.

    weight        float8_e4m3fn  [O, I]
    weight_scale  float32        [O, 1]     value = weight · weight_scale

Experts have a leading dimension E on both. The scale maps the largest value of a channel to 448, the largest of e4m3.
It is never zero: a channel of zeros has the smallest scale. A search for a better scale would gain little, because a
floating-point grid is nearly the same at every scale. O out, I in.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gesso.checkpoint.quantize.matrices import Layout, Tensors, by_rows, check

LARGEST = 448.0
TINY = torch.finfo(torch.float32).tiny


def pack(weight: Tensor) -> Tensors:
    return by_rows(_pack, weight)


def _pack(weight_OI: Tensor) -> Tensors:
    top_O1 = weight_OI.abs().amax(1, keepdim=True)
    # Divide by a tensor: for a Python number, a GPU multiplies by the reciprocal, which rounds differently than a CPU.
    scale_O1 = (top_O1 / top_O1.new_tensor(LARGEST)).clamp(min=TINY)
    # Clamp: torch converts values above 448 to NaN, and the division may exceed it slightly.
    scaled_OI = (weight_OI / scale_O1).clamp_(-LARGEST, LARGEST)
    return {"weight": scaled_OI.to(torch.float8_e4m3fn), "weight_scale": scale_O1}


def unpack(tensors: Mapping[str, Tensor]) -> Tensor:
    return tensors["weight"].float() * tensors["weight_scale"]


def layout(shape: Sequence[int]) -> Layout:
    check(shape)
    return {
        "weight": (tuple(shape), torch.float8_e4m3fn),
        "weight_scale": ((*shape[:-1], 1), torch.float32),
    }
