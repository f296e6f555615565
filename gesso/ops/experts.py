"""Mixture of experts: each token goes through its K chosen experts, gated GELU units, and sums their weighted answers.

T tokens of all segments, S tokens of one segment, H hidden, E experts, K experts a token, I expert width.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

Rows = Callable[[Tensor], Tensor]  # one expert's matrix, as a function of the rows it is given


def route(scores_TE: Tensor, expert_scale_E: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The K likeliest experts and their weights [T, K]: shares of the chosen, times each expert's own scale."""
    probability_TK, index_TK = scores_TE.softmax(-1, dtype=torch.float32).topk(k, dim=-1)
    weight_TK = probability_TK / probability_TK.sum(-1, keepdim=True) * expert_scale_E[index_TK]
    return index_TK, weight_TK


def matrices(weight_EOI: Tensor) -> list[Rows]:
    """Unbound once: the gradient of `weight[e]` is a tensor of all experts' size for every expert."""
    return [partial(F.linear, weight=weight_OI) for weight_OI in weight_EOI.unbind()]


def experts(
    x_TH: Tensor,
    index_TK: Tensor,
    weight_TK: Tensor,
    gate_up_E: Sequence[Rows],
    down_E: Sequence[Rows],
    lengths: Sequence[int],
) -> Tensor:
    """Each expert as two functions of the rows it is given. By segments, for the reason given in `ops/linear.py`."""
    parts = zip(*(tensor.split(list(lengths)) for tensor in (x_TH, index_TK, weight_TK)), strict=True)
    return torch.cat([_one_segment(x, index, weight, gate_up_E, down_E) for x, index, weight in parts])


def _one_segment(
    x_SH: Tensor, index_SK: Tensor, weight_SK: Tensor, gate_up_E: Sequence[Rows], down_E: Sequence[Rows]
) -> Tensor:
    k = index_SK.shape[1]
    order = index_SK.flatten().argsort(stable=True)  # (token, choice) pairs, grouped by expert
    counts = index_SK.flatten().bincount(minlength=len(gate_up_E)).tolist()
    answers = [
        down_E[e](gated_gelu(gate_up_E[e](x_RH))) for e, x_RH in enumerate(x_SH[order // k].split(counts)) if counts[e]
    ]
    # Back to (token, choice) order and summed there, not scattered: a scatter adds in no fixed order on a GPU.
    y_SKH = torch.cat(answers)[order.argsort()].view(*index_SK.shape, -1)
    return (y_SKH * weight_SK[..., None]).sum(1).to(x_SH.dtype)


def gated_gelu(x_T2I: Tensor) -> Tensor:
    gate, up = x_T2I.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up
