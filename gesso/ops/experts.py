"""Mixture of experts: each token goes through its K chosen experts, gated GELU units, and sums their weighted answers.

T tokens of all segments, S tokens of one segment, H hidden, E experts, K experts a token, I expert width.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gesso.ops.weight import Weight, multiply

Rows = Callable[[Tensor], Tensor]  # a matrix, as a function of the rows it is given


def route(scores_TE: Tensor, expert_scale_E: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The K likeliest experts and their weights [T, K]: shares of the chosen, times each expert's own scale.

    Where experts are few, all of them stand there, those not chosen with a weight of zero: see `few_experts`.
    """
    probability_TE = scores_TE.softmax(-1, dtype=torch.float32)
    experts = scores_TE.shape[-1]
    if few(experts, k):
        index_TK = torch.arange(experts, device=scores_TE.device).expand_as(scores_TE)
        probability_TK, scale = probability_TE * chosen(probability_TE, k), expert_scale_E
    else:
        probability_TK, index_TK = probability_TE.topk(k, dim=-1)
        scale = expert_scale_E[index_TK]
    return index_TK, probability_TK / probability_TK.sum(-1, keepdim=True) * scale


def chosen(probability_TE: Tensor, k: int) -> Tensor:
    """Which are among the K likeliest [T, E]; of equals, the first."""
    experts = probability_TE.shape[-1]
    if not few(experts, k):
        empty_TE = torch.zeros_like(probability_TE, dtype=torch.bool)
        return empty_TE.scatter(-1, probability_TE.topk(k).indices, True)
    # How many come before each: comparing all pairs is cheaper than sorting.
    mine, other = probability_TE[:, :, None], probability_TE[:, None, :]
    earlier = torch.ones(experts, experts, dtype=torch.bool, device=probability_TE.device).tril(-1)
    return ((other > mine) | ((other == mine) & earlier)).sum(-1) < k


def few(experts: int, k: int) -> bool:
    """Whether so many are chosen that running all of them costs less than sorting tokens by expert."""
    return experts <= 2 * k


def matrices(weight_EOI: Weight) -> list[Rows]:
    """Unbound once: the gradient of `weight[e]` is a tensor of all experts' size for every expert."""
    return [partial(multiply, weight_OI=weight_OI) for weight_OI in weight_EOI.unbind()]


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


def few_experts(x_TH: Tensor, weight_TE: Tensor, gate_up: Rows, down: Rows, lengths: Sequence[int]) -> Tensor:
    """The same for few experts: all of them run, and a weight of zero silences those not chosen.

    `gate_up` makes [S, E, 2I] of [S, H], `down` sums [S, E, I] over the experts to [S, H]: two plain products.
    """
    outputs = []
    for x_SH, weight_SE in zip(x_TH.split(list(lengths)), weight_TE.split(list(lengths)), strict=True):
        y_SEI = gated_gelu(gate_up(x_SH))
        outputs.append(down(y_SEI * weight_SE[..., None].to(y_SEI.dtype)).to(x_SH.dtype))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def gated_gelu(x_T2I: Tensor) -> Tensor:
    gate, up = x_T2I.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up
