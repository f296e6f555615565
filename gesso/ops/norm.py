"""Root-mean-square norms over the last dimension, computed in float32 whatever the working dtype.

T tokens, H hidden.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from gesso.ops import fast
from gesso.ops.experts import Answers
from gesso.ops.weight import Parts, Rows


class Then(NamedTuple):
    """A norm of what an operation makes, for products with matrices of a format."""

    weight_H: Tensor
    wants: str | None

    def fitting(self, x_TH: Tensor) -> "Then":
        return self if fast.rows_fit(x_TH) else Then(self.weight_H, None)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if fast.kernels(x):
        return fast.load("rows").rms_norm(x, weight, eps)
    return _plain(x, weight, eps)


def norm_for(x_TH: Tensor, weight_H: Tensor, eps: float, wants: str | None) -> Rows:
    """The same, for products with matrices of a format: a kernel prepares its rows for them."""
    if fast.kernels(x_TH):
        return fast.load("rows").norm_for(x_TH, weight_H, eps, wants if fast.rows_fit(x_TH) else None)
    return _plain(x_TH, weight_H, eps)


def _plain(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    x32 = x.float()
    normed = x32 * (x32.square().mean(-1, keepdim=True) + eps).rsqrt()
    if weight is not None:
        normed = normed * weight.float()
    return normed.to(x.dtype)


def add_norms(
    x_TH: Tensor, y_TH: Tensor | Parts, weight_H: Tensor, then: Sequence[Then],
    scale_H: Tensor, factor: float, eps: float,
) -> tuple[Tensor, tuple[Rows, Rows, Tensor]]:  # fmt: skip
    """x + norm(y), and three norms of that sum: under each weight of `then`, for what it `wants` as in `norm_for`, and
    one for a router, scaled twice."""
    if fast.kernels(x_TH):
        fitting = [each.fitting(x_TH) for each in then]
        return fast.load("rows").add_norms(x_TH, y_TH, weight_H, fitting, scale_H, factor, eps)
    assert isinstance(y_TH, Tensor), "only kernels leave a product in parts"
    sum_TH = x_TH + _plain(y_TH, weight_H, eps)
    first_TH, second_TH = (_plain(sum_TH, each.weight_H, eps) for each in then)
    return sum_TH, (first_TH, second_TH, _plain(sum_TH, None, eps) * scale_H * factor)


def join(
    x_TH: Tensor,
    dense_TH: Tensor,
    sparse_TH: Tensor | Answers,
    weights: Sequence[Tensor],
    scalar_T1: Tensor,
    eps: float,
    then: Then | None = None,
) -> tuple[Tensor, Rows | None]:
    """The end of a layer: both halves of the feed-forward normed, their sum normed, added and scaled; and `then` normed
    once more, if so.

    `weights` are those of the norms of the dense half, of the experts' and of the sum.
    """
    if fast.kernels(x_TH):
        fitting = then and then.fitting(x_TH)
        return fast.load("rows").join(x_TH, dense_TH, sparse_TH, weights, scalar_T1, eps, fitting)
    assert isinstance(sparse_TH, Tensor), "only kernels leave answers unsummed"
    dense_H, sparse_H, both_H = weights
    both_TH = _plain(dense_TH, dense_H, eps) + _plain(sparse_TH, sparse_H, eps)
    out_TH = (x_TH + _plain(both_TH, both_H, eps)) * scalar_T1
    return out_TH, None if then is None else _plain(out_TH, then.weight_H, eps)
