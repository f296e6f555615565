"""The default source of random numbers, with hashes computed by one kernel. Nothing is read on the host."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gesso.backends.cuda.kernels import hash as kernels
from gesso.diffusion.noise import HashDraws, HashSource


@dataclass(frozen=True)
class KernelDraws(HashDraws):
    """The numbers of `HashDraws` for several canvases, to the bit; seed, canvas and step are tensors [B]."""

    seed: Tensor
    canvas: Tensor
    step: Tensor

    def tokens(self, length: int, vocab_size: int) -> Tensor:
        return kernels.position_tokens(self.seed, self.canvas, self.step, 0, length, vocab_size)

    def _keys(self, stream: int, length: int) -> Tensor:
        return kernels.position_keys(self.seed, self.canvas, self.step, stream, length)


class KernelSource(HashSource):
    def at(self, seed: int | Tensor, canvas: int | Tensor, step: int | Tensor, device: torch.device) -> HashDraws:
        assert isinstance(seed, Tensor) and isinstance(canvas, Tensor) and isinstance(step, Tensor)
        return KernelDraws(seed, canvas, step, device)
