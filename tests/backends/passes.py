"""Passes through a backend, for tests that compare backends."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gesso.backends.base import Backend, Piece
from gesso.backends.cuda import CudaBackend, CudaPasses
from gesso.backends.torch import TorchBackend
from gesso.diffusion.noise import HashSource
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


class PlainPlan:
    def __init__(self, segments, cache):
        self.move(segments, cache)

    def move(self, segments, cache):
        self.segments, self.cache = segments, cache


class PlainPasses(CudaPasses):
    source = HashSource()
    can_pad = True
    run, logits, predict = TorchBackend.run, TorchBackend.logits, TorchBackend.predict

    def plan(self, segments, cache):
        return PlainPlan(segments, cache)

    def flow(self, plan, pieces):
        before = list(plan.cache.lengths)
        hidden = []
        for piece, segment in zip(pieces, plan.segments, strict=True):
            ids_S = piece.ids_S[: segment.length]  # without padding
            own_SH = self.model.run(ids_S, plan.cache, segment.row, causal=piece.causal, soft_SH=piece.soft_SH)
            hidden.append(F.pad(own_SH, (0, 0, 0, segment.size - segment.length), value=float("nan")))
        plan.cache.lengths[:] = before  # a captured pass counts tokens when it is replayed
        return hidden


class CapturesPlainly(CudaBackend):
    """The captured passes of the CUDA backend over plain operations: nothing is captured without a GPU.

    The tensors that keep their addresses, and all that is loaded into them and copied out, are the same.
    """

    passes = PlainPasses
    run, logits, predict = TorchBackend.run, TorchBackend.logits, TorchBackend.predict
