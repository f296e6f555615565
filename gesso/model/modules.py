"""The small modules a layer is built of. T tokens, H hidden, I inputs, O outputs.

Weights are used through torch functions only (`F.linear`, `F.embedding`), so that a quantized weight can take the place
of a parameter: it implements those functions (`checkpoint/quantize/packed.py`).
"""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso.model.config import Config

GELU_SLOPE, GELU_CUBE = math.sqrt(2 / math.pi), 0.044715  # gelu(x) = x (1 + tanh(SLOPE (x + CUBE x^3))) / 2


class Linear(nn.Module):
    """A linear map without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x_TI: Tensor) -> Tensor:
        return F.linear(x_TI, self.weight)


class Embedding(nn.Module):
    """One vector per token of the vocabulary; the padding token receives no gradient as an input."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.padding = config.pad_token_id
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight, self.padding)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Divide by the root mean square over the last dimension, in float32 whatever the working dtype."""
    if x.is_cpu:  # F.rms_norm would run twice as many operations
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        normed = wide * torch.addcmul(_constant(eps), length, length, value=1 / x.shape[-1]).rsqrt()
        return (normed if weight is None else normed * weight.float()).to(x.dtype)
    if weight is None or weight.dtype == x.dtype:
        return F.rms_norm(x, x.shape[-1:], weight, eps).to(x.dtype)  # autocast would return float32
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)


@lru_cache
def _constant(value: float) -> Tensor:
    """Return a tensor []. An operation on the CPU that is given a number makes one each time."""
    return torch.tensor(value, device="cpu")


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """Return `up`, gated by the tanh form of GELU of `gate`."""
    if not gate.is_cpu or torch.is_grad_enabled():
        return F.gelu(gate, approximate="tanh") * up
    # On a CPU, F.gelu takes twice as long as these operations in place.
    y = gate.square().mul_(GELU_SLOPE * GELU_CUBE).add_(GELU_SLOPE).mul_(gate).tanh_()
    half = (gate * up).mul_(0.5)
    return half.addcmul_(half, y)


class GatedMLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_TH: Tensor) -> Tensor:
        return self.down_proj(gated_gelu(self.gate_proj(x_TH), self.up_proj(x_TH)))


class SelfConditioning(GatedMLP):
    """Adds the expected embeddings of the previous prediction to those of the canvas; zeros on the first step."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pre_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def condition(self, embedded_TH: Tensor, soft_TH: Tensor) -> Tensor:
        return rms_norm(embedded_TH + self(self.pre_norm(soft_TH)), None, self.pre_norm.eps)
