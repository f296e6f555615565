"""The operations on rows between the products: kernels, or plain operations if those are switched off.

The plain versions compute each row alone. They return rows in the working dtype, which products in FP8 quantize
themselves, and interleaved rows for four-bit experts.

T tokens, H hidden, K experts per token, E experts.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gesso.backends.cuda import reference
from gesso.backends.cuda.activations import ExpertOutputs, Interleaved, NextNorm, Rows, SplitK
from gesso.backends.cuda.families import Kernels, launching
from gesso.backends.cuda.kernels import embed, rows
from gesso.backends.cuda.kernels.experts_four_bit import depth
from gesso.backends.cuda.kernels.four_bit import FOUR_BIT, interleaved
from gesso.checkpoint.quantize.packed import Weight
from gesso.model.modules import rms_norm
from gesso.model.rope import Rotation
from gesso.model.rope import rotation as plain_rotation


def norm_for(kernels: Kernels, x_TH: Tensor, weight_H: Tensor, eps: float, format: str | None) -> Rows:
    """Return the norm of rows in an activation format."""
    if kernels.run("rows"):
        with launching("rows"):
            return rows.norm_for(x_TH, weight_H, eps, format)
    return rms_norm(x_TH, weight_H, eps)


def heads(
    kernels: Kernels, q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, q_weight_D: Tensor, k_weight_D: Tensor,
    rotation: Rotation, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return queries and keys normed and rotated, values normed."""
    if kernels.run("rows"):
        with launching("rows"):
            return rows.heads(q_TND, k_TMD, v_TMD, q_weight_D, k_weight_D, rotation, eps)
    q, k, v = reference.heads(q_TND, k_TMD, v_TMD, q_weight_D, k_weight_D, rotation, eps)
    return q.contiguous(), k.contiguous(), v.contiguous()


def add_norms(
    kernels: Kernels, x_TH: Tensor, y_TH: Tensor | SplitK, weight_H: Tensor, then: Sequence[NextNorm],
    scale_H: Tensor, factor: float, eps: float,
) -> tuple[Tensor, tuple[Rows, Rows, Tensor]]:  # fmt: skip
    """Return x + norm(y) and three norms of that sum."""
    if kernels.run("rows"):
        with launching("rows"):
            return rows.add_norms(x_TH, y_TH, weight_H, then, scale_H, factor, eps)
    added_TH = y_TH if isinstance(y_TH, Tensor) else _in_order(y_TH.sums_PTO.unbind()).to(x_TH.dtype)
    sum_TH, (first, second, routed) = reference.add_norms(x_TH, added_TH, weight_H, then, scale_H, factor, eps)
    return sum_TH, (first, _for_experts(second, then[1].format), routed)


def join(
    kernels: Kernels, x_TH: Tensor, dense_TH: Tensor, sparse_TH: Tensor | ExpertOutputs, weights: Sequence[Tensor],
    scalar_T1: Tensor, eps: float, then: NextNorm,
) -> tuple[Tensor, Rows]:  # fmt: skip
    """Return the output of a layer from its two feed-forward branches, and the norm that follows."""
    if kernels.run("rows"):
        with launching("rows"):
            return rows.join(x_TH, dense_TH, sparse_TH, weights, scalar_T1, eps, then)
    if isinstance(sparse_TH, ExpertOutputs):
        outputs_TKH = sparse_TH.outputs_RH.unflatten(0, sparse_TH.weight_TK.shape)
        weighted_TKH = outputs_TKH * sparse_TH.weight_TK[..., None]
        sparse_TH = _in_order(weighted_TKH.unbind(1)).to(x_TH.dtype)
    return reference.join(x_TH, dense_TH, sparse_TH, weights, scalar_T1, eps, then)


def rotation(kernels: Kernels, position_T: Tensor, frequencies_F: Tensor, dtype: torch.dtype) -> Rotation:
    """Return cosine and sine [T, 1, D] of positions."""
    if kernels.run("rows"):
        with launching("rows"):
            return embed.rotation(position_T, frequencies_F, dtype)
    return plain_rotation(position_T, frequencies_F, dtype)


def conditioned(
    kernels: Kernels, token_T: Tensor, table_VH: Weight, embed_scale: float, signal_TH: Tensor, eps: float
) -> Tensor:
    """Return the norm of the embedded tokens plus the signal of their self-conditioning."""
    if kernels.run("rows"):
        with launching("rows"):
            return embed.conditioned(token_T, table_VH, embed_scale, signal_TH, eps)
    embedded_TH = F.embedding(token_T, table_VH) * embed_scale  # type: ignore[arg-type]
    return rms_norm(embedded_TH + signal_TH, None, eps)


def _in_order(parts: Sequence[Tensor]) -> Tensor:
    """Add tensors one after another: the order of a library's sum depends on the number of rows."""
    total, *others = parts
    for each in others:
        total = total + each
    return total


def _for_experts(x_TH: Tensor, format: str | None) -> Rows:
    return Interleaved(interleaved(x_TH, depth("up", format))) if format in FOUR_BIT else x_TH
