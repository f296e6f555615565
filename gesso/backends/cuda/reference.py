"""Plain versions of the fused row operations, for tests and benchmarks. T tokens, H hidden, N heads, D head dim."""

from collections.abc import Sequence

from torch import Tensor

from gesso.backends.cuda.activations import NextNorm
from gesso.model.modules import rms_norm
from gesso.model.rope import Rotation, rotate


def heads(
    q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, q_weight_D: Tensor, k_weight_D: Tensor, rotation: Rotation, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys normed and rotated, values normed without a weight."""
    return (
        rotate(rms_norm(q_TND, q_weight_D, eps), *rotation),
        rotate(rms_norm(k_TMD, k_weight_D, eps), *rotation),
        rms_norm(v_TMD, None, eps),
    )


def add_norms(
    x_TH: Tensor, y_TH: Tensor, weight_H: Tensor, then: Sequence[NextNorm], scale_H: Tensor, factor: float, eps: float
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return x + norm(y), and three norms of that sum: one per weight of `then`, and the router's, scaled twice."""
    sum_TH = x_TH + rms_norm(y_TH, weight_H, eps)
    first_TH, second_TH = (rms_norm(sum_TH, each.weight_H, eps) for each in then)
    return sum_TH, (first_TH, second_TH, rms_norm(sum_TH, None, eps) * scale_H * factor)


def join(
    x_TH: Tensor,
    dense_TH: Tensor,
    sparse_TH: Tensor,
    weights: Sequence[Tensor],
    scalar_T1: Tensor,
    eps: float,
    then: NextNorm,
) -> tuple[Tensor, Tensor]:
    """Return the output of a layer from its two feed-forward branches, and the norm that follows.

    `weights` are those of the norms of the dense branch, of the experts, and of their sum.
    """
    dense_H, sparse_H, both_H = weights
    both_TH = rms_norm(dense_TH, dense_H, eps) + rms_norm(sparse_TH, sparse_H, eps)
    out_TH = (x_TH + rms_norm(both_TH, both_H, eps)) * scalar_T1
    return out_TH, rms_norm(out_TH, then.weight_H, eps)
