"""The prediction of a denoising step: everything that the diffusion process reads of the network's output.

C positions of one canvas, or of several concatenated; H hidden, V vocabulary, K most probable tokens, R rows, W tokens
of a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

BLOCK = 64
LIKELY = 16  # tokens per position in `Prediction.likely_CK`


def argmax(values_RV: Tensor) -> Tensor:
    """Return `values_RV.argmax(-1)`: among equals, the first.

    On a CPU, torch finds maxima with vector instructions, but not their places. So find the first block of tokens that
    holds the maximum, and search that one only.
    """
    if not values_RV.is_cpu or values_RV.shape[-1] % BLOCK:
        return values_RV.argmax(-1)
    blocks_RBW = values_RV.unflatten(-1, (-1, BLOCK))
    block_R1 = blocks_RBW.amax(-1).argmax(-1, keepdim=True)
    block_RW = blocks_RBW.take_along_dim(block_R1[..., None], -2).squeeze(-2)
    return block_R1.squeeze(-1) * BLOCK + block_RW.argmax(-1)


def top_tokens(values_RV: Tensor, count: int) -> Tensor:
    """Return the tokens [R, K] of the largest values, in descending order; among equals, the lowest tokens.

    `torch.topk` would return equals in any order, and which of them it returns may depend on the number of rows.

    The first K tokens are in the K blocks with the largest maxima: every other block has K tokens before its own first.
    """
    count = min(count, values_RV.shape[-1])
    if values_RV.shape[-1] % BLOCK or values_RV.shape[-1] <= count * BLOCK:
        return _largest(values_RV, count)
    blocks_RBW = values_RV.unflatten(-1, (-1, BLOCK))
    block_RK = _largest(blocks_RBW.amax(-1), count).sort(-1).values  # in order of tokens
    chosen_RN = blocks_RBW.take_along_dim(block_RK[..., None], -2).flatten(-2)
    place_RK = _largest(chosen_RN, count)
    return block_RK.take_along_dim(place_RK // BLOCK, -1) * BLOCK + place_RK % BLOCK


def _largest(values_RV: Tensor, count: int) -> Tensor:
    """Return the places [R, K] of the largest values, in descending order; among equals, the first."""
    left_RV = values_RV.clone()
    places: list[Tensor] = []  # K of [R]
    for _ in range(count):
        place_R = argmax(left_RV)
        left_RV.scatter_(-1, place_R[:, None], -torch.inf)
        places.append(place_R)
    return torch.stack(places, -1)


@dataclass(frozen=True)
class Prediction:
    """Statistics of each position's distribution at the temperature of the step. Pinned positions are certain."""

    candidate_C: Tensor  # a draw from the distribution
    argmax_C: Tensor
    confidence_C: Tensor  # probability of the argmax
    entropy_C: Tensor  # in nats
    soft_CH: Tensor | None = None  # expected embedding: the self-conditioning of the next step
    logits_CV: Tensor | None = None  # only if the sampler or the stopping rule needs "logits"; not kept in the history
    # Only for a constraint, and not kept in the history of a canvas.
    likely_CK: Tensor | None = None  # the most probable tokens, in descending order
    likely_logit_CK: Tensor | None = None  # their logits after the softcap, before the temperature
    corrected: bool = False  # whether a constraint replaced the model's tokens
    remaining: int | None = None  # steps left, including the one of this prediction

    def split(self, lengths: Sequence[int]) -> "list[Prediction]":
        """Return the predictions of canvases of these lengths."""
        parts = {name: tensor.split(list(lengths)) for name, tensor in self.tensors().items()}
        return [Prediction(**{name: part[i] for name, part in parts.items()}) for i in range(len(lengths))]

    def clone(self) -> "Prediction":
        return Prediction(**{name: tensor.clone() for name, tensor in self.tensors().items()})

    @staticmethod
    def cat(predictions: "Sequence[Prediction]") -> "Prediction":
        """Return the predictions of several canvases as one."""
        parts: list[dict[str, Any]] = [prediction.tensors() for prediction in predictions]
        joined: dict[str, Any] = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return Prediction(**joined)

    def tensors(self) -> dict[str, Any]:
        """Return the fields that are tensors."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if isinstance(value, Tensor)}
