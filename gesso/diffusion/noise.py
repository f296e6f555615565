"""Where the random numbers of a canvas come from: a hash of where they are used, or a source of your own.

C positions of a canvas, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gesso.diffusion import hash


class Draws(Protocol):
    """The random numbers of one step of one canvas."""

    def tokens(self, length: int, vocab_size: int) -> Tensor:
        """Uniform tokens [C]: the noise of the process."""
        ...

    def uniform(self, length: int) -> Tensor:
        """Numbers [C] between 0 and 1."""
        ...

    def keys(self, length: int) -> Tensor | None:
        """Hash keys [C, 2] from which the vocabulary op draws the candidates; None: call `candidates` instead."""
        ...

    def candidates(self, logits_CV: Tensor) -> Tensor:
        """One token [C] from each position's distribution."""
        ...


class Source(Protocol):
    def at(self, seed: Any, canvas: Any, step: Any, device: torch.device) -> Draws:
        """The draws of a step, by whole numbers; only the default source is ever asked for several canvases at once."""
        ...


@dataclass(frozen=True)
class HashDraws:
    seed: int | Tensor  # of one canvas, or of several [B], whose draws are then [B, C]
    canvas: int | Tensor
    step: int | Tensor
    device: torch.device

    def tokens(self, length: int, vocab_size: int) -> Tensor:
        return hash.position_tokens(self.seed, self.canvas, self.step, 0, length, vocab_size, self.device)

    def uniform(self, length: int) -> Tensor:
        return hash.uniform(self._keys(1, length)[..., 0])

    def keys(self, length: int) -> Tensor:
        return self._keys(2, length)

    def candidates(self, logits_CV: Tensor) -> Tensor:
        return hash.draw(logits_CV, self.keys(len(logits_CV)))

    def _keys(self, stream: int, length: int) -> Tensor:
        return hash.position_keys(self.seed, self.canvas, self.step, stream, length, self.device)


class HashSource:
    """The default: every draw is a function of seed, canvas, step, position and token, and of nothing else."""

    def at(self, seed: int | Tensor, canvas: int | Tensor, step: int | Tensor, device: torch.device) -> HashDraws:
        return HashDraws(seed, canvas, step, device)
