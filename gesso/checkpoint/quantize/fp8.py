"""FP8: e4m3 values and one float32 scale an output channel. Names and layout of compressed-tensors' `float-quantized`.

    weight        float8_e4m3fn  [O, I]
    weight_scale  float32        [O, 1]     value = weight · weight_scale

Experts have a leading E on both. The largest value of a channel becomes 448, the largest of e4m3, and the scale is
never zero: a channel of zeros has the smallest there is. No scale is searched for: a floating-point grid is much the
same at every scale. O out, I in.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gesso.checkpoint.quantize.matrices import Layout, Tensors, check, each

LARGEST = 448.0
TINY = torch.finfo(torch.float32).tiny
ROWS = 16384  # of a matrix in float32 at once: the embeddings of the 26B would be 3 GB


def pack(weight: Tensor) -> Tensors:
    if weight.ndim != 2 or len(weight) <= ROWS:
        return each(_pack, weight)
    parts = [each(_pack, part) for part in weight.split(ROWS)]
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def _pack(weight_OI: Tensor) -> Tensors:
    top_O1 = weight_OI.abs().amax(1, keepdim=True)
    # By a tensor: a GPU would multiply by the reciprocal of a number, which rounds otherwise than a CPU's division.
    scale_O1 = (top_O1 / top_O1.new_tensor(LARGEST)).clamp(min=TINY)
    # Clamped: beyond 448 torch makes NaN, and the division may land a bit above.
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
