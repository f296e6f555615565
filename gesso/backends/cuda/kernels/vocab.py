"""The vocabulary-sized end of a step as Triton kernels. `TorchBackend.predict` in `gesso/backends/torch.py` is the
specification.

T tokens of all segments, V vocabulary, H hidden, P tiles of the vocabulary, S splits of the vocabulary. V and H of the
26B-A4B checkpoint are 262144 and 2816, so the head is 1.48 GB in bfloat16.

  1. `_logits`         computes hidden @ head.T, and reduces every vocabulary tile to a few numbers per row. Logits are
                       stored in the working dtype; no float32 [T, V] exists.
  2. `_merge`          merges the tiles of a row, in a fixed order: candidate, argmax, confidence, entropy.

in `top.py`, if a constraint needs them,

     `_top`            finds the most probable tokens of a row in the tiles with the largest logits.
     `_probability`    computes the probability of the token on the canvas.

and in `soft.py`

  3. `_probabilities`  turns the stored logits into probabilities, in place.
  4. `_mean`           computes probabilities @ embedding, over S fixed splits of the vocabulary.
  5. `_add_splits`     adds the splits in order, and rounds and scales as the plain version does.

Step 3 is a separate kernel, not a part of step 4's loads. There each of the 11 column tiles of H would compute the tanh
and the exp of every logit again: 2.2e9 special-function operations at T = 256 (0.6 ms on 132 SMs at 16 per clock). The
left operand would also have to come from registers. The separate kernel moves 4TV bytes instead.

Floors on an H200, at the 4.3 TB/s and 790 TFLOP/s that copies and large products reach there:

                 bytes                                      FLOP     T = 256             T = 2048
  logits         2VH + 2TV                                  2TVH     0.37 ms / 0.48 ms   0.59 ms / 3.83 ms
  probabilities  4TV                                        -        0.06 ms             0.50 ms
  mean           2VH + 2TV + 8STH (partial sums, S = 6)     2TVH     0.38 ms / 0.48 ms   0.66 ms / 3.83 ms

With head and embedding in FP8, the first product multiplies in FP8, at twice that speed. The second sums over the rows
of the table, where tensor cores do not take FP8, and converts it to float16. Both read half of the bytes.

Both products are bound by arithmetic from about 200 rows on, but only if each reads its large matrix from memory once.
Programs that share a tile of it are therefore neighbours in the grid: they run at the same time, and all but one find
the tile in the L2 cache.

The results of a row do not depend, to the last bit, on the other rows. Block sizes and splits do not depend on T, each
row of a tile is accumulated separately, and the kernels are specialised neither on T nor on the alignment of a caller's
slice, so that one binary serves every batch.

float32 is correct but slow: it has no exact tensor-core product, and the block sizes below are not chosen for it.

The hashes are those of `gesso/diffusion/hash.py` to the bit. tanh is computed from the device's exp2 and 1/x
(`special.py`). Logits at the step's temperature have an error of 3e-7 softcap / temperature, which is 2e-5 at a
temperature of 0.4; the Gumbel noise has an error of 5e-6. If two tokens tie to within that, a draw or an argmax may
differ. Rounding a logit to bfloat16 costs hundreds of times as much.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gesso.backends.cuda.kernels.capped import (
    LOG2E,
    LOWEST,
    Product,
    distance_to_cap,
    first_of_largest,
    fitted,
    span_of,
)
from gesso.backends.cuda.kernels.hash import negative_gumbel
from gesso.backends.cuda.kernels.linear import quantize_rows
from gesso.backends.cuda.kernels.soft import expected
from gesso.backends.cuda.kernels.special import exp2, in_ptx, rounded
from gesso.backends.cuda.kernels.top import most_likely
from gesso.cards.card import Card
from gesso.cards.running import card_of
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.diffusion.prediction import LIKELY, Prediction
from gesso.errors import InputError

# A Hopper SM has 228 KB of shared memory (227 for one program) and 64 Ki registers, at most 255 per thread; wgmma works
# on 64 rows per group of four warps. A stage of a product holds (rows + columns) * 128 bytes, and each thread rows *
# columns / (32 * warps) float32 accumulators.
#
# LOGITS: 128 x 256 by 8 warps is 48 KB per stage and 128 accumulators per thread. The epilogue is some 40 instructions
# per logit, five of them on the special function unit, which is eight times slower than the others. One program per SM
# computes its tiles one after another, and fetches the first operands of the next tile during the epilogue. No thread
# may need more than 255 registers, see `_order_after`.
LOGITS = Product(rows=128, columns=256, warps=8, stages=4)
# In FP8 the product takes half as long, and the epilogue would be a quarter of the time: two programs share an SM, and
# one of them multiplies while the other is in its epilogue.
LOGITS_LOW = Product(rows=128, columns=128, warps=4, stages=3)
# For cards with less shared memory than a Hopper SM.
LOGITS_SMALL = Product(rows=128, columns=128, warps=8, stages=3)
STAGGER = 8000  # clock cycles

MERGE_WARPS = 4  # one row of P numbers per program


def predict(
    hidden_TH: Tensor,
    head_VH: Weight,
    embedding_VH: Weight,
    embed_scale: float,
    softcap: float,
    temperature_T: Tensor,
    key_T2: Tensor,
    soft: bool = True,
    likely: bool = False,
) -> Prediction:
    """Return the prediction of every row at its own temperature. Nothing is read on the host, so this can be captured.

    See `Backend.predict` for `soft` and `likely`.

    The rows of all three matrices must start at multiples of 16 bytes, as the copy engine requires.
    """
    _check(hidden_TH, head_VH, embedding_VH, temperature_T, key_T2)
    (tokens, hidden), vocabulary = hidden_TH.shape, head_VH.shape[0]
    card = card_of(hidden_TH.device)
    tiling, together = logits_tiling(card, hidden_TH.dtype, low=isinstance(head_VH, Packed))
    x_TH, matrix_VH, x_scale_T, scale_V = hidden_TH, head_VH, None, None
    if isinstance(head_VH, Packed):
        matrix_VH, scale_V = head_VH.tensors["weight"], head_VH.tensors["weight_scale"]
        x_TH, x_scale_T = quantize_rows(hidden_TH)
    inner = tiling.inner(x_TH.dtype)
    row_tiles = triton.cdiv(tokens, tiling.rows)
    tiles = triton.cdiv(vocabulary, tiling.columns)

    # Rows are padded to whole tiles, so that products may read past the vocabulary, where the probabilities are zero.
    stored_TV = hidden_TH.new_empty(tokens, tiles * tiling.columns)
    statistics_4TP = hidden_TH.new_empty(4, tokens, tiles, dtype=torch.float32)
    temperature_T, key_T2, ptx = temperature_T.contiguous(), key_T2.contiguous(), in_ptx(hidden_TH)
    _logits[(min(row_tiles * tiles, together * card.processors),)](
        TensorDescriptor.from_tensor(x_TH, [tiling.rows, inner]),
        TensorDescriptor.from_tensor(matrix_VH, [tiling.columns, inner]),
        *(x_scale_T, scale_V),
        # In quarters of a tile: a whole one would take the shared memory of a stage.
        TensorDescriptor.from_tensor(stored_TV, [tiling.rows, tiling.columns // 4]),
        *(*statistics_4TP, temperature_T, key_T2, softcap, tokens),
        V=vocabulary,
        H=hidden,
        P=tiles,
        BLOCK_T=tiling.rows,
        BLOCK_V=tiling.columns,
        BLOCK_H=inner,
        STAGGER=STAGGER if together > 1 and ptx else 0,
        PTX=ptx,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )

    candidate_T, argmax_T = (hidden_TH.new_empty(tokens, dtype=torch.int64) for _ in range(2))
    best_T, confidence_T, entropy_T = (hidden_TH.new_empty(tokens, dtype=torch.float32) for _ in range(3))
    _merge[(tokens,)](
        *(*statistics_4TP, stored_TV, temperature_T, key_T2, softcap),
        *(candidate_T, argmax_T, best_T, confidence_T, entropy_T),
        V=vocabulary,
        P=tiles,
        BLOCK_P=triton.next_power_of_2(tiles),
        BLOCK_V=tiling.columns,
        PTX=ptx,
        num_warps=MERGE_WARPS,
    )

    # Before `expected`, which overwrites the logits.
    logits = stored_TV, temperature_T, best_T, confidence_T, softcap
    likely_tokens = most_likely(stored_TV, softcap, statistics_4TP[0], vocabulary, LIKELY) if likely else None
    return Prediction(
        candidate_C=candidate_T,
        argmax_C=argmax_T,
        confidence_C=confidence_T,
        entropy_C=entropy_T,
        soft_CH=expected(*logits, embedding_VH, embed_scale) if soft else None,
        likely_CK=likely_tokens.token_TK if likely_tokens else None,
        likely_logit_CK=likely_tokens.logit_TK if likely_tokens else None,
    )


def logits_tiling(card: Card, dtype: torch.dtype, *, low: bool) -> tuple[Product, int]:
    """Return the tiling of the logits, and how many of its programs share an SM. `low`: the head is in FP8."""
    tiling = fitted((LOGITS_LOW,) if low else (LOGITS, LOGITS_SMALL), card, partial(_epilogue_bytes, card, dtype))
    shared_bytes = card.tiles_in_memory(tiling.stages) * tiling.stage_bytes + _epilogue_bytes(card, dtype, tiling)
    return tiling, 2 if low and 2 * shared_bytes <= card.processor_bytes else 1


def _epilogue_bytes(card: Card, dtype: torch.dtype, tiling: Product) -> int:
    """Return the shared memory through which a tile is stored: a quarter of it, or all that was in tensor memory."""
    whole = tiling.rows * tiling.columns * dtype.itemsize
    return whole if card.has_tensor_memory else whole // 4


def _check(hidden_TH: Tensor, head_VH: Weight, embedding_VH: Weight, temperature_T: Tensor, key_T2: Tensor) -> None:
    dtypes = {hidden_TH.dtype} | {table.dtype for table in (head_VH, embedding_VH) if isinstance(table, Tensor)}
    if len(dtypes) > 1:
        raise InputError(
            f"hidden states, head and embedding must share one dtype, got {sorted(map(str, dtypes))}: "
            "logits and probabilities share one buffer"
        )
    if temperature_T.dtype != torch.float32 or key_T2.dtype != torch.int32:
        raise InputError(
            f"temperatures must be float32 and keys int32, got {temperature_T.dtype} and {key_T2.dtype}: "
            "keys of another width would give other hashes"
        )


# --- kernels ---


@triton.jit
def _statistics(
    rounded_TV, first_token, top_T, span_T, key_0_T, key_1_T, softcap,
    V: tl.constexpr, MASKED: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Return, for some columns of a tile, the sum of 2^b, the sum of b 2^b, and the largest b with noise.

    b is the logit minus the tile's largest, in powers of two. Measured from zero instead, the entropy would be a
    difference of large numbers.
    """
    token_V = first_token + tl.arange(0, rounded_TV.shape[1])
    below_TV = span_T[:, None] * (top_T[:, None] - distance_to_cap(rounded_TV, softcap, PTX))
    if MASKED:
        below_TV = tl.where(token_V[None, :] < V, below_TV, LOWEST)
    mass_TV = exp2(below_TV, PTX)
    noisy_TV = below_TV - negative_gumbel(key_0_T[:, None], key_1_T[:, None], token_V[None, :], PTX)
    return tl.sum(mass_TV, 1), tl.sum(mass_TV * below_TV, 1), tl.max(noisy_TV, 1)


@triton.jit
def _order_after(key_T, mass_T):
    """Return the keys unchanged, but ordered after the masses.

    No mass is negative, but the compiler does not know that. Without this dependency it would compute all quarters at
    once, and run out of registers.
    """
    return key_T | (mass_T < 0).to(tl.int32)


@triton.jit
def _halves(x_TV):
    return tl.split(tl.permute(tl.reshape(x_TV, (x_TV.shape[0], 2, x_TV.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def _stagger(CYCLES: tl.constexpr):
    """Delay the second half of the programs. Two programs on an SM would otherwise start, multiply and enter their
    epilogues together, tile after tile.
    """
    wait = tl.where(tl.program_id(0) * 2 >= tl.num_programs(0), CYCLES, 0)
    tl.inline_asm_elementwise(
        "{ .reg .u32 first, now; .reg .pred early; mov.u32 first, %clock;"
        " again: mov.u32 now, %clock; sub.u32 now, now, first; setp.lt.u32 early, now, $1; @early bra again;"
        " mov.u32 $0, now; }",
        "=r,r", [wait], tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["T"], do_not_specialize_on_alignment=["temperature_T", "key_T2"])
def _logits(
    hidden, head, x_scale_T, scale_V, stored, peak_TP, mass_TP, weighted_TP, best_TP, temperature_T, key_T2, softcap, T,
    V: tl.constexpr, H: tl.constexpr, P: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_H: tl.constexpr, STAGGER: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Compute tiles of logits, store them, and reduce each to statistics per row.

    Grid: (programs,). A program computes every num_programs-th tile, with row tiles fastest. hidden, head and stored
    are tensor descriptors of [T, H], [V, H] and [T, P BLOCK_V]; x_scale [T] and scale [V] are given if operands are
    FP8. Per row and tile: peak, the largest logit before the cap; mass, weighted and best, see `_statistics`. Bound by
    the tensor cores from about 200 rows on.
    """
    if STAGGER:
        _stagger(STAGGER)
    row_tiles = tl.cdiv(T, BLOCK_T)
    # Flattened: tiles and their inner loops become one loop, whose loads run ahead of the epilogue.
    for number in tl.range(tl.program_id(0), row_tiles * P, tl.num_programs(0), flatten=True):
        tile = number // row_tiles  # neighbours share a tile of the head
        first_row = number % row_tiles * BLOCK_T
        first_token = tile * BLOCK_V
        sum_TV = tl.zeros((BLOCK_T, BLOCK_V), tl.float32)
        for h in range(tl.cdiv(H, BLOCK_H)):
            x_TH = hidden.load([first_row, h * BLOCK_H])
            w_VH = head.load([first_token, h * BLOCK_H])
            sum_TV = tl.dot(x_TH, tl.trans(w_VH), sum_TV, input_precision="ieee")
        row = first_row + tl.arange(0, BLOCK_T)
        inside = row < T
        if scale_V is not None:
            token = first_token + tl.arange(0, BLOCK_V)
            sum_TV *= tl.load(x_scale_T + row, mask=inside, other=0.0)[:, None]
            sum_TV *= tl.load(scale_V + token, mask=token < V, other=0.0)[None, :]
        rounded_TV = rounded(sum_TV, stored.dtype, PTX)
        # In quarters: the logits of a whole tile, with and without noise, do not fit into the registers together.
        left, right = _halves(rounded_TV)
        q0, q1 = _halves(left)
        q2, q3 = _halves(right)
        QUARTER: tl.constexpr = BLOCK_V // 4

        span = span_of(softcap, tl.load(temperature_T + row, mask=inside, other=1.0))
        key_0 = tl.load(key_T2 + row * 2, mask=inside, other=0)
        key_1 = tl.load(key_T2 + row * 2 + 1, mask=inside, other=0)

        MASKED: tl.constexpr = V % BLOCK_V != 0
        number_TV = rounded_TV.to(tl.float32)
        if MASKED:
            number_TV = tl.where((first_token + tl.arange(0, BLOCK_V))[None, :] < V, number_TV, LOWEST)
        peak = tl.max(number_TV, 1)
        top = distance_to_cap(peak, softcap, PTX)

        # Each store waits for the one before, which has ended during the statistics.
        stored.store([first_row, first_token], q0)
        mass, weighted, best = _statistics(q0, first_token, top, span, key_0, key_1, softcap, V, MASKED, PTX)
        key_0 = _order_after(key_0, mass)
        stored.store([first_row, first_token + QUARTER], q1)
        m, t, b = _statistics(q1, first_token + QUARTER, top, span, key_0, key_1, softcap, V, MASKED, PTX)
        mass, weighted, best = mass + m, weighted + t, tl.maximum(best, b)
        key_0 = _order_after(key_0, mass)
        stored.store([first_row, first_token + 2 * QUARTER], q2)
        m, t, b = _statistics(q2, first_token + 2 * QUARTER, top, span, key_0, key_1, softcap, V, MASKED, PTX)
        mass, weighted, best = mass + m, weighted + t, tl.maximum(best, b)
        key_0 = _order_after(key_0, mass)
        stored.store([first_row, first_token + 3 * QUARTER], q3)
        m, t, b = _statistics(q3, first_token + 3 * QUARTER, top, span, key_0, key_1, softcap, V, MASKED, PTX)
        mass, weighted, best = mass + m, weighted + t, tl.maximum(best, b)

        index = row.to(tl.int64) * P + tile
        tl.store(peak_TP + index, peak, mask=inside)
        tl.store(mass_TP + index, mass, mask=inside)
        tl.store(weighted_TP + index, weighted, mask=inside)
        tl.store(best_TP + index, best, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["temperature_T", "key_T2"])
def _merge(
    peak_TP, mass_TP, weighted_TP, best_TP, stored_TV, temperature_T, key_T2, softcap,
    candidate_T, argmax_T, top_T, confidence_T, entropy_T,
    V: tl.constexpr, P: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_V: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Merge the tiles of one row.

    Grid: (T,). The statistics [T, P] and stored logits come from `_logits`. top is the distance of the row's largest
    logit to the cap, for `_probabilities`.
    """
    row = tl.program_id(0)
    tile_P = tl.arange(0, BLOCK_P)
    inside_P = tile_P < P
    index_P = row.to(tl.int64) * P + tile_P
    peak_P = tl.load(peak_TP + index_P, mask=inside_P, other=LOWEST)
    mass_P = tl.load(mass_TP + index_P, mask=inside_P, other=0.0)
    weighted_P = tl.load(weighted_TP + index_P, mask=inside_P, other=0.0)
    best_P = tl.load(best_TP + index_P, mask=inside_P, other=LOWEST)

    # Measure everything from the largest logit of the row.
    span = span_of(softcap, tl.load(temperature_T + row))
    depth_P = distance_to_cap(peak_P, softcap, PTX)
    top = tl.min(depth_P, 0)
    below_P = span * (top - depth_P)
    scale_P = exp2(below_P, PTX)
    mass = tl.sum(scale_P * mass_P, 0)
    weighted = tl.sum(scale_P * (weighted_P + below_P * mass_P), 0)
    tl.store(top_T + row, top)
    tl.store(confidence_T + row, 1.0 / mass)
    # With Z the mass and W the weighted sum, the entropy is log Z - W / Z; only rounding can make it negative.
    tl.store(entropy_T + row, tl.maximum(tl.log2(mass) - weighted / mass, 0.0) / LOG2E)

    # Only the largest values of tiles are known; find their tokens in the two winning tiles again.
    token_V = tl.arange(0, BLOCK_V)
    stored_row = stored_TV + row.to(tl.int64) * (P * BLOCK_V)
    peak_token_V = first_of_largest(-depth_P, tile_P, P) * BLOCK_V + token_V
    depth_V = distance_to_cap(tl.load(stored_row + peak_token_V), softcap, PTX)
    argmax = first_of_largest(tl.where(peak_token_V < V, -depth_V, LOWEST), peak_token_V, V)
    tl.store(argmax_T + row, argmax.to(tl.int64))

    best_token_V = first_of_largest(below_P + best_P, tile_P, P) * BLOCK_V + token_V
    below_V = span * (top - distance_to_cap(tl.load(stored_row + best_token_V), softcap, PTX))
    noise_V = negative_gumbel(tl.load(key_T2 + row * 2), tl.load(key_T2 + row * 2 + 1), best_token_V, PTX)
    candidate = first_of_largest(tl.where(best_token_V < V, below_V - noise_V, LOWEST), best_token_V, V)
    tl.store(candidate_T + row, candidate.to(tl.int64))
