"""Root-mean-square norms over the last dimension, computed in float32 whatever the working dtype.

T tokens, H hidden.
"""

from collections.abc import Sequence

from torch import Tensor

from gesso.ops import fast


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if fast.kernels(x):
        return fast.load("rows").rms_norm(x, weight, eps)
    x32 = x.float()
    normed = x32 * (x32.square().mean(-1, keepdim=True) + eps).rsqrt()
    if weight is not None:
        normed = normed * weight.float()
    return normed.to(x.dtype)


def add_norms(
    x_TH: Tensor, y_TH: Tensor, weight_H: Tensor, then: Sequence[Tensor], scale_H: Tensor, factor: float, eps: float
) -> tuple[Tensor, list[Tensor]]:
    """x + norm(y), and three norms of that sum: under each weight of `then`, and one for a router, scaled twice."""
    if fast.kernels(x_TH):
        return fast.load("rows").add_norms(x_TH, y_TH, weight_H, then, scale_H, factor, eps)
    sum_TH = x_TH + rms_norm(y_TH, weight_H, eps)
    normed = [rms_norm(sum_TH, each_H, eps) for each_H in then]
    return sum_TH, [*normed, rms_norm(sum_TH, None, eps) * scale_H * factor]


def join(
    x_TH: Tensor, dense_TH: Tensor, sparse_TH: Tensor, weights: Sequence[Tensor], scalar_T1: Tensor, eps: float
) -> Tensor:
    """The end of a layer: both halves of the feed-forward normed, their sum normed, added and scaled.

    `weights` are those of the norms of the dense half, of the experts' and of the sum.
    """
    if fast.kernels(x_TH):
        return fast.load("rows").join(x_TH, dense_TH, sparse_TH, weights, scalar_T1, eps)
    dense_H, sparse_H, both_H = weights
    both_TH = rms_norm(dense_TH, dense_H, eps) + rms_norm(sparse_TH, sparse_H, eps)
    return (x_TH + rms_norm(both_TH, both_H, eps)) * scalar_T1
