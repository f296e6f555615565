"""Sources of a canvas' random numbers: the default hashes, or a custom source.

B canvases, C positions of a canvas, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gesso.diffusion import hash


class Draws(Protocol):
    """The random numbers of one step of one canvas."""

    def tokens(self, length: int, vocab_size: int) -> Tensor:
        """Return uniformly distributed tokens [C]: the noise of the process."""
        ...

    def uniform(self, length: int) -> Tensor:
        """Return numbers [C] between 0 and 1."""
        ...

    def keys(self, length: int) -> Tensor | None:
        """Return hash keys [C, 2] for drawing the candidates with `hash.draw`; None: `candidates` draws them."""
        ...

    def candidates(self, logits_CV: Tensor) -> Tensor:
        """Return one token [C] drawn from each position's distribution."""
        ...


class NoiseSource(Protocol):
    """A source of random numbers. Pass your own to the engine as `source`."""

    def at(self, seed: Any, canvas: Any, step: Any, device: torch.device) -> Draws:
        """Return the draws of a step. The arguments are integers."""
        ...


@dataclass(frozen=True)
class HashDraws:
    """The draws of the default source."""

    seed: int
    canvas: int | Tensor  # of several canvases [B], whose draws are then [B, C]
    step: int
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
    """The default source: every draw is a function of seed, canvas, step, position and token alone."""

    def at(self, seed: int, canvas: int | Tensor, step: int, device: torch.device) -> HashDraws:
        return HashDraws(seed, canvas, step, device)


@dataclass(frozen=True)
class TokenDraws:
    """The draws of tokens that are written one by one, each a canvas of its own, by their numbers in the text."""

    source: NoiseSource
    seed: int
    numbers: Sequence[int]
    device: torch.device

    @staticmethod
    def of_verified(source: NoiseSource, seed: int, first: int, length: int, device: torch.device) -> "TokenDraws":
        """Return the draws of verified decoding: for the drafts of the canvas, and then for the text to verify.

        A token and its draft have the same number, and so the same random numbers. The first position of the canvas is
        the known token before number `first`, whose draw is not used.
        """
        drafted = [first, *range(first, first + length - 1)]
        return TokenDraws(source, seed, [*drafted, *range(first, first + length)], device)

    def tokens(self, length: int, vocab_size: int) -> Tensor:
        return self._of_each(lambda draws: draws.tokens(1, vocab_size))

    def uniform(self, length: int) -> Tensor:
        return self._of_each(lambda draws: draws.uniform(1))

    def keys(self, length: int) -> Tensor | None:
        return self._hashed(lambda draws: draws.keys(1)) if isinstance(self.source, HashSource) else None

    def candidates(self, logits_CV: Tensor) -> Tensor:
        if (keys_C2 := self.keys(len(logits_CV))) is not None:
            return hash.draw(logits_CV, keys_C2)
        pairs = zip(self.numbers, logits_CV.split(1), strict=True)
        return torch.cat([self._at(number).candidates(logits_1V) for number, logits_1V in pairs])

    def _of_each(self, draw: Callable[[Draws], Tensor]) -> Tensor:
        if isinstance(self.source, HashSource):
            return self._hashed(draw)
        return torch.cat([draw(self._at(number)) for number in self.numbers])

    def _at(self, number: int) -> Draws:
        return self.source.at(self.seed, number, 1, self.device)

    def _hashed(self, draw: Callable[[HashDraws], Tensor]) -> Tensor:
        # All tokens at once, and on the host: on a GPU, this would take a hundred launches.
        draws = HashDraws(self.seed, torch.tensor(self.numbers), 1, torch.device("cpu"))
        return hash.send(draw(draws)[:, 0], self.device)
