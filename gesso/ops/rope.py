"""Rotary position embedding (arXiv 2104.09864). T tokens, N heads, D head dim, F = D/2 frequencies."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gesso.ops import fast
from gesso.ops.norm import rms_norm


def inverse_frequencies(head_dim: int, theta: float, fraction: float, proportional: bool) -> Tensor:
    """`proportional` rotates the first `fraction` of the pairs; the rest get frequency 0, that is, no rotation.

    The exponent runs over the whole head in both cases.
    """
    rotated = int(fraction * head_dim // 2) if proportional else head_dim // 2
    exponents = torch.arange(0, 2 * rotated, 2, dtype=torch.float32) / head_dim
    return torch.cat([theta**-exponents, torch.zeros(head_dim // 2 - rotated)])


def rotation(
    position_T: Tensor, frequencies_F: Tensor, dtype: torch.dtype, lengths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Cosine and sine [T, 1, D]: angles in float32, then the working dtype. By segments, as in `ops/linear.py`."""
    cos, sin = [], []
    for position_S in position_T.split(list(lengths)):
        angles_SF = position_S.float()[:, None] * frequencies_F
        angles_S1D = torch.cat([angles_SF, angles_SF], dim=-1)[:, None, :]
        cos.append(angles_S1D.cos().to(dtype))
        sin.append(angles_S1D.sin().to(dtype))
    return torch.cat(cos), torch.cat(sin)


def rotate(x_TND: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    left, right = x_TND.chunk(2, dim=-1)
    return x_TND * cos_T1D + torch.cat([-right, left], dim=-1) * sin_T1D


def heads(
    q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, q_weight_D: Tensor, k_weight_D: Tensor,
    rotation: tuple[Tensor, Tensor], eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries and keys normed and rotated, values normed without a weight. M key/value heads."""
    if fast.kernels(q_TND):
        return fast.load("rows").heads(q_TND, k_TMD, v_TMD, q_weight_D, k_weight_D, rotation, eps)
    return (
        rotate(rms_norm(q_TND, q_weight_D, eps), *rotation),
        rotate(rms_norm(k_TMD, k_weight_D, eps), *rotation),
        rms_norm(v_TMD, None, eps),
    )
