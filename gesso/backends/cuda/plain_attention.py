"""Attention of a pass in plain operations, in place of the kernels of `kernels/attention.py`.

Each segment is computed alone, and a long one in slices of queries, so that few scores exist at a time.

T tokens of all segments, S tokens of one segment, R queries of a slice, L keys, N query heads, M key/value heads, D
head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gesso.backends.cuda.kernels.attention import Attend
from gesso.backends.cuda.kernels.segments import Segment
from gesso.model.attention import attend_to
from gesso.model.cache import KVCache, LayerKV

SCORE_BYTES = 64 * 2**20  # of float32 scores at once


def plain_attends(cache: KVCache, segments: Sequence[Segment]) -> list[Attend]:
    """Return the attention of every layer, for segments without padding."""
    return [PlainAttention(layer, segments) for layer in cache.layers]


@dataclass(frozen=True)
class PlainAttention:
    """The attention of one layer."""

    cache: LayerKV
    segments: Sequence[Segment]

    def __call__(self, q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, *, low: bool = False) -> Tensor:
        sizes = [segment.size for segment in self.segments]
        tensors = (tensor.split(sizes) for tensor in (q_TND, k_TMD, v_TMD))
        return torch.cat([self._segment(*each) for each in zip(self.segments, *tensors, strict=True)])

    def _segment(self, segment: Segment, q_SND: Tensor, k_SMD: Tensor, v_SMD: Tensor) -> Tensor:
        past_k, past_v = self.cache.read(segment.row, segment.start)
        k_LMD, v_LMD = torch.cat([past_k, k_SMD]), torch.cat([past_v, v_SMD])
        if segment.causal:
            self.cache.write(segment.row, segment.start, k_SMD, v_SMD)
        rows = max(1, SCORE_BYTES // (4 * q_SND.shape[1] * len(k_LMD)))
        outputs = []
        for first in range(0, len(q_SND), rows):
            q_RND = q_SND[first : first + rows]
            mask_RL = self._mask(segment, len(past_k), first, len(q_RND)) if segment.causal else None
            outputs.append(attend_to(q_RND, k_LMD, v_LMD, mask_RL))
        return torch.cat(outputs)

    def _mask(self, segment: Segment, past: int, first: int, rows: int) -> Tensor:
        """Return the keys that each of `rows` queries of a text sees, from its query `first` on."""
        device = self.cache.k[segment.row].device
        query_R1 = past + first + torch.arange(rows, device=device)[:, None]
        key_1L = torch.arange(past + segment.length, device=device)[None, :]
        visible_RL = key_1L <= query_R1
        if self.cache.window is not None:
            visible_RL &= key_1L > query_R1 - self.cache.window
        if segment.block:
            visible_RL[:, past:] = True
        return visible_RL
