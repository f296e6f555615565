"""Mixture of experts: each token goes through K chosen experts, gated GELU units, and sums their weighted outputs.

A model with few experts runs all of them for every token, which costs less than sorting the tokens by expert: there are
then no indices, only weights [T, E], of which those of the experts that were not chosen are zero.

T tokens, H hidden, E experts, K experts per token, P pairs of a token and one of its experts, I expert width, R tokens
of one expert.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso.model.config import Config
from gesso.model.modules import Linear, gated_gelu, rms_norm

Product = Callable[[Tensor], Tensor]


def runs_all(experts: int, k: int) -> bool:
    """Return whether all experts run for every token."""
    return experts <= 2 * k


class Router(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.k = config.top_k_experts
        self.eps = config.rms_norm_eps
        self.root = config.hidden_size**-0.5
        self.scale = nn.Parameter(torch.empty(config.hidden_size))
        self.proj = Linear(config.hidden_size, config.num_experts)
        self.per_expert_scale = nn.Parameter(torch.empty(config.num_experts))

    def forward(self, x_TH: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return the experts of each token and their weights, as `route` does, and the scores [T, E] of all experts."""
        scores_TE = self.proj(rms_norm(x_TH, None, self.eps) * self.scale * self.root)
        index_TK, weight = route(scores_TE, self.per_expert_scale, self.k)
        return index_TK, weight, scores_TE


def route(scores_TE: Tensor, expert_scale_E: Tensor, k: int) -> tuple[Tensor | None, Tensor]:
    """Return the K most probable experts of each token [T, K], and their weights [T, K]: the probabilities, divided by
    their sum, times each expert's own scale.

    If all experts run, return None and the weights of all experts [T, E].
    """
    probability_TE = scores_TE.softmax(-1, dtype=torch.float32)
    if runs_all(scores_TE.shape[-1], k):
        probability_TE = probability_TE * chosen(probability_TE, k)
        return None, probability_TE / probability_TE.sum(-1, keepdim=True) * expert_scale_E
    probability_TK, index_TK = probability_TE.topk(k, dim=-1)
    return index_TK, probability_TK / probability_TK.sum(-1, keepdim=True) * expert_scale_E[index_TK]


def chosen(probability_TE: Tensor, k: int) -> Tensor:
    """Return a mask [T, E] of the K most probable experts; among equals, the first."""
    experts = probability_TE.shape[-1]
    if runs_all(experts, k):
        return _experts_ahead(probability_TE) < k
    empty_TE = torch.zeros_like(probability_TE, dtype=torch.bool)
    return empty_TE.scatter(-1, probability_TE.topk(k).indices, True)


def _experts_ahead(probability_TE: Tensor) -> Tensor:
    """Count the experts before each one [T, E]: for few experts, comparing all pairs is cheaper than sorting."""
    experts = probability_TE.shape[-1]
    mine_TE1 = probability_TE[:, :, None]
    other_T1E = probability_TE[:, None, :]
    is_earlier_EE = torch.ones(experts, experts, dtype=torch.bool, device=probability_TE.device).tril(-1)
    return ((other_T1E > mine_TE1) | ((other_T1E == mine_TE1) & is_earlier_EE)).sum(-1)


class Experts(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        experts, hidden, width = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, x_TH: Tensor, index_TK: Tensor | None, weight: Tensor) -> Tensor:
        """Return the weighted sum of each token's experts, which `route` has chosen."""
        if index_TK is None:
            return self._sum_of_all(x_TH, weight_TE=weight)
        return self._sum_of_chosen(x_TH, index_TK, weight_TK=weight)

    def _sum_of_all(self, x_TH: Tensor, weight_TE: Tensor) -> Tensor:
        gate_TEI, up_TEI = self.first_products(x_TH).chunk(2, -1)
        h_TEI = gated_gelu(gate_TEI, up_TEI)
        return self.sum_of_second_products(h_TEI * weight_TE[..., None].to(h_TEI.dtype)).to(x_TH.dtype)

    def _sum_of_chosen(self, x_TH: Tensor, index_TK: Tensor, weight_TK: Tensor) -> Tensor:
        tokens, k = index_TK.shape
        expert_P = index_TK.flatten()
        order_P = expert_P.argsort(stable=True)  # the pairs, sorted by expert
        pairs_per_expert = expert_P.bincount(minlength=len(self.gate_up_proj)).tolist()

        gate_up = self.products_by_expert("gate_up_proj")
        down = self.products_by_expert("down_proj")
        outputs = []
        for expert, x_RH in enumerate(x_TH[order_P // k].split(pairs_per_expert)):
            if len(x_RH):
                gate_RI, up_RI = gate_up[expert](x_RH).chunk(2, -1)
                outputs.append(down[expert](gated_gelu(gate_RI, up_RI)))

        # Back to the order of tokens, and summed there. `scatter_add` would add in no fixed order on a GPU.
        y_TKH = torch.cat(outputs)[order_P.argsort()].view(tokens, k, -1)
        return (y_TKH * weight_TK[..., None]).sum(1).to(x_TH.dtype)

    # --- the products, which subclasses may extend --------------------------------------------------------------------

    def products_by_expert(self, name: str) -> list[Product]:
        """Return the product by each expert's matrix of this weight.

        `unbind`, not indexing: the gradient of `weight[e]` would be a tensor of zeros of the size of all experts.
        """
        return [partial(F.linear, weight=weight_OI) for weight_OI in torch.unbind(getattr(self, name))]

    def first_products(self, x_TH: Tensor) -> Tensor:
        """Multiply by the first matrices of all experts at once: [T, H] to [T, E, 2I]."""
        return F.linear(x_TH, torch.flatten(self.gate_up_proj, 0, 1)).unflatten(1, (len(self.gate_up_proj), -1))

    def sum_of_second_products(self, h_TEI: Tensor) -> Tensor:
        """Multiply by the second matrices and sum over the experts: [T, E, I] to [T, H]."""
        return F.linear(h_TEI.flatten(1), torch.flatten(torch.transpose(self.down_proj, 0, 1), 1))
