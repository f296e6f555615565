"""Few experts: all of them run for every token, as two dense products.

If at least half of the experts are chosen anyway, this costs less than sorting the tokens by expert. The router then
returns no indices but a weight for every expert [T, E], which is zero for those that were not chosen.

T tokens, H hidden, E experts, K experts per token, I expert width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso.model.modules import gated_gelu


def runs_all(experts: int, k: int) -> bool:
    """Return whether all experts run for every token."""
    return experts <= 2 * k


def weights_of_all(probability_TE: Tensor, expert_scale_E: Tensor, k: int) -> Tensor:
    """Return the weights [T, E] of all experts: see `route`, which returns those of the chosen ones."""
    probability_TE = probability_TE * among_first(probability_TE, k)
    return probability_TE / probability_TE.sum(-1, keepdim=True) * expert_scale_E


def among_first(probability_TE: Tensor, k: int) -> Tensor:
    """Return a mask [T, E] of the K most probable experts; among equals, the first.

    For few experts, comparing all pairs is cheaper than sorting.
    """
    experts = probability_TE.shape[-1]
    mine_TE1 = probability_TE[:, :, None]
    other_T1E = probability_TE[:, None, :]
    is_earlier_EE = torch.ones(experts, experts, dtype=torch.bool, device=probability_TE.device).tril(-1)
    is_ahead_TEE = (other_T1E > mine_TE1) | ((other_T1E == mine_TE1) & is_earlier_EE)
    return is_ahead_TEE.sum(-1) < k


class AllExperts(nn.Module):
    """The experts of a layer, run for every token."""

    gate_up_proj: nn.Parameter
    down_proj: nn.Parameter

    def sum_of_all(self, x_TH: Tensor, weight_TE: Tensor) -> Tensor:
        """Return the weighted sum [T, H] of the outputs of all experts."""
        gate_TEI, up_TEI = self.first_products(x_TH).chunk(2, -1)
        h_TEI = gated_gelu(gate_TEI, up_TEI)
        return self.sum_of_second_products(h_TEI * weight_TE[..., None].to(h_TEI.dtype)).to(x_TH.dtype)

    def first_products(self, x_TH: Tensor) -> Tensor:
        """Multiply by the first matrices of all experts at once: [T, H] to [T, E, 2I]."""
        return F.linear(x_TH, torch.flatten(self.gate_up_proj, 0, 1)).unflatten(1, (len(self.gate_up_proj), -1))

    def sum_of_second_products(self, h_TEI: Tensor) -> Tensor:
        """Multiply by the second matrices and sum over the experts: [T, E, I] to [T, H]."""
        return F.linear(h_TEI.flatten(1), torch.flatten(torch.transpose(self.down_proj, 0, 1), 1))
