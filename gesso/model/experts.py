"""Mixture of experts: every token goes through the K experts that a router chooses for it.

1. The router scores all E experts for each token and chooses the K most probable ones, with a weight for each.
2. The tokens are sorted by expert, and each expert, a gated MLP, runs on its own tokens.
3. The outputs return to the order of the tokens. The K outputs of a token are multiplied by their weights and added.

A model with few experts takes another way, in `few_experts.py`: all experts run for every token.

T tokens, H hidden, E experts, K experts per token, P = T·K pairs of a token and one of its experts, I expert width, R
tokens of one expert.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso.model.config import Config
from gesso.model.few_experts import AllExperts, among_first, runs_all, weights_of_all
from gesso.model.modules import Linear, gated_gelu, rms_norm


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
        normed_TH = rms_norm(x_TH, None, self.eps) * self.scale * self.root
        scores_TE = self.proj(normed_TH)
        index_TK, weight = route(scores_TE, self.per_expert_scale, self.k)
        return index_TK, weight, scores_TE


def route(scores_TE: Tensor, expert_scale_E: Tensor, k: int) -> tuple[Tensor | None, Tensor]:
    """Return the K most probable experts of each token [T, K], and their weights [T, K].

    The weights are the probabilities, divided by their sum, times the scale of each expert. If all experts run, return
    None and the weights of all experts [T, E].
    """
    probability_TE = scores_TE.softmax(-1, dtype=torch.float32)
    if runs_all(scores_TE.shape[-1], k):
        return None, weights_of_all(probability_TE, expert_scale_E, k)
    probability_TK, index_TK = probability_TE.topk(k, dim=-1)
    weight_TK = probability_TK / probability_TK.sum(-1, keepdim=True)
    return index_TK, weight_TK * expert_scale_E[index_TK]


def chosen(probability_TE: Tensor, k: int) -> Tensor:
    """Return a mask [T, E] of the K most probable experts, for the load balance of training."""
    if runs_all(probability_TE.shape[-1], k):
        return among_first(probability_TE, k)
    empty_TE = torch.zeros_like(probability_TE, dtype=torch.bool)
    return empty_TE.scatter(-1, probability_TE.topk(k).indices, True)


@dataclass(frozen=True, kw_only=True)
class Expert:
    """One expert: a gated MLP, whose gate and up matrices are one."""

    gate_up_OH: Tensor  # O = 2 I
    down_HI: Tensor

    def __call__(self, x_RH: Tensor) -> Tensor:
        gate_RI, up_RI = self.first_product(x_RH).chunk(2, -1)
        return self.second_product(gated_gelu(gate_RI, up_RI))

    def first_product(self, x_RH: Tensor) -> Tensor:
        return F.linear(x_RH, self.gate_up_OH)

    def second_product(self, h_RI: Tensor) -> Tensor:
        return F.linear(h_RI, self.down_HI)


class Experts(AllExperts):
    """All experts of a layer. Their matrices are two parameters, as in the checkpoint."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        experts = config.num_experts
        hidden = config.hidden_size
        width = config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, x_TH: Tensor, index_TK: Tensor | None, weight: Tensor) -> Tensor:
        """Return the weighted sum [T, H] of the outputs of each token's experts, which `route` has chosen."""
        if index_TK is None:
            return self.sum_of_all(x_TH, weight_TE=weight)
        return self.sum_of_chosen(x_TH, index_TK, weight_TK=weight)

    def sum_of_chosen(self, x_TH: Tensor, index_TK: Tensor, weight_TK: Tensor) -> Tensor:
        # Sort the pairs by expert. Pair p belongs to token p // K.
        tokens, k = index_TK.shape
        expert_P = index_TK.flatten()
        order_P = expert_P.argsort(stable=True)
        x_PH = x_TH[order_P // k]

        # Run every expert on its rows.
        rows_by_expert = expert_P.bincount(minlength=len(self.gate_up_proj)).tolist()
        outputs = []
        for expert, x_RH in zip(self.experts(), x_PH.split(rows_by_expert), strict=True):
            if len(x_RH):
                outputs.append(expert(x_RH))

        # Back to the order of tokens, and summed there. `scatter_add` would add in no fixed order on a GPU.
        y_PH = torch.cat(outputs)[order_P.argsort()]
        y_TKH = y_PH.view(tokens, k, -1)
        return (y_TKH * weight_TK[..., None]).sum(1).to(x_TH.dtype)

    def experts(self) -> Sequence[Expert]:
        # `unbind`, not indexing: the gradient of `weight[e]` would be a tensor of zeros of the size of all experts.
        matrices = zip(torch.unbind(self.gate_up_proj), torch.unbind(self.down_proj), strict=True)
        return [Expert(gate_up_OH=gate_up_OH, down_HI=down_HI) for gate_up_OH, down_HI in matrices]
