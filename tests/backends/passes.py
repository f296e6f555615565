"""Passes through a backend, for tests that compare backends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gesso.backends.base import Backend, Piece
from gesso.backends.cuda import CudaBackend, CudaPasses
from gesso.backends.cuda.pass_adapters import active
from gesso.backends.torch import TorchBackend
from gesso.model.cache import KVCache


@torch.no_grad()
def encode(backend: Backend, ids_BS: Tensor, cache: KVCache) -> Tensor:
    """Do the work of `DiffusionGemma.encode` with a backend."""
    return torch.stack(backend.run([Piece(row, ids_S, causal=True) for row, ids_S in enumerate(ids_BS)], cache))


@torch.no_grad()
def denoise(backend: Backend, canvas_BC: Tensor, cache: KVCache, previous_logits: Tensor | None = None) -> Tensor:
    """Do the work of `DiffusionGemma.denoise` with a backend."""
    soft: Sequence[Tensor | None] = [None] * len(canvas_BC)
    if previous_logits is not None:
        soft = [backend.model.soft_embedding(logits_CV) for logits_CV in previous_logits]
    pieces = [Piece(row, ids_C, False, soft[row]) for row, ids_C in enumerate(canvas_BC)]
    return torch.stack([backend.logits(hidden_CH) for hidden_CH in backend.run(pieces, cache)])


@dataclass
class Reading:
    """A request that reads one text, for a captured pass."""

    row: int
    text: tuple[int, ...]
    adapter: str | None = None
    denoising = None

    @property
    def texts(self):
        return (self.text,)

    @property
    def pieces(self):
        return [(len(self.text), "scored")]


class PlainPlan:
    def __init__(self, segments, cache):
        self.move(segments, cache)

    def move(self, segments, cache):
        self.segments, self.cache = segments, cache


class PlainPasses(CudaPasses):
    can_pack = True
    run, logits, predict = TorchBackend.run, TorchBackend.logits, TorchBackend.predict
    _hidden = TorchBackend._hidden

    def plan(self, segments, cache, lengths, longest=None):
        return PlainPlan(segments, cache)

    def flow(self, plan, pieces):
        """Run each segment; padding gets NaN, which must not be read."""
        before, names = list(plan.cache.lengths), {-1: None} | {slot: name for name, slot in self.bank.slots.items()}
        ids_T, size = torch.cat([piece.ids_S for piece in pieces]), self.model.config.hidden_size
        hidden_TH = ids_T.new_full((len(ids_T), size), math.nan, dtype=self.model.dtype)
        no_soft_SH = torch.zeros_like(hidden_TH)
        soft_TH = torch.cat([no_soft_SH[: len(p.ids_S)] if p.soft_SH is None else p.soft_SH for p in pieces])
        offset = 0
        for segment in plan.segments:
            part = slice(offset, offset + segment.length)
            if segment.length:
                ids_S, cache, row = ids_T[part], plan.cache, segment.row
                with active(self.model, names[segment.slot]):
                    if segment.causal:
                        hidden_TH[part] = self.model.encode_segment(ids_S, cache, row)
                    else:
                        hidden_TH[part] = self.model.denoise_canvas(ids_S, cache, row, soft_CH=soft_TH[part])
            offset += segment.size
        plan.cache.lengths[:] = before  # a captured pass counts tokens when it is replayed
        return list(hidden_TH.split([len(piece.ids_S) for piece in pieces]))


class CapturesPlainly(CudaBackend):
    """The captured passes of the CUDA backend over plain operations: nothing is captured without a GPU.

    The tensors that keep their addresses, and all that is loaded into them and copied out, are the same.
    """

    passes = PlainPasses
    run, logits, predict = TorchBackend.run, TorchBackend.logits, TorchBackend.predict
    _hidden = TorchBackend._hidden
