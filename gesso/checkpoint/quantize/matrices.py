"""What the formats share: one matrix at a time, blocks of it, the best of a few scales.

E experts, O out, I in, G blocks of a row, N values of a block.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from gesso.errors import InputError

Tensors = dict[str, Tensor]
Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]  # shape and dtype of each tensor


def each(pack: Callable[[Tensor], Tensors], weight: Tensor) -> Tensors:
    """Pack a matrix [O, I], or the experts of a stack [E, O, I] one by one: in float32, one is 16 MB at the 26B shape
    and all of them are 2 GB."""
    check(weight.shape)
    if weight.ndim == 2:
        return pack(_finite(weight))
    packed = [pack(_finite(weight_OI)) for weight_OI in weight]
    return {key: torch.stack([one[key] for one in packed]) for key in packed[0]}


def check(shape: Sequence[int], block: int = 1) -> None:
    if len(shape) not in (2, 3) or 0 in shape:
        raise InputError(f"only a matrix [out, in] or experts [experts, out, in] can be packed, got {list(shape)}")
    if shape[-1] % block:
        raise InputError(f"{shape[-1]} inputs cannot be cut into blocks of {block}; use fp8, which has no blocks")


def _finite(weight_OI: Tensor) -> Tensor:
    if not weight_OI.is_floating_point():
        raise InputError(f"only floating-point values can be packed, got {weight_OI.dtype}")
    weight_OI = weight_OI.detach().float()
    if not weight_OI.isfinite().all():
        raise InputError("it holds NaN or infinite values, which no scale can bring into range")
    return weight_OI


def best_scale(x_OGN: Tensor, scales: Iterable[Tensor], rounded: Callable[[Tensor], Tensor]) -> Tensor:
    """For each block, the scale [O, G, 1] whose rounding errors have the smallest sum of squares; of equals, the first.

    A scale that clips the largest value a little serves the other values better.
    """
    best_OG1, least_OG1 = torch.empty(0), torch.empty(0)
    for scale_OG1 in scales:
        error_OG1 = (rounded(x_OGN / scale_OG1) * scale_OG1 - x_OGN).square_().sum(-1, keepdim=True)
        if not best_OG1.numel():
            best_OG1, least_OG1 = scale_OG1, error_OG1
            continue
        best_OG1 = torch.where(error_OG1 < least_OG1, scale_OG1, best_OG1)
        least_OG1 = torch.minimum(error_OG1, least_OG1)
    return best_OG1
