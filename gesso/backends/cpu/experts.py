"""Experts with packed weights: two grouped products for all chosen experts, instead of a loop over experts.

`Experts` in `gesso/model/experts.py` is the specification.

T tokens, H hidden, E experts, K experts per token, R = T·K pairs of a token and its expert, sorted by expert.
"""

from functools import lru_cache

import torch
from torch import Tensor

from gesso.adapters.lora import AdaptedExperts
from gesso.backends.cpu.products import Pairs
from gesso.model.modules import gated_gelu

NAMES = ("gate_up_proj", "down_proj")


class PackedExperts(AdaptedExperts):
    """Experts with the weights and adapters of others. Training, and an active adapter, use the plain version."""

    def forward(self, x_TH: Tensor, index_TK: Tensor | None, weight: Tensor) -> Tensor:
        up, down = (getattr(getattr(self, name), "product", None) for name in NAMES)
        is_adapted = any(self.lora(name) is not None for name in NAMES)
        if index_TK is None or not (up and down) or is_adapted or torch.is_grad_enabled():
            return super().forward(x_TH, index_TK, weight)
        weight_TK = weight
        tokens, k = index_TK.shape
        order_R, pairs = one_token(index_TK) if tokens == 1 else sort_pairs(index_TK)
        h_RI = gated_gelu(*up.grouped(x_TH, pairs).chunk(2, -1))
        # The first product has put the rows in order.
        y_RH = down.grouped(h_RI, Pairs(numbers(tokens * k), pairs.expert_G, pairs.end_G))
        if tokens == 1:
            return torch.mm(weight_TK.float(), y_RH).to(x_TH.dtype)
        y_TKH = torch.empty_like(y_RH).index_copy_(0, order_R, y_RH).view(tokens, k, -1)
        return (y_TKH * weight_TK[..., None]).sum(1).to(x_TH.dtype)


@lru_cache(maxsize=64)
def numbers(count: int, first: int = 0) -> Tensor:
    return torch.arange(first, first + count)


def one_token(index_TK: Tensor) -> tuple[Tensor, Pairs]:
    """Return the pairs of one token, whose experts all differ, in the order of its choices."""
    k = index_TK.shape[1]
    return numbers(k), Pairs(torch.zeros(k, dtype=torch.int64), index_TK[0].contiguous(), numbers(k, first=1))


def sort_pairs(index_TK: Tensor) -> tuple[Tensor, Pairs]:
    """Return the pairs (token, choice) in the order of their experts, and the rows of their tokens."""
    sorted_R, order_R = index_TK.flatten().sort(stable=True)
    expert_G, count_G = sorted_R.unique_consecutive(return_counts=True)
    return order_R, Pairs(order_R // index_TK.shape[1], expert_G, count_G.cumsum(0))
