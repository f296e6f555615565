"""The sparse half of a layer's feed-forward. T tokens of all segments, H hidden, E experts, I expert width."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gesso import ops
from gesso.adapters.lora import Adapters
from gesso.model.config import Config
from gesso.model.parts import Linear


class Router(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.k, self.root = config.top_k_experts, config.hidden_size**-0.5
        self.scale = nn.Parameter(torch.empty(config.hidden_size))
        self.proj = Linear(config.hidden_size, config.num_experts)
        self.per_expert_scale = nn.Parameter(torch.empty(config.num_experts))

    def forward(self, normed_TH: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The chosen experts and their weights [T, K], and the scores [T, E] of all."""
        return ops.choose(normed_TH, self.proj.matrix, self.per_expert_scale, self.k, lengths)


class Experts(nn.Module):
    gate_up_proj: nn.Parameter | ops.Packed
    down_proj: nn.Parameter | ops.Packed

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.k = config.top_k_experts
        experts, hidden, width = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, width))
        self.gate_up_proj_adapters, self.down_proj_adapters = Adapters(), Adapters()

    @property
    def matrices(self) -> tuple[ops.Adapted, ops.Adapted]:
        gate_up = ops.Adapted(self.gate_up_proj, self.gate_up_proj_adapters.acting)
        return gate_up, ops.Adapted(self.down_proj, self.down_proj_adapters.acting)

    @property
    def wants(self) -> str | None:
        return ops.wanted(self.matrices) if ops.kernels_take(*self.matrices, self.k) else None

    @property
    def wait_for_memory(self) -> bool:
        """Rather than for arithmetic, as those of four bits do, which have to be widened."""
        return not isinstance(self.gate_up_proj, ops.Packed) or self.gate_up_proj.format == "fp8"

    def stay_on_device(self, dtype: torch.dtype) -> bool:
        return ops.stay_on_device(*self.matrices, self.k, dtype)

    def forward(
        self, x_TH: ops.Rows, index_TK: Tensor, weight_TK: Tensor, lengths: Sequence[int]
    ) -> Tensor | ops.Answers:
        return ops.experts(x_TH, index_TK, weight_TK, *self.matrices, lengths)
