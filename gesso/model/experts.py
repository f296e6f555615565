"""Mixture of experts: each token goes through K chosen experts, gated GELU units, and sums their weighted outputs.

T tokens, H hidden, E experts, K experts per token, I expert width, R tokens of one expert, O outputs.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso.model.config import Config
from gesso.model.modules import Linear, gated_gelu, rms_norm

Product = Callable[[Tensor], Tensor]


class Router(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.k, self.eps, self.root = config.top_k_experts, config.rms_norm_eps, config.hidden_size**-0.5
        self.scale = nn.Parameter(torch.empty(config.hidden_size))
        self.proj = Linear(config.hidden_size, config.num_experts)
        self.per_expert_scale = nn.Parameter(torch.empty(config.num_experts))

    def forward(self, x_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the chosen experts and their weights [T, K], and the scores [T, E] of all experts."""
        scores_TE = self.proj(rms_norm(x_TH, None, self.eps) * self.scale * self.root)
        return *route(scores_TE, self.per_expert_scale, self.k), scores_TE


def route(scores_TE: Tensor, expert_scale_E: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the K most probable experts and their weights [T, K]: renormalized, times each expert's own scale.

    If all experts run (`runs_all`), return all of them, [T, E]; those not chosen have weight zero.
    """
    probability_TE = scores_TE.softmax(-1, dtype=torch.float32)
    if runs_all(scores_TE.shape[-1], k):
        return _route_to_all(probability_TE, expert_scale_E, k)
    probability_TK, index_TK = probability_TE.topk(k, dim=-1)
    return index_TK, probability_TK / probability_TK.sum(-1, keepdim=True) * expert_scale_E[index_TK]


def _route_to_all(probability_TE: Tensor, expert_scale_E: Tensor, k: int) -> tuple[Tensor, Tensor]:
    index_TE = torch.arange(probability_TE.shape[-1], device=probability_TE.device).expand_as(probability_TE)
    kept_TE = probability_TE * chosen(probability_TE, k)
    return index_TE, kept_TE / kept_TE.sum(-1, keepdim=True) * expert_scale_E


def runs_all(experts: int, k: int) -> bool:
    """Whether to run all experts: with this few of them, that costs less than sorting tokens by expert."""
    return experts <= 2 * k


def chosen(probability_TE: Tensor, k: int) -> Tensor:
    """Return a mask [T, E] of the K most probable experts; among equals, the first."""
    experts = probability_TE.shape[-1]
    if not runs_all(experts, k):
        empty_TE = torch.zeros_like(probability_TE, dtype=torch.bool)
        return empty_TE.scatter(-1, probability_TE.topk(k).indices, True)
    # Count the experts ahead of each one: comparing all pairs is cheaper than sorting.
    mine, other = probability_TE[:, :, None], probability_TE[:, None, :]
    earlier = torch.ones(experts, experts, dtype=torch.bool, device=probability_TE.device).tril(-1)
    return ((other > mine) | ((other == mine) & earlier)).sum(-1) < k


class Experts(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        experts, hidden, width = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, x_TH: Tensor, index_TK: Tensor, weight_TK: Tensor) -> Tensor:
        """Return the weighted sums of the experts that `route` has returned, with their weights."""
        if index_TK.shape[1] == len(self.gate_up_proj):
            return self._sum_of_all(x_TH, weight_TE=weight_TK)
        return self._sum_of_chosen(x_TH, index_TK, weight_TK)

    def _sum_of_all(self, x_TH: Tensor, weight_TE: Tensor) -> Tensor:
        y_TEI = gated_gelu(*self.fan_out(x_TH).chunk(2, -1))
        return self.fan_in(y_TEI * weight_TE[..., None].to(y_TEI.dtype)).to(x_TH.dtype)

    def _sum_of_chosen(self, x_TH: Tensor, index_TK: Tensor, weight_TK: Tensor) -> Tensor:
        k = index_TK.shape[1]
        order = index_TK.flatten().argsort(stable=True)  # (token, choice) pairs, grouped by expert
        counts = index_TK.flatten().bincount(minlength=len(self.gate_up_proj)).tolist()
        up, down = self.each("gate_up_proj", x_TH.dtype), self.each("down_proj", x_TH.dtype)
        groups = x_TH[order // k].split(counts)
        y = [down[e](gated_gelu(*up[e](x_RH).chunk(2, -1))) for e, x_RH in enumerate(groups) if counts[e]]
        # Reorder to (token, choice) and sum there instead of scattering: a scatter adds in no fixed order on a GPU.
        y_TKH = torch.cat(y)[order.argsort()].view(*index_TK.shape, -1)
        return (y_TKH * weight_TK[..., None]).sum(1).to(x_TH.dtype)

    def each(self, name: str, dtype: torch.dtype) -> list[Product]:
        """Return one product per expert.

        `unbind`, not indexing: the gradient of `weight[e]` would be a tensor of zeros of the size of all experts.
        """
        return [partial(F.linear, weight=weight_OI) for weight_OI in torch.unbind(getattr(self, name))]

    def fan_out(self, x_TH: Tensor) -> Tensor:
        """Multiply by the first matrices of all experts at once: [T, H] to [T, E, 2I]."""
        return F.linear(x_TH, torch.flatten(self.gate_up_proj, 0, 1)).unflatten(1, (len(self.gate_up_proj), -1))

    def fan_in(self, y_TEI: Tensor) -> Tensor:
        """Multiply by the second matrices and sum over the experts: [T, E, I] to [T, H]."""
        return F.linear(y_TEI.flatten(1), torch.flatten(torch.transpose(self.down_proj, 0, 1), 1))
