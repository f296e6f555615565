"""The vocabulary-sized end of a step: from hidden states to what the process needs to know of each position.

T tokens of all segments, R rows of a chunk, V vocabulary, H hidden. Only [R, V] logits exist at any time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gesso.ops import fast, hash
from gesso.ops.linear import linear
from gesso.ops.weight import Adapted, Packed, Weight, multiply

CHUNK_BYTES = 64 * 2**20  # of float32 logits held at once
TABLE_ROWS = 32768  # of a packed table unpacked at once


@dataclass(frozen=True)
class Reading:
    """What one prediction says about each position, at the step's temperature."""

    candidate_T: Tensor  # a draw from the distribution
    argmax_T: Tensor
    confidence_T: Tensor  # probability of the argmax
    entropy_T: Tensor  # in nats
    soft_TH: Tensor  # expected embedding, the next step's self-conditioning

    def split(self, lengths: Sequence[int]) -> "list[Reading]":
        columns = (getattr(self, name).split(list(lengths)) for name in Reading.__annotations__)
        return [Reading(*parts) for parts in zip(*columns, strict=True)]

    def clone(self) -> "Reading":
        return Reading(*(getattr(self, name).clone() for name in Reading.__annotations__))

    @staticmethod
    def cat(readings: "Sequence[Reading]") -> "Reading":
        return Reading(*(torch.cat([getattr(r, name) for r in readings]) for name in Reading.__annotations__))


def softcapped_logits(hidden_TH: Tensor, head_VH: Weight, softcap: float) -> Tensor:
    logits_TV = _product(hidden_TH, head_VH).float()
    return softcap * torch.tanh(logits_TV / softcap)


def _product(hidden_TH: Tensor, head_VH: Weight) -> Tensor:
    if not isinstance(head_VH, Packed) or (fast.kernels(hidden_TH) and fast.rows_fit(hidden_TH)):
        return linear(hidden_TH, Adapted(head_VH), [len(hidden_TH)])
    return torch.cat([multiply(hidden_TH, part) for part in head_VH.split(TABLE_ROWS)], -1)


def soft_embedding(logits_TV: Tensor, embedding_VH: Weight, scale: float, dtype: torch.dtype) -> Tensor:
    """The embedding of a distribution: its mean, at the scale of embedded tokens."""
    probability_TV = logits_TV.softmax(-1, dtype=torch.float32)
    if not isinstance(embedding_VH, Packed):
        return probability_TV.to(dtype) @ embedding_VH * scale
    parts = zip(probability_TV.to(dtype).split(TABLE_ROWS, -1), embedding_VH.split(TABLE_ROWS), strict=True)
    sums = torch.stack([(p_TV @ part.dense(dtype)).float() for p_TV, part in parts])
    return sums.sum(0).to(dtype) * scale


def draw(logits_TV: Tensor, key_T2: Tensor) -> Tensor:
    """One token a position by the Gumbel-max trick: a pure function of the logits and the keys."""
    return (logits_TV + hash.gumbel(hash.token_hash(key_T2, logits_TV.shape[-1]))).argmax(-1)


def read(
    logits_TV: Tensor,
    candidate_T: Tensor,
    embedding_VH: Weight,
    embed_scale: float,
    dtype: torch.dtype,
    soft: bool = True,
) -> Reading:
    """`logits_TV` are those of the step: softcapped and divided by the temperature. `dtype`: of the embeddings."""
    log_probability_TV = logits_TV.log_softmax(-1)
    top_T, argmax_T = log_probability_TV.max(-1)
    return Reading(
        candidate_T=candidate_T,
        argmax_T=argmax_T,
        confidence_T=top_T.exp(),
        entropy_T=-(log_probability_TV.exp() * log_probability_TV).sum(-1),
        soft_TH=soft_embedding(logits_TV, embedding_VH, embed_scale, dtype)
        if soft
        else logits_TV.new_zeros(len(logits_TV), embedding_VH.shape[1], dtype=dtype),
    )


def vocab_tail(
    hidden_TH: Tensor,
    head_VH: Weight,
    embedding_VH: Weight,
    embed_scale: float,
    softcap: float,
    temperature_T: Tensor,
    key_T2: Tensor,
    lengths: Sequence[int],
    soft: bool = True,
) -> Reading:
    """lm_head, softcap, temperature, draw, argmax, entropy and soft embedding of tokens in segments.

    Without `soft` the embeddings are zeros: nothing is conditioned on them when a text is written token by token.
    """
    # The tiles of float32 do not fit the chip.
    if fast.kernels(hidden_TH) and fast.rows_fit(hidden_TH) and hidden_TH.dtype != torch.float32:
        found: Reading = fast.load("vocab").vocab_tail(
            hidden_TH, head_VH, embedding_VH, embed_scale, softcap, temperature_T, key_T2, soft
        )
        return found
    rows = max(1, CHUNK_BYTES // (4 * head_VH.shape[0]))
    readings = []
    given = (hidden_TH, temperature_T, key_T2)
    for segment in zip(*(tensor.split(list(lengths)) for tensor in given), strict=True):
        for hidden_RH, temperature_R, key_R2 in zip(*(tensor.split(rows) for tensor in segment), strict=True):
            logits_RV = softcapped_logits(hidden_RH, head_VH, softcap) / temperature_R[:, None]
            candidate_R = draw(logits_RV, key_R2)
            readings.append(read(logits_RV, candidate_R, embedding_VH, embed_scale, hidden_TH.dtype, soft))
    return Reading.cat(readings)
