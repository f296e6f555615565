"""Root-mean-square norm over the last dimension, computed in float32 whatever the working dtype."""

from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    x32 = x.float()
    normed = x32 * (x32.square().mean(-1, keepdim=True) + eps).rsqrt()
    if weight is not None:
        normed = normed * weight.float()
    return normed.to(x.dtype)
