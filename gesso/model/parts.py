"""The small parts a layer is built of. T tokens of all segments, H hidden, I width or in, O out."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from gesso import ops
from gesso.adapters.lora import Adapters
from gesso.model.config import Config


class Linear(nn.Module):
    """A matrix whose rows do not feel what else is in the batch (see `ops/linear.py`)."""

    weight: nn.Parameter | ops.Packed

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.weight_adapters = Adapters()

    def forward(self, x_TI: Tensor, lengths: Sequence[int]) -> Tensor:
        return ops.linear(x_TI, self.matrix, lengths)

    def in_parts(self, x_TI: Tensor, lengths: Sequence[int]) -> Tensor | ops.Parts:
        """For whoever adds the last few sums."""
        return ops.linear_in_parts(x_TI, self.matrix, lengths)

    @property
    def matrix(self) -> ops.Adapted:
        return ops.Adapted(self.weight, self.weight_adapters.acting)


class Embedding(nn.Module):
    """A vector for each token of the vocabulary; as an input, the padding token learns nothing."""

    weight: nn.Parameter | ops.Packed

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.padding = config.pad_token_id
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))

    def forward(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """`dtype` is what a packed table is unpacked to."""
        return ops.embed(ids, self.weight, dtype, self.padding)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def then(self, wants: str | None) -> ops.Then:
        """For an operation that takes this norm along."""
        return ops.Then(self.weight, wants)

    def before(self, part: "TakesRows", x_TH: Tensor) -> ops.Rows:
        """The norm in the form that this part wants."""
        return ops.norm_for(x_TH, self.weight, self.eps, part.wants)


class TakesRows(Protocol):
    @property
    def wants(self) -> str | None:
        """The format for which it wants its tokens prepared, on a GPU."""
        ...


class GatedMLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    @property
    def wants(self) -> str | None:
        return ops.wanted([self.gate_proj.matrix, self.up_proj.matrix])

    def forward(self, x_TH: ops.Rows, lengths: Sequence[int]) -> Tensor:
        return self.down_proj(ops.gated(x_TH, self.gate_proj.matrix, self.up_proj.matrix, lengths), lengths)


class SelfConditioning(GatedMLP):
    """Adds what the previous step expected to see to what the canvas shows; zeros stand for no previous step."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.eps = config.rms_norm_eps
        self.pre_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def condition(self, embedded_TH: Tensor, soft_TH: Tensor, lengths: Sequence[int]) -> Tensor:
        signal_TH = self(self.pre_norm.before(self, soft_TH), lengths)
        return ops.rms_norm(embedded_TH + signal_TH, None, self.eps)
