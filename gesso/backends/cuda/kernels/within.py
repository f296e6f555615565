"""Draw tokens within top_k, top_p and min_p. `gesso/diffusion/truncation.py` is the specification.

C positions of a canvas, V vocabulary.

A token is allowed if the tokens with a larger logit have less than the probability top_p, if they are fewer than top_k,
and if it is at least min_p times as probable as the most likely one. The first two rules hold from some logit on, so
each row has a least allowed one. A sort would find it, but takes longer than the rest of a step. Stored logits have 16
bits, and as integers in the order of the numbers at most 2^16 values: 16 bisections find the least, each with one sum
over the row.

At C = 256, V = 262144 a sum reads 134 MB (33 us on an H200), and takes three special functions per logit (58 us at 16
per clock on each of 132 SMs). 16 sums, the largest logit before them and the draw after them take about 1 ms.

Rows do not depend on each other, to the last bit: each has a program of its own, and adds in a fixed order.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.kernels.capped import LOWEST, distance_to_cap, first_of_largest, span_of
from gesso.backends.cuda.kernels.hash import negative_gumbel
from gesso.backends.cuda.kernels.special import exp2, in_ptx
from gesso.settings import Diffusion

BLOCK = 4096  # logits that a program reads at once
WARPS = 8
BELOW_ALL = tl.constexpr(-(2**15) - 1)  # below the integer of any logit


def draw_within(settings: Diffusion, product_CV: Tensor, softcap: float, temperature: float, key_C2: Tensor) -> Tensor:
    """Return one token per position, drawn from those that the settings allow.

    `product_CV` has the logits before the softcap, in a type of 16 bits.
    """
    token_C = torch.empty(len(product_CV), dtype=torch.int64, device=product_CV.device)
    _draw[(len(product_CV),)](
        *(product_CV, key_C2.contiguous(), token_C, softcap, temperature),
        settings.top_p if settings.top_p < 1 else math.inf,
        settings.top_k or product_CV.shape[1] + 1,
        math.log2(settings.min_p) if settings.min_p else -math.inf,
        V=product_CV.shape[1],
        STRIDE=product_CV.stride(0),
        BLOCK=BLOCK,
        PTX=in_ptx(product_CV),
        num_warps=WARPS,
    )
    return token_C


# --- kernel ---


@triton.jit
def _ordered(stored, inside):
    """Return the bits of 16-bit floats as integers in the order of the numbers."""
    bits = stored.to(tl.int16, bitcast=True).to(tl.int32)
    return tl.where(inside, bits ^ ((bits >> 15) & 0x7FFF), BELOW_ALL)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["product_CV", "key_C2"])
def _draw(
    product_CV, key_C2, token_C, softcap, temperature, share, count, least_below,
    V: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Draw a token of one row.

    Grid: (C,). product is [C, V] with rows STRIDE apart, key [C, 2], token [C]. share is top_p, count is top_k, and
    least_below is log2 of min_p; values that switch a rule off need no branch. Bound by the special function unit.
    """
    row = tl.program_id(0)
    own = product_CV + row.to(tl.int64) * STRIDE
    lane, span = tl.arange(0, BLOCK), span_of(softcap, temperature)

    lowest, highest = tl.full((BLOCK,), 2**15, tl.int32), tl.full((BLOCK,), BELOW_ALL, tl.int32)
    peak = tl.full((BLOCK,), LOWEST, tl.float32)
    for first in range(0, V, BLOCK):
        inside = first + lane < V
        stored = tl.load(own + first + lane, mask=inside, other=0.0)
        code = _ordered(stored, inside)
        highest, lowest = tl.maximum(highest, code), tl.minimum(lowest, tl.where(inside, code, 2**15))
        peak = tl.where(inside, tl.maximum(peak, stored.to(tl.float32)), peak)
    top = distance_to_cap(tl.max(peak, 0), softcap, PTX)

    # All tokens from `high` on are allowed, and those up to `low` are not. The first sum is that of all tokens.
    high, low = tl.max(highest, 0), tl.min(lowest, 0) - 1
    middle, total = low, tl.full([], 0.0, tl.float32)
    while middle < high:
        mass, number = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.int32)
        for first in range(0, V, BLOCK):
            inside = first + lane < V
            stored = tl.load(own + first + lane, mask=inside, other=0.0)
            above = _ordered(stored, inside) > middle
            below = span * (top - distance_to_cap(stored, softcap, PTX))
            mass += tl.where(above, exp2(below, PTX), 0.0)
            number += above.to(tl.int32)
        found, others = tl.sum(mass, 0), tl.sum(number, 0)
        total = tl.where(total == 0.0, found, total)
        is_allowed = (found < share * total) & (others < count) & (middle > low)
        high = tl.where(is_allowed, middle, high)
        low = tl.where(is_allowed, low, middle)
        middle = tl.where(high - low > 1, (low + high) >> 1, high)

    best, winner = tl.full((BLOCK,), LOWEST, tl.float32), tl.zeros((BLOCK,), tl.int32)
    key_0, key_1 = tl.load(key_C2 + row * 2), tl.load(key_C2 + row * 2 + 1)
    for first in range(0, V, BLOCK):
        token = first + lane
        stored = tl.load(own + token, mask=token < V, other=0.0)
        below = span * (top - distance_to_cap(stored, softcap, PTX))
        noisy = below - negative_gumbel(key_0, key_1, token, PTX)
        is_allowed = (_ordered(stored, token < V) >= high) & (below >= least_below)
        is_better = is_allowed & (noisy > best)
        best, winner = tl.where(is_better, noisy, best), tl.where(is_better, token, winner)
    tl.store(token_C + row, first_of_largest(best, winner, V).to(tl.int64))
