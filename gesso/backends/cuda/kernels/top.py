"""The most probable tokens of each row, and the probability of one given token, from the logits that `vocab.py` stores.

T tokens, V vocabulary, P tiles of the vocabulary, K most probable tokens.

The logits need not be read again. `_logits` has stored the largest logit of each tile, and the K most probable tokens
are in the K tiles with the largest of them: every other tile has K tokens before its own best one. Of equal tiles and
tokens the lowest come first, in both orders.

At T = 256 and the 26B-A4B vocabulary this reads 256 (8 KB + 4 tiles) = 2.6 MB, which takes 0.6 us on an H200. A pass
over all logits would read 134 MB, in 32 us. The launch is the larger part.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.kernels.capped import LOWEST, distance_to_cap, first_of_largest, span_of
from gesso.backends.cuda.kernels.special import exp2, in_ptx
from gesso.diffusion.prediction import TOP

WARPS = 4


def likely_tokens(
    stored_TV: Tensor,
    temperature_T: Tensor,
    best_T: Tensor,
    confidence_T: Tensor,
    softcap: float,
    peak_TP: Tensor,
    vocabulary: int,
) -> tuple[Tensor, Tensor]:
    """Return the most probable tokens [T, K] in descending order, and their probabilities.

    `best_T` is the distance of each row's largest logit to the cap, `confidence_T` the probability of its token.
    """
    tokens, tiles = peak_TP.shape
    top_TK = stored_TV.new_empty(tokens, TOP, dtype=torch.int64)
    probability_TK = stored_TV.new_empty(tokens, TOP, dtype=torch.float32)
    _top[(tokens,)](
        *(stored_TV, temperature_T, best_T, confidence_T, softcap, peak_TP, top_TK, probability_TK),
        V=vocabulary,
        P=tiles,
        K=TOP,
        BLOCK_P=triton.next_power_of_2(tiles),
        BLOCK_V=stored_TV.shape[1] // tiles,
        PTX=in_ptx(stored_TV),
        num_warps=WARPS,
    )
    return top_TK, probability_TK


def probability_of(
    token_T: Tensor, stored_TV: Tensor, temperature_T: Tensor, best_T: Tensor, confidence_T: Tensor, softcap: float
) -> Tensor:
    """Return the probability of one token per row."""
    probability_T = torch.empty_like(confidence_T)
    _probability[(len(token_T),)](
        *(token_T.contiguous(), stored_TV, temperature_T, best_T, confidence_T, softcap, probability_T),
        WIDTH=stored_TV.shape[1],
        PTX=in_ptx(stored_TV),
        num_warps=1,
    )
    return probability_T


# --- kernels ---


@triton.jit(do_not_specialize_on_alignment=["temperature_T"])
def _top(
    stored_TV, temperature_T, best_T, confidence_T, softcap, peak_TP, top_TK, probability_TK,
    V: tl.constexpr, P: tl.constexpr, K: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_V: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Find the K most probable tokens of one row.

    Grid: (T,). stored is [T, P BLOCK_V], peak [T, P], top and probability are [T, K]. Latency-bound.
    """
    row = tl.program_id(0)
    tile_P, rank_K = tl.arange(0, BLOCK_P), tl.arange(0, K)
    peak_P = tl.load(peak_TP + row.to(tl.int64) * P + tile_P, mask=tile_P < P, other=LOWEST)
    height_P = tl.where(tile_P < P, -distance_to_cap(peak_P, softcap, PTX), LOWEST)
    tile_K = tl.zeros((K,), tl.int32)
    for k in tl.static_range(K):
        # With fewer than K tiles, the first one is found again. That is harmless: a token is removed wherever it is.
        tile = first_of_largest(height_P, tile_P, P)
        tile_K = tl.where(rank_K == k, tile, tile_K)
        height_P = tl.where(tile_P == tile, LOWEST, height_P)

    token_KV = tile_K[:, None] * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]
    stored_KV = tl.load(stored_TV + row.to(tl.int64) * (P * BLOCK_V) + token_KV)
    height_KV = tl.where(token_KV < V, -distance_to_cap(stored_KV, softcap, PTX), LOWEST)
    token_N, height_N = tl.ravel(token_KV), tl.ravel(height_KV)
    span = span_of(softcap, tl.load(temperature_T + row))
    best, confidence = tl.load(best_T + row), tl.load(confidence_T + row)
    for k in tl.static_range(K):
        height = tl.max(height_N, 0)
        token = first_of_largest(height_N, token_N, V)
        tl.store(top_TK + row * K + k, token.to(tl.int64))
        tl.store(probability_TK + row * K + k, exp2(span * (best + height), PTX) * confidence)
        height_N = tl.where(token_N == token, LOWEST, height_N)


@triton.jit(do_not_specialize_on_alignment=["token_T", "temperature_T"])
def _probability(
    token_T, stored_TV, temperature_T, best_T, confidence_T, softcap, probability_T,
    WIDTH: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Compute the probability of one token of one row. Grid: (T,). stored is [T, WIDTH]. Latency-bound."""
    row = tl.program_id(0)
    stored = tl.load(stored_TV + row.to(tl.int64) * WIDTH + tl.load(token_T + row))
    span = span_of(softcap, tl.load(temperature_T + row))
    below = span * (tl.load(best_T + row) - distance_to_cap(stored, softcap, PTX))
    tl.store(probability_T + row, exp2(below, PTX) * tl.load(confidence_T + row))
