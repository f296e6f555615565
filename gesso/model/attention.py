"""Attention of one layer.

T tokens, S tokens of one segment, L keys it sees, H hidden, N query heads, M key/value heads, G = N/M queries per key
head, D head dim.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso.model.cache import LayerKV
from gesso.model.config import Config, LayerShape
from gesso.model.modules import Linear, RMSNorm, rms_norm
from gesso.model.rope import Rotation, rotate

# Queries [T, N, D], keys and values [T, M, D] to [T, N, D]. The caller decides which tokens see which.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class AttendWithCache(Protocol):
    """A function like `attend_with_cache`, to call in its place."""

    def __call__(
        self,
        q_SND: Tensor,
        k_SMD: Tensor,
        v_SMD: Tensor,
        cache: LayerKV,
        row: int,
        start: int,
        causal: bool,
        block: bool = False,
    ) -> Tensor: ...


class Attention(nn.Module):
    def __init__(self, config: Config, shape: LayerShape) -> None:
        super().__init__()
        self.dim, self.eps = shape.head_dim, config.rms_norm_eps
        hidden, queries, keys = config.hidden_size, config.num_attention_heads * self.dim, shape.kv_heads * self.dim
        self.q_proj = Linear(hidden, queries)
        self.k_proj = Linear(hidden, keys)
        self.v_proj = Linear(hidden, keys) if shape.sliding else None
        self.o_proj = Linear(queries, hidden)
        self.q_norm = RMSNorm(self.dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.dim, config.rms_norm_eps)

    def forward(self, x_TH: Tensor, attend: Attend, rotation: Rotation) -> Tensor:
        q_TND, k_TMD = (project(x_TH).unflatten(-1, (-1, self.dim)) for project in (self.q_proj, self.k_proj))
        # In a global layer key and value are one projection; only norm and rotation differ.
        v_TMD = self.v_proj(x_TH).unflatten(-1, (-1, self.dim)) if self.v_proj else k_TMD
        out_TND = attend(
            rotate(self.q_norm(q_TND), *rotation),
            rotate(self.k_norm(k_TMD), *rotation),
            rms_norm(v_TMD, None, self.eps),
        )
        return self.o_proj(out_TND.flatten(1))


def attend_with_cache(
    q_SND: Tensor,
    k_SMD: Tensor,
    v_SMD: Tensor,
    cache: LayerKV,
    row: int,
    start: int,
    causal: bool,
    block: bool = False,
) -> Tensor:
    """Attend from one segment to its row of the cache and to itself; append the keys and values of causal text.

    A `block` is causal text of which each token also sees the later ones: an image.
    """
    past_k, past_v = cache.read(row, start)
    k_LMD, v_LMD = torch.cat([past_k, k_SMD]), torch.cat([past_v, v_SMD])
    mask_SL = None
    if causal:
        mask_SL = _causal_mask(len(q_SND), len(k_LMD), cache.window, q_SND.device)
        if block:
            mask_SL[:, len(past_k) :] = True
        cache.write(row, start, k_SMD, v_SMD)
    # A canvas sees all of itself and all that the cache returns: in a sliding layer, the last window - 1 tokens for
    # every position of the canvas, not a window that moves along it.
    return attend_to(q_SND, k_LMD, v_LMD, mask_SL)


def attend_to(q_SND: Tensor, k_LMD: Tensor, v_LMD: Tensor, mask_SL: Tensor | None = None) -> Tensor:
    """Return the attention of queries to keys, where the mask allows it."""
    length, heads, dim = q_SND.shape
    groups = heads // k_LMD.shape[1]
    # The queries that share a key head become rows of one product, so that keys are never repeated in memory.
    q = q_SND.reshape(length, -1, groups, dim).permute(1, 2, 0, 3).reshape(1, -1, groups * length, dim)
    mask = None if mask_SL is None else mask_SL.repeat(groups, 1)
    k, v = k_LMD.transpose(0, 1)[None], v_LMD.transpose(0, 1)[None]
    # No division by sqrt(D): queries and keys are normed.
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    return out.reshape(-1, groups, length, dim).permute(2, 0, 1, 3).reshape(length, heads, dim)


def _causal_mask(length: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    query_S1 = torch.arange(keys - length, keys, device=device)[:, None]
    key_1L = torch.arange(keys, device=device)[None, :]
    visible = key_1L <= query_S1
    return visible if window is None else visible & (key_1L > query_S1 - window)
