"""Shared parts of the formats: checks, packing experts one by one, the best of a few scales.

E experts, O out, I in, G blocks per row, N values per block.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from gesso.errors import InputError

Tensors = dict[str, Tensor]
Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]  # shape and dtype of each tensor


ROWS = 16384  # of a matrix in float32 at once; all embeddings of the 26B would take 3 GB


def each(pack: Callable[[Tensor], Tensors], weight: Tensor) -> Tensors:
    """Pack a matrix [O, I], or the experts of a stack [E, O, I] one by one.

    In float32 one expert of the 26B takes 16 MB, and all of a layer 2 GB. Packed experts take their place in the result
    at once, so that no second copy of them exists.
    """
    check(weight.shape)
    if weight.ndim == 2:
        return pack(_finite(weight))
    first = pack(_finite(weight[0]))
    result = {key: part.new_empty((len(weight), *part.shape)) for key, part in first.items()}
    for expert, weight_OI in enumerate(weight):
        for key, part in (first if expert == 0 else pack(_finite(weight_OI))).items():
            result[key][expert] = part
    return result


def by_rows(pack: Callable[[Tensor], Tensors], weight: Tensor) -> Tensors:
    """Pack as `each` does, but a tall matrix in blocks of rows; for formats in which a row does not depend on others.

    The tensors of a block must have the rows as first dimension.
    """
    if weight.ndim != 2 or len(weight) <= ROWS:
        return each(pack, weight)
    parts = [each(pack, part) for part in weight.split(ROWS)]
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def check(shape: Sequence[int], block: int = 1) -> None:
    if len(shape) not in (2, 3) or 0 in shape:
        raise InputError(f"expected a matrix [out, in] or experts [experts, out, in], got shape {list(shape)}")
    if shape[-1] % block:
        raise InputError(f"{shape[-1]} inputs cannot be divided into blocks of {block}; use fp8, which has no blocks")


def _finite(weight_OI: Tensor) -> Tensor:
    if not weight_OI.is_floating_point():
        raise InputError(f"expected floating-point values, got {weight_OI.dtype}")
    weight_OI = weight_OI.detach().float()
    if not weight_OI.isfinite().all():
        raise InputError("it contains NaN or infinite values, which no scale can represent")
    return weight_OI


def best_scale(x_OGN: Tensor, scales: Iterable[Tensor], rounded: Callable[[Tensor], Tensor]) -> Tensor:
    """Return for each block the scale [O, G, 1] with the smallest squared rounding error; the first of equal ones.

    A scale that slightly clips the largest value can represent the others better.
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
