"""Attention of one segment or canvas to the KV cache and to itself.

T tokens, S tokens of one segment or canvas, L keys that they attend to, N query heads, M key/value heads, D head dim.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gesso.model.cache import LayerKV

# Queries [T, N, D], keys and values [T, M, D] to [T, N, D]. The caller decides which tokens attend to which.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class AttendWithCache(Protocol):
    """A function with the arguments and result of `attend_with_cache`, to call in its place."""

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
    """Return the attention [S, N, D] of a segment or a canvas to the text in its row of the cache, and to itself.

    The cached text ends before position `start`. Text is `causal`: each token attends to itself and the tokens before
    it, and the keys and values are appended to the cache. A `block` is an image in the text: its tokens also attend to
    later tokens of the image. A canvas is not causal, and the cache is only read.
    """
    past_k_LMD, past_v_LMD = cache.read(row, start)
    k_LMD = torch.cat([past_k_LMD, k_SMD])
    v_LMD = torch.cat([past_v_LMD, v_SMD])
    if not causal:
        # A canvas attends to all of itself and to all that the cache returns: in a sliding layer, the last window - 1
        # tokens for every position of the canvas, not a window that moves along it.
        return attend_to(q_SND, k_LMD, v_LMD)
    mask_SL = _causal_mask(len(q_SND), len(k_LMD), cache.window, q_SND.device)
    if block:
        mask_SL[:, len(past_k_LMD) :] = True
    cache.write(row, start, k_SMD, v_SMD)
    return attend_to(q_SND, k_LMD, v_LMD, mask_SL)


def attend_to(q_SND: Tensor, k_LMD: Tensor, v_LMD: Tensor, mask_SL: Tensor | None = None) -> Tensor:
    """Return the attention [S, N, D] of queries to keys where the mask is True, or everywhere without a mask.

    N / M = G queries share a key head. They become rows of one product, so that keys are never repeated in memory.
    """
    length, heads, dim = q_SND.shape
    groups = heads // k_LMD.shape[1]
    q = (
        q_SND.reshape(length, -1, groups, dim).permute(1, 2, 0, 3).reshape(1, -1, groups * length, dim)
    )  # [1, M, G*S, D]
    k = k_LMD.transpose(0, 1)[None]  # [1, M, L, D]
    v = v_LMD.transpose(0, 1)[None]
    mask = None if mask_SL is None else mask_SL.repeat(groups, 1)  # [G*S, L]
    # No division by sqrt(D): queries and keys are normed.
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    return out.reshape(-1, groups, length, dim).permute(2, 0, 1, 3).reshape(length, heads, dim)


def _causal_mask(length: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Return whether a query attends to a key [S, L]. The queries are the last S of the L tokens."""
    query_S1 = torch.arange(keys - length, keys, device=device)[:, None]
    key_1L = torch.arange(keys, device=device)[None, :]
    visible = key_1L <= query_S1
    return visible if window is None else visible & (key_1L > query_S1 - window)
