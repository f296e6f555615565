"""The most probable tokens of each row, from the logits that `vocab.py` stores.

T tokens, V vocabulary, P tiles of the vocabulary, K most probable tokens.

The logits need not be read again. `_logits` has stored the largest logit of each tile, and the K most probable tokens
are in the K tiles with the largest of them: every other tile has K tokens before its own best one. Of equal tiles and
tokens the lowest come first, in both orders.

At T = 256, K = 16 and the 26B-A4B vocabulary in bfloat16 this reads 256 (4 KB + 16 tiles of 512 bytes) = 3.1 MB, which
takes 0.7 us on an H200. A pass over all logits would read 134 MB, in 32 us. The launch, and 2K maxima one after the
other, are the larger part.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.kernels.capped import LOWEST, distance_to_cap, logit_at
from gesso.backends.cuda.kernels.special import in_ptx

WARPS = 4
FOUND = tl.constexpr(-(2**63) + 1)  # below the key of any value


class LikelyTokens(NamedTuple):
    """The most probable tokens of each row, in descending order."""

    token_TK: Tensor
    logit_TK: Tensor  # after the softcap, before the temperature


def most_likely(stored_TV: Tensor, softcap: float, peak_TP: Tensor, vocabulary: int, count: int) -> LikelyTokens:
    """Return the `count` most probable tokens of each row; `count` is a power of two, and not above the vocabulary."""
    tokens, tiles = peak_TP.shape
    token_TK = stored_TV.new_empty(tokens, count, dtype=torch.int64)
    logit_TK = stored_TV.new_empty(tokens, count, dtype=torch.float32)
    _top[(tokens,)](
        *(stored_TV, softcap, peak_TP, token_TK, logit_TK),
        V=vocabulary,
        P=tiles,
        K=count,
        BLOCK_P=triton.next_power_of_2(tiles),
        BLOCK_V=stored_TV.shape[1] // tiles,
        PTX=in_ptx(stored_TV),
        num_warps=WARPS,
    )
    return LikelyTokens(token_TK, logit_TK)


# --- kernels ---


@triton.jit
def _ordered(bits):
    """Map the bits of a float32 to an integer in the order of the numbers, or back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _key(height, index):
    """Return an integer by which higher values, and among equals lower indices, come first.

    Then one maximum finds a value and its index. No height is zero with a positive sign, so equal ones have equal bits.
    """
    ordered = _ordered(height.to(tl.int32, bitcast=True))
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def _index(key):
    return 0x7FFFFFFF - (key & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def _height(key):
    return _ordered((key >> 32).to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit
def _top(
    stored_TV, softcap, peak_TP, token_TK, logit_TK,
    V: tl.constexpr, P: tl.constexpr, K: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_V: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Find the K most probable tokens of one row.

    Grid: (T,). stored is [T, P BLOCK_V], peak [T, P]; token and logit are [T, K]. Latency-bound.
    """
    row = tl.program_id(0)
    tile_P, rank_K = tl.arange(0, BLOCK_P), tl.arange(0, K)
    peak_P = tl.load(peak_TP + row.to(tl.int64) * P + tile_P, mask=tile_P < P, other=LOWEST)
    height_P = tl.where(tile_P < P, -distance_to_cap(peak_P, softcap, PTX), LOWEST)
    key_P = _key(height_P, tile_P)
    tile_K = tl.zeros((K,), tl.int32)
    for k in tl.static_range(K):
        # With fewer than K tiles, the last one is found again. That is harmless: a token is removed wherever it is.
        key = tl.max(key_P, 0)
        tile_K = tl.where(rank_K == k, tl.minimum(_index(key), P - 1), tile_K)
        key_P = tl.where(key_P == key, FOUND, key_P)

    token_KV = tile_K[:, None] * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]
    stored_KV = tl.load(stored_TV + row.to(tl.int64) * (P * BLOCK_V) + token_KV)
    height_KV = tl.where(token_KV < V, -distance_to_cap(stored_KV, softcap, PTX), LOWEST)
    key_N = tl.ravel(_key(height_KV, token_KV))
    for k in tl.static_range(K):
        key = tl.max(key_N, 0)
        tl.store(token_TK + row * K + k, tl.minimum(_index(key), V - 1).to(tl.int64))
        tl.store(logit_TK + row * K + k, logit_at(-_height(key), softcap))
        key_N = tl.where(key_N == key, FOUND, key_N)
