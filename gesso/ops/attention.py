"""Attention of several segments, each over its own row of the cache and over itself.

T tokens of all segments, S tokens of one segment, L keys it sees, N query heads, M key/value heads, G = N/M queries a
key head, D head dim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gesso.ops import fast

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # queries [T, N, D], keys and values [T, M, D] to [T, N, D]


@dataclass(frozen=True)
class Segment:
    """A run of tokens of one cache row: text for the causal encoder, which is appended, or a canvas, which is not."""

    row: int
    start: int  # position of the first token: how many tokens of the row stand before it
    length: int
    causal: bool


class LayerCache(Protocol):
    """The committed keys and values of one layer, as far as attention needs to know them."""

    window: int | None
    k: list[Tensor]  # by row, [L, M, D]

    def read(self, row: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [L, M, D] in order: all `length` tokens, or the last window - 1 of them."""
        ...

    def write(self, row: int, start: int, k_SMD: Tensor, v_SMD: Tensor) -> None: ...


def attends(caches: Sequence[LayerCache], segments: Sequence[Segment]) -> list[Attend]:
    """The attention of every layer, over its own cache."""
    if fast.kernels(caches[0].k[segments[0].row]):
        found: list[Attend] = fast.load("attention").attends(caches, segments)
        return found
    return [partial(attention, cache=cache, segments=segments) for cache in caches]


def move(attends: list[Attend], caches: Sequence[LayerCache], segments: Sequence[Segment], same_rows: bool) -> None:
    """Have them attend elsewhere. As kernels they keep their tensors, for a captured graph has those built in; the
    addresses of rows in the cache are left alone if they are the same."""
    if isinstance(attends[0], partial) and "table" in attends[0].keywords:
        fast.load("segments").move(attends, caches, segments, same_rows)
    else:
        attends[:] = [partial(attention, cache=cache, segments=segments) for cache in caches]


def attention(
    q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, cache: LayerCache, segments: Sequence[Segment]
) -> Tensor:  # [T, N, D]
    lengths = [segment.length for segment in segments]
    outputs = []
    for segment, q_SND, k_SMD, v_SMD in zip(
        segments, q_TND.split(lengths), k_TMD.split(lengths), v_TMD.split(lengths), strict=True
    ):
        past_k, past_v = cache.read(segment.row, segment.start)
        k_LMD, v_LMD = torch.cat([past_k, k_SMD]), torch.cat([past_v, v_SMD])
        mask_SL = None
        if segment.causal:
            mask_SL = _causal_mask(segment.length, k_LMD.shape[0], cache.window, q_TND.device)
            cache.write(segment.row, segment.start, k_SMD, v_SMD)
        # A canvas sees all of itself and all the cache shows: in a sliding layer the same last window - 1 tokens for
        # every position of the canvas, not a window that moves along it.
        outputs.append(_attend(q_SND, k_LMD, v_LMD, mask_SL))
    return torch.cat(outputs)


def _attend(q_SND: Tensor, k_LMD: Tensor, v_LMD: Tensor, mask_SL: Tensor | None) -> Tensor:
    length, heads, dim = q_SND.shape
    groups = heads // k_LMD.shape[1]
    # The queries that share a key head become rows of one product, so that keys are never repeated in memory.
    q = q_SND.reshape(length, -1, groups, dim).permute(1, 2, 0, 3).reshape(1, -1, groups * length, dim)
    mask = None if mask_SL is None else mask_SL.repeat(groups, 1)
    k, v = k_LMD.transpose(0, 1)[None], v_LMD.transpose(0, 1)[None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    return out.reshape(-1, groups, length, dim).permute(2, 0, 1, 3).reshape(length, heads, dim)


def _causal_mask(length: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    query_S1 = torch.arange(keys - length, keys, device=device)[:, None]
    key_1L = torch.arange(keys, device=device)[None, :]
    visible = key_1L <= query_S1
    return visible if window is None else visible & (key_1L > query_S1 - window)
