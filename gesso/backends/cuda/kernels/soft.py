"""Expected embeddings of all positions from stored logits: the self-conditioning that `vocab.py` returns.

T tokens, V vocabulary, H hidden, S splits of the vocabulary.
"""

from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gesso.backends.cuda.kernels.capped import LOWEST, Product, distance_to_cap, fitted, span_of
from gesso.backends.cuda.kernels.special import exp2, in_ptx
from gesso.cards.card import Card
from gesso.cards.running import card_of
from gesso.checkpoint.quantize.packed import Packed, Weight

# MEAN: the epilogue is a store, so the larger tile fits: 48 KB per stage, 192 KB for four, 128 accumulators per thread.
MEAN = Product(rows=128, columns=256, warps=8, stages=4)
# With the table in FP8, its columns are the rows of the product: converted values then enter it from registers.
MEAN_LOW = Product(rows=256, columns=128, warps=8, stages=4)
MEAN_SMALL = Product(rows=128, columns=128, warps=8, stages=3)  # for cards with less shared memory than a Hopper SM

# Splits of the vocabulary in both define the order of the sums, so they never depend on T. T = 256 gives 22 tiles,
# which times 6 are the 132 SMs of an H200. The same holds for multiples of 256.
SPLITS = 6

STREAM, STREAM_WARPS = 4096, 8  # elements per program of a streaming kernel: 16 per thread, 32 bytes of bfloat16


def expected(
    stored_TV: Tensor,
    temperature_T: Tensor,
    top_T: Tensor,
    confidence_T: Tensor,
    softcap: float,
    embedding_VH: Weight,
    embed_scale: float,
) -> Tensor:
    """Return the expected embeddings [T, H]. The logits are overwritten with probabilities.

    `top_T` is the distance of each row's largest logit to the cap. Rows of an FP8 table have one scale each. It is
    applied to their probabilities, which are then float16 between zero and one: relative to the largest probability and
    to the largest scale.
    """
    (tokens, width), (vocabulary, hidden) = stored_TV.shape, embedding_VH.shape
    tiling = mean_tiling(card_of(stored_TV.device), low=isinstance(embedding_VH, Packed))
    table_VH, scale_V, largest_1, probability_TV = embedding_VH, None, None, stored_TV
    if isinstance(embedding_VH, Packed):
        table_VH, scale_V = embedding_VH.tensors["weight"], embedding_VH.tensors["weight_scale"]
        largest_1 = _largest(embedding_VH, scale_V)
        probability_TV = stored_TV.view(torch.float16) if stored_TV.dtype == torch.bfloat16 else stored_TV
    _probabilities[(tokens, triton.cdiv(width, STREAM))](
        *(stored_TV, probability_TV, temperature_T, top_T, confidence_T, scale_V, largest_1, softcap),
        V=vocabulary,
        WIDTH=width,
        BLOCK_V=STREAM,
        PTX=in_ptx(stored_TV),
        num_warps=STREAM_WARPS,
    )

    partial_STH = stored_TV.new_empty(SPLITS, tokens, hidden, dtype=torch.float32)
    inner = tiling.inner(stored_TV.dtype)
    _mean[(triton.cdiv(tokens, tiling.rows) * triton.cdiv(hidden, tiling.columns) * SPLITS,)](
        TensorDescriptor.from_tensor(probability_TV, [tiling.rows, inner]),
        TensorDescriptor.from_tensor(table_VH, [inner, tiling.columns]),
        partial_STH,
        tokens,
        V=vocabulary,
        H=hidden,
        S=SPLITS,
        BLOCK_T=tiling.rows,
        BLOCK_H=tiling.columns,
        BLOCK_V=inner,
        LOW=scale_V is not None,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )

    soft_TH = stored_TV.new_empty(tokens, hidden)
    _add_splits[(triton.cdiv(hidden, STREAM), tokens)](
        *(partial_STH, soft_TH, confidence_T, largest_1, embed_scale, tokens),
        H=hidden,
        S=SPLITS,
        BLOCK_H=min(STREAM, triton.next_power_of_2(hidden)),
        num_warps=STREAM_WARPS,
    )
    return soft_TH


def mean_tiling(card: Card, *, low: bool) -> Product:
    """Return the tiling of the expected embeddings. `low`: the table is in FP8."""
    return fitted((MEAN_LOW if low else MEAN, MEAN_SMALL), card)


def _largest(table_VH: Packed, scale_V: Tensor) -> Tensor:
    """Return the largest scale [1] of a table, computed once: every step needs it."""
    known = _LARGEST.get(table_VH)
    if known is None or known[0] is not scale_V:  # moved to another device
        known = _LARGEST[table_VH] = scale_V, scale_V.amax(0)
    return known[1]


_LARGEST: WeakKeyDictionary[Packed, tuple[Tensor, Tensor]] = WeakKeyDictionary()


@triton.jit(do_not_specialize_on_alignment=["temperature_T"])
def _probabilities(
    stored_TV, probability_TV, temperature_T, top_T, confidence_T, scale_V, largest_1, softcap,
    V: tl.constexpr, WIDTH: tl.constexpr, BLOCK_V: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Turn BLOCK_V stored logits of one row into probabilities.

    Grid: (T, WIDTH / BLOCK_V). stored and probability are [T, WIDTH], and may share memory. scale [V] and largest [1]
    are given if the table is FP8. Memory-bound.
    """
    row = tl.program_id(0)
    # The last tokens first: their logits were stored last, and are still in the L2 cache.
    token_V = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_V + tl.arange(0, BLOCK_V)
    at_V = row.to(tl.int64) * WIDTH + token_V
    stored_V = tl.load(stored_TV + at_V, mask=token_V < V, other=0.0)
    span = span_of(softcap, tl.load(temperature_T + row))
    below_V = tl.where(token_V < V, span * (tl.load(top_T + row) - distance_to_cap(stored_V, softcap, PTX)), LOWEST)
    probability_V = exp2(below_V, PTX)
    if scale_V is None:
        probability_V *= tl.load(confidence_T + row)  # the reciprocal of the row's sum
    else:
        probability_V *= tl.load(scale_V + token_V, mask=token_V < V, other=0.0) / tl.load(largest_1)
    tl.store(probability_TV + at_V, probability_V.to(probability_TV.dtype.element_ty), mask=token_V < WIDTH)


@triton.jit(do_not_specialize=["T"])
def _mean(
    probability, embedding, partial_STH, T,
    V: tl.constexpr, H: tl.constexpr, S: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Compute a tile of probabilities @ embedding over one split of the vocabulary.

    Grid: (row tiles * column tiles * S,), row tiles fastest. probability and embedding are tensor descriptors of [T,
    WIDTH] and [V, H]; partial is [S, T, H]. LOW: the table is FP8, whose values are exact in float16, and rows and
    columns are exchanged. Bound by the tensor cores from about 200 rows on.
    """
    row_tiles = tl.cdiv(T, BLOCK_T)
    # neighbours share a tile of the embedding, the next ones the tiles of the rows
    program = tl.program_id(0) // row_tiles
    first_row = tl.program_id(0) % row_tiles * BLOCK_T
    first_column = program % tl.cdiv(H, BLOCK_H) * BLOCK_H
    split = program // tl.cdiv(H, BLOCK_H)

    steps: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    each: tl.constexpr = (steps + S - 1) // S
    accumulator = tl.zeros((BLOCK_H, BLOCK_T) if LOW else (BLOCK_T, BLOCK_H), tl.float32)
    for step in range(split * each, tl.minimum(split * each + each, steps)):
        p_TV = probability.load([first_row, step * BLOCK_V])
        e_VH = embedding.load([step * BLOCK_V, first_column])
        if LOW:
            accumulator = tl.dot(tl.trans(e_VH).to(p_TV.dtype), tl.trans(p_TV), accumulator, input_precision="ieee")
        else:
            accumulator = tl.dot(p_TV, e_VH, accumulator, input_precision="ieee")

    row_T = first_row + tl.arange(0, BLOCK_T)
    column_H = first_column + tl.arange(0, BLOCK_H)
    at_TH = (split.to(tl.int64) * T + row_T[:, None]) * H + column_H[None, :]
    accumulator_TH = tl.trans(accumulator) if LOW else accumulator
    tl.store(partial_STH + at_TH, accumulator_TH, mask=(row_T[:, None] < T) & (column_H[None, :] < H))


@triton.jit(do_not_specialize=["T"])
def _add_splits(
    partial_STH, soft_TH, confidence_T, largest_1, scale, T,
    H: tl.constexpr, S: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Add the splits of one row, in order, and scale. Grid: (H / BLOCK_H, T). partial is [S, T, H]. Memory-bound."""
    row = tl.program_id(1).to(tl.int64)
    column_H = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    inside_H = column_H < H
    sum_H = tl.zeros((BLOCK_H,), tl.float32)
    for split in tl.static_range(S):
        sum_H += tl.load(partial_STH + (split * T + row) * H + column_H, mask=inside_H, other=0.0)
    if largest_1 is not None:
        sum_H *= tl.load(confidence_T + row) * tl.load(largest_1)
    # Round before scaling, as a product rounds to its dtype.
    mean_H = sum_H.to(soft_TH.dtype.element_ty).to(tl.float32)
    tl.store(soft_TH + row * H + column_H, (mean_H * scale).to(soft_TH.dtype.element_ty), mask=inside_H)
