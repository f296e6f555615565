"""Rotary position embedding (arXiv 2104.09864). T tokens, N heads, D head dim, F = D/2 frequencies."""

from functools import lru_cache

import torch
from torch import Tensor

from gesso.model.config import LayerShape

Rotation = tuple[Tensor, Tensor]  # cosine and sine [T, 1, D]


def inverse_frequencies(head_dim: int, theta: float, fraction: float, proportional: bool) -> Tensor:
    """Return the frequencies [F].

    With `proportional`, only the first `fraction` of the pairs rotates; the others have frequency 0. The exponent runs
    over the whole head in both cases.
    """
    rotated = int(fraction * head_dim // 2) if proportional else head_dim // 2
    exponents = torch.arange(0, 2 * rotated, 2, dtype=torch.float32) / head_dim
    return torch.cat([theta**-exponents, torch.zeros(head_dim // 2 - rotated)])


@lru_cache
def frequencies(shape: LayerShape, device: torch.device) -> Tensor:
    rope = shape.rope
    return inverse_frequencies(shape.head_dim, rope.theta, rope.fraction, rope.proportional).to(device)


def rotation(position_T: Tensor, frequencies_F: Tensor, dtype: torch.dtype) -> Rotation:
    """Return cosine and sine: angles in float32, then rounded to the working dtype."""
    angles_TF = position_T.float()[:, None] * frequencies_F
    angles_T1D = torch.cat([angles_TF, angles_TF], dim=-1)[:, None, :]
    return angles_T1D.cos().to(dtype), angles_T1D.sin().to(dtype)


def rotate(x_TND: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    left, right = x_TND.chunk(2, dim=-1)
    turned_TND = torch.cat([-right, left], dim=-1)
    if x_TND.dtype == torch.float32:  # one operation; in bfloat16 it would round once where the reference rounds twice
        return torch.addcmul(x_TND * cos_T1D, turned_TND, sin_T1D)
    return x_TND * cos_T1D + turned_TND * sin_T1D
