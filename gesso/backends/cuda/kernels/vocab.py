"""The vocabulary-sized end of a step as Triton kernels; `ops/vocab.py` is the specification.

T tokens of all segments, V vocabulary, H hidden, P tiles of the vocabulary, S splits of the vocabulary. V and H of the
26B-A4B checkpoint are 262144 and 2816, so the head is 1.48 GB in bfloat16.

  1. `_logits`         hidden @ head.T; what is left of every vocabulary tile is a handful of numbers a row, and the
                       logits in the working dtype. No float32 [T, V] exists.
  2. `_merge`          the tiles of a row, in one fixed order: candidate, argmax, confidence, entropy.

and in `soft.py`

  3. `_probabilities`  turns the stored logits into probabilities, in place.
  4. `_mean`           probabilities @ embedding, over S fixed splits of the vocabulary.
  5. `_add_splits`     their sum, in order, rounded and scaled as the plain version rounds and scales.

Step 3 is a pass of its own, not a part of step 4's loads: there each of the 11 column tiles of H would take the tanh
and the exp of every logit again, 2.2e9 special-function operations at T = 256 (0.6 ms on 132 SMs at 16 a clock), and
the left operand would have to come from registers. The pass moves 4TV bytes instead, and the product is a plain one.

Floors on an H200, at 4.3 TB/s and 790 TFLOP/s, as copies and large products reach them there:

                 bytes                                      FLOP     T = 256             T = 2048
  logits         2VH + 2TV                                  2TVH     0.37 ms / 0.48 ms   0.59 ms / 3.83 ms
  probabilities  4TV                                        -        0.06 ms             0.50 ms
  mean           2VH + 2TV + 8STH (partial sums, S = 6)     2TVH     0.38 ms / 0.48 ms   0.66 ms / 3.83 ms

With head and embedding in FP8 the first product multiplies in FP8, at twice that speed; the second, whose sums run over
the rows of the table, cannot (the matrix units take FP8 only along rows), and widens it. Half of the bytes either way.

Both products are bound by arithmetic from about 200 rows on, but only if each reads its big matrix from memory once:
programs that share a tile of it are neighbours in the grid, run at the same time, and all but one find it in the L2
cache.

A row's numbers do not depend, to the last bit, on the rows beside it: block sizes and splits know nothing of T, a row
of a tile is a sum of its own, and the kernels are specialised neither on T nor on where a caller's slice of rows
starts, so that one binary serves every batch.

float32 is right but slow: it has no exact tensor-core product, and the blocks below are not made for it.

The hashes are those of `ops/hash.py` to the bit. The tanh is made of the device's own exp2 and 1/x (`special.py`), and
logits at the step's temperature are good to 3e-7 softcap / temperature, which is 2e-5 at a temperature of 0.4; the
Gumbel noise is good to 5e-6. Where two tokens tie to within that, a draw or an argmax can be the other one; a logit
rounded to bfloat16 is off by hundreds of times as much.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gesso.backends.cuda.kernels.capped import LOG2E, NOTHING, Product, depth, span_of
from gesso.backends.cuda.kernels.hash import token_hash, uniform
from gesso.backends.cuda.kernels.linear import quantize_rows
from gesso.backends.cuda.kernels.soft import expected
from gesso.backends.cuda.kernels.special import exp2, in_ptx, log2, rounded
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.diffusion.prediction import Prediction
from gesso.errors import InputError

# An SM of a Hopper GPU has 228 KB of shared memory (227 for one program) and 64 Ki registers, at most 255 a thread;
# wgmma works on 64 rows by a group of four warps. A stage of a product holds (rows + columns) * 128 bytes, and each
# thread rows * columns / (32 * warps) float32 sums.
#
# LOGITS: 128 x 256 by 8 warps is 48 KB a stage and 128 sums a thread. The epilogue is some 40 instructions a logit,
# five of them of the unit for special functions, which takes one for eight of the others. 128 x 128, of which two
# programs share an SM and one may multiply while the other is there, is as fast with many rows and slower with few. No
# thread may need more than 255 registers, see `_after`.
LOGITS = Product(rows=128, columns=256, warps=8, stages=4)
# In FP8 the multiplication takes half as long, and the epilogue would be a third of the time: two programs share an SM.
LOGITS_LOW = Product(rows=128, columns=128, warps=4, stages=3)

MERGE_WARPS = 4  # one row of P numbers a program


def predict(
    hidden_TH: Tensor,
    head_VH: Weight,
    embedding_VH: Weight,
    embed_scale: float,
    softcap: float,
    temperature_T: Tensor,
    key_T2: Tensor,
    soft: bool = True,
) -> Prediction:
    """What `ops/vocab.py` computes, at each row's own temperature. Nothing is read on the host: it can be captured.

    The rows of all three matrices must start at multiples of 16 bytes, as the copy engine of the GPU wants them.
    """
    _check(hidden_TH, head_VH, embedding_VH, temperature_T, key_T2)
    (tokens, hidden), vocabulary = hidden_TH.shape, head_VH.shape[0]
    cut, x_TH, matrix_VH, x_scale_T, scale_V = LOGITS, hidden_TH, head_VH, None, None
    if isinstance(head_VH, Packed):
        cut, matrix_VH, scale_V = LOGITS_LOW, head_VH.tensors["weight"], head_VH.tensors["weight_scale"]
        x_TH, x_scale_T = quantize_rows(hidden_TH)
    inner = cut.inner(x_TH.dtype)
    row_tiles = triton.cdiv(tokens, cut.rows)
    tiles = triton.cdiv(vocabulary, cut.columns)

    # Rows of whole tiles: the products may then read past the vocabulary, where the probabilities are zero.
    stored_TV = hidden_TH.new_empty(tokens, tiles * cut.columns)
    found_4TP = hidden_TH.new_empty(4, tokens, tiles, dtype=torch.float32)
    temperature_T, key_T2, ptx = temperature_T.contiguous(), key_T2.contiguous(), in_ptx(hidden_TH)
    _logits[(row_tiles * tiles,)](
        TensorDescriptor.from_tensor(x_TH, [cut.rows, inner]),
        TensorDescriptor.from_tensor(matrix_VH, [cut.columns, inner]),
        *(x_scale_T, scale_V),
        TensorDescriptor.from_tensor(stored_TV, [cut.rows, cut.columns]),
        *(*found_4TP, temperature_T, key_T2, softcap, tokens),
        V=vocabulary,
        H=hidden,
        P=tiles,
        BLOCK_T=cut.rows,
        BLOCK_V=cut.columns,
        BLOCK_H=inner,
        PTX=ptx,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )

    candidate_T, argmax_T = (hidden_TH.new_empty(tokens, dtype=torch.int64) for _ in range(2))
    top_T, confidence_T, entropy_T = (hidden_TH.new_empty(tokens, dtype=torch.float32) for _ in range(3))
    _merge[(tokens,)](
        *(*found_4TP, stored_TV, temperature_T, key_T2, softcap),
        *(candidate_T, argmax_T, top_T, confidence_T, entropy_T),
        V=vocabulary,
        P=tiles,
        BLOCK_P=triton.next_power_of_2(tiles),
        BLOCK_V=cut.columns,
        PTX=ptx,
        num_warps=MERGE_WARPS,
    )

    if not soft:
        return Prediction(candidate_T, argmax_T, confidence_T, entropy_T)
    soft_TH = expected(stored_TV, temperature_T, top_T, confidence_T, softcap, embedding_VH, embed_scale)
    return Prediction(candidate_T, argmax_T, confidence_T, entropy_T, soft_TH)


def _check(hidden_TH: Tensor, head_VH: Weight, embedding_VH: Weight, temperature_T: Tensor, key_T2: Tensor) -> None:
    dtypes = {hidden_TH.dtype} | {table.dtype for table in (head_VH, embedding_VH) if isinstance(table, Tensor)}
    if len(dtypes) > 1:
        raise InputError(
            f"hidden states, head and embedding must share one dtype, not {sorted(map(str, dtypes))}: "
            "logits and probabilities share one buffer"
        )
    if temperature_T.dtype != torch.float32 or key_T2.dtype != torch.int32:
        raise InputError(
            f"temperatures must be float32 and keys int32, not {temperature_T.dtype} and {key_T2.dtype}: "
            "keys of another width would give other hashes"
        )


# --- kernels ---


@triton.jit
def _delay(key_0, key_1, token, PTX: tl.constexpr):
    """Less Gumbel noise, in powers of two, and a constant: log2 of an exponential draw -log2(u).

    Where u is close to one the draw is tiny, and all its digits count, for there are those who win: an instruction with
    an absolute error will not do. There it is the series of log(1 - v), with v = 1 - u exact. Where the two meet, both
    are good to 5e-6 of the draw; that is an error in the noise, and elsewhere it is smaller.
    """
    u = uniform(token_hash(key_0, key_1, token))
    v = 1.0 - u
    series = v * (LOG2E + v * (LOG2E / 2 + v * (LOG2E / 3 + v * (LOG2E / 4))))
    return log2(tl.abs(tl.where(v < 0.03125, series, log2(u, PTX))), PTX)


@triton.jit
def _statistics(
    rounded_TV, first_token, top_T, span_T, key_0_T, key_1_T, softcap,
    V: tl.constexpr, MASKED: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Of some columns of a tile: the sum of 2^b and that of b 2^b, b being how far a logit is below the tile's largest,
    and the largest b with noise. Measured from there because the entropy would else be a difference of large numbers.
    """
    token_V = first_token + tl.arange(0, rounded_TV.shape[1])
    below_TV = span_T[:, None] * (top_T[:, None] - depth(rounded_TV, softcap, PTX))
    if MASKED:
        below_TV = tl.where(token_V[None, :] < V, below_TV, NOTHING)
    mass_TV = exp2(below_TV, PTX)
    noisy_TV = below_TV - _delay(key_0_T[:, None], key_1_T[:, None], token_V[None, :], PTX)
    return tl.sum(mass_TV, 1), tl.sum(mass_TV * below_TV, 1), tl.max(noisy_TV, 1)


@triton.jit
def _after(key_T, mass_T):
    """The same keys. No mass is negative; but the compiler does not know, and so must begin with what needs the keys
    when it has the masses. Else it would compute all quarters at once, and run out of registers."""
    return key_T | (mass_T < 0).to(tl.int32)


@triton.jit
def _halves(x_TV):
    return tl.split(tl.permute(tl.reshape(x_TV, (x_TV.shape[0], 2, x_TV.shape[1] // 2)), (0, 2, 1)))


@triton.jit(do_not_specialize=["T"], do_not_specialize_on_alignment=["temperature_T", "key_T2"])
def _logits(
    hidden, head, x_scale_T, scale_V, stored, peak_TP, mass_TP, tilt_TP, best_TP, temperature_T, key_T2, softcap, T,
    V: tl.constexpr, H: tl.constexpr, P: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_H: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    row_tiles = tl.cdiv(T, BLOCK_T)
    tile = tl.program_id(0) // row_tiles  # neighbours share a tile of the head
    first_row = tl.program_id(0) % row_tiles * BLOCK_T
    first_token = tile * BLOCK_V

    sum_TV = tl.zeros((BLOCK_T, BLOCK_V), tl.float32)
    for h in range(0, H, BLOCK_H):
        x_TH = hidden.load([first_row, h])
        w_VH = head.load([first_token, h])
        sum_TV = tl.dot(x_TH, tl.trans(w_VH), sum_TV, input_precision="ieee")
    row = first_row + tl.arange(0, BLOCK_T)
    inside = row < T
    if scale_V is not None:
        token = first_token + tl.arange(0, BLOCK_V)
        sum_TV *= tl.load(x_scale_T + row, mask=inside, other=0.0)[:, None]
        sum_TV *= tl.load(scale_V + token, mask=token < V, other=0.0)[None, :]
    rounded_TV = rounded(sum_TV, stored.dtype, PTX)
    stored.store([first_row, first_token], rounded_TV)

    span = span_of(softcap, tl.load(temperature_T + row, mask=inside, other=1.0))
    key_0 = tl.load(key_T2 + row * 2, mask=inside, other=0)
    key_1 = tl.load(key_T2 + row * 2 + 1, mask=inside, other=0)

    MASKED: tl.constexpr = V % BLOCK_V != 0
    number_TV = rounded_TV.to(tl.float32)
    if MASKED:
        number_TV = tl.where((first_token + tl.arange(0, BLOCK_V))[None, :] < V, number_TV, NOTHING)
    peak = tl.max(number_TV, 1)
    top = depth(peak, softcap, PTX)

    # By quarters: the logits of a whole tile, with and without noise, do not fit in the registers beside each other.
    left, right = _halves(rounded_TV)
    q0, q1 = _halves(left)
    q2, q3 = _halves(right)
    QUARTER: tl.constexpr = BLOCK_V // 4
    mass, tilt, best = _statistics(q0, first_token, top, span, key_0, key_1, softcap, V, MASKED, PTX)
    key_0 = _after(key_0, mass)
    m, t, b = _statistics(q1, first_token + QUARTER, top, span, key_0, key_1, softcap, V, MASKED, PTX)
    mass, tilt, best = mass + m, tilt + t, tl.maximum(best, b)
    key_0 = _after(key_0, mass)
    m, t, b = _statistics(q2, first_token + 2 * QUARTER, top, span, key_0, key_1, softcap, V, MASKED, PTX)
    mass, tilt, best = mass + m, tilt + t, tl.maximum(best, b)
    key_0 = _after(key_0, mass)
    m, t, b = _statistics(q3, first_token + 3 * QUARTER, top, span, key_0, key_1, softcap, V, MASKED, PTX)
    mass, tilt, best = mass + m, tilt + t, tl.maximum(best, b)

    at = row.to(tl.int64) * P + tile
    tl.store(peak_TP + at, peak, mask=inside)
    tl.store(mass_TP + at, mass, mask=inside)
    tl.store(tilt_TP + at, tilt, mask=inside)
    tl.store(best_TP + at, best, mask=inside)


@triton.jit
def _first_of_largest(value, index, NONE: tl.constexpr):
    """The lowest index of the largest value. NaN equals no largest value, not its own: then the last index there is."""
    return tl.minimum(tl.min(tl.where(value == tl.max(value, 0), index, NONE), 0), NONE - 1)


@triton.jit(do_not_specialize_on_alignment=["temperature_T", "key_T2"])
def _merge(
    peak_TP, mass_TP, tilt_TP, best_TP, stored_TV, temperature_T, key_T2, softcap,
    candidate_T, argmax_T, top_T, confidence_T, entropy_T,
    V: tl.constexpr, P: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_V: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    tile_P = tl.arange(0, BLOCK_P)
    inside_P = tile_P < P
    at_P = row.to(tl.int64) * P + tile_P
    peak_P = tl.load(peak_TP + at_P, mask=inside_P, other=NOTHING)
    mass_P = tl.load(mass_TP + at_P, mask=inside_P, other=0.0)
    tilt_P = tl.load(tilt_TP + at_P, mask=inside_P, other=0.0)
    best_P = tl.load(best_TP + at_P, mask=inside_P, other=NOTHING)

    # All as if measured from the largest logit of the row.
    span = span_of(softcap, tl.load(temperature_T + row))
    depth_P = depth(peak_P, softcap, PTX)
    top = tl.min(depth_P, 0)
    below_P = span * (top - depth_P)
    scale_P = exp2(below_P, PTX)
    mass = tl.sum(scale_P * mass_P, 0)
    tilt = tl.sum(scale_P * (tilt_P + below_P * mass_P), 0)
    tl.store(top_T + row, top)
    tl.store(confidence_T + row, 1.0 / mass)
    # With Z the mass and W the tilt the entropy is log Z - W / Z; neither term is negative but by rounding.
    tl.store(entropy_T + row, tl.maximum(tl.log2(mass) - tilt / mass, 0.0) / LOG2E)

    # Of the tiles only the largest values are known; which tokens have them is found again in the two that won.
    token_V = tl.arange(0, BLOCK_V)
    stored_row = stored_TV + row.to(tl.int64) * (P * BLOCK_V)
    peak_token_V = _first_of_largest(-depth_P, tile_P, P) * BLOCK_V + token_V
    depth_V = depth(tl.load(stored_row + peak_token_V), softcap, PTX)
    argmax = _first_of_largest(tl.where(peak_token_V < V, -depth_V, NOTHING), peak_token_V, V)
    tl.store(argmax_T + row, argmax.to(tl.int64))

    best_token_V = _first_of_largest(below_P + best_P, tile_P, P) * BLOCK_V + token_V
    below_V = span * (top - depth(tl.load(stored_row + best_token_V), softcap, PTX))
    delay_V = _delay(tl.load(key_T2 + row * 2), tl.load(key_T2 + row * 2 + 1), best_token_V, PTX)
    candidate = _first_of_largest(tl.where(best_token_V < V, below_V - delay_V, NOTHING), best_token_V, V)
    tl.store(candidate_T + row, candidate.to(tl.int64))
