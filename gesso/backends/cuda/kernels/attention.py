"""Attention of the tokens of a pass over the KV cache, as Triton kernels.

`attend_with_cache` in `gesso/model/attention.py` is the specification. A pass has several segments: a segment is a run
of text, which attends causally and is appended to the cache, or a canvas, which attends to its cached text and to all
of itself. All segments run in the same launches, in this order:

  1. `_attend`   computes each tile of queries over its keys, as in FlashAttention. The keys of a canvas are split over
                 several programs. On Hopper GPUs, `attention_hopper.py` computes large tiles, with the same bits.
  2. `_combine`  combines the splits of a canvas, in a fixed order. `_combine_low` also quantizes the rows to FP8.
  3. `_append`   writes the keys and values of text to the cache.

Everything that changes from step to step is read from tensors on the device, and the grids depend on shapes alone. A
captured CUDA graph therefore stays valid while texts grow and cache rows are reassigned. Cached keys are read in place.

T tokens of all segments, S segments, N query heads, M key/value heads, G = N/M query heads per key head, D head dim, L
capacity of a cache row; R rows of a tile (queries times G), B keys of a block, V a slice of the values' D, P splits of
a canvas' keys.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.activations import Fp8Rows
from gesso.backends.cuda.kernels.attention_tiles import Tiles, tiles
from gesso.backends.cuda.kernels.gluon_kernels import gluon_kernels
from gesso.backends.cuda.kernels.linear import FP8, fp8, fp8_scale
from gesso.backends.cuda.kernels.segments import (
    BLOCK,
    CACHED,
    CAUSAL,
    COLUMNS,
    END,
    FRESH,
    LENGTH,
    OFFSET,
    SHORT,
    START,
    CacheRows,
    Segment,
    Table,
    tables,
)  # fmt: skip
from gesso.cards.running import card_of

LOG2E = tl.constexpr(1.4426950408889634)


class Attend(Protocol):
    """Attention of one layer: like `Attend` of `gesso/model/attention.py`, or in FP8 rows."""

    def __call__(self, q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, *, low: bool = False) -> Tensor | Fp8Rows: ...


def attends(caches: Sequence[CacheRows], segments: Sequence[Segment], longest: int) -> list[Attend]:
    """Return the attention of every layer, for segments of at most `longest` tokens."""
    return [partial(attention, table=each) for each in tables(caches, segments, longest)]


def attention(
    q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, table: Table, shape: Tiles | None = None, *, low: bool = False
) -> Tensor | Fp8Rows:
    """Return the attention outputs [T, N, D], and append text to the cache.

    Padding gets zeros. Other tokens that belong to no segment are left unset. low: the caller takes FP8 rows [T, N D].
    It gets them if splits are combined, because the kernel that does so has whole rows.
    """
    _check(q_TND, k_TMD, v_TMD)
    tokens, heads, dim = q_TND.shape
    kv_heads = k_TMD.shape[1]
    shape = shape or tiles(dim, q_TND.dtype, card_of(q_TND.device), table.longest * (heads // kv_heads))
    if shape.roles and table.blocks:  # only `_attend` masks the blocks of images; its bits are the same
        shape = replace(shape, warps=8, roles=False)
    splits = shape.splits if table.parts else 1

    new = torch.zeros if table.appends or table.pads else torch.empty
    out_TND = new(tokens, heads, dim, dtype=q_TND.dtype, device=q_TND.device)
    # Outputs over the keys of one split alone, and log2 of the sum of their weights, by which splits are combined.
    part_TPND = out_TND if splits == 1 else out_TND.new_empty(tokens, splits, heads, dim)
    lse_TPN = torch.empty(tokens, splits, heads, dtype=torch.float32, device=q_TND.device)

    _launch_attend(q_TND, k_TMD, v_TMD, out_TND, part_TPND, lse_TPN, table, shape)
    outputs: Tensor | Fp8Rows = out_TND
    if splits > 1 and low and heads == triton.next_power_of_2(heads):
        # Rows without a token keep zeros.
        low_TI = new(tokens, heads * dim, dtype=FP8, device=q_TND.device)
        scale_T = new(tokens, device=q_TND.device)
        _combine_low[table.longest, len(table.segments_S7)](
            part_TPND, lse_TPN, out_TND, low_TI, scale_T, table.segments_S7,
            HEADS=heads, DIM=dim, SPLITS=splits, num_warps=8,
        )  # fmt: skip
        outputs = Fp8Rows(low_TI, scale_T, q_TND.dtype)
    elif splits > 1:
        rows = max(2048 // dim, 1)
        _combine[triton.cdiv(table.longest * heads, rows), len(table.segments_S7)](
            part_TPND, lse_TPN, out_TND, table.segments_S7, HEADS=heads, DIM=dim, SPLITS=splits, ROWS=rows
        )
    if table.appends:
        # Launch after all reads: in a ring buffer, new tokens overwrite slots that the first queries still read.
        _append[triton.cdiv(table.longest, 16), kv_heads, len(table.segments_S7)](
            k_TMD, v_TMD, table.segments_S7, table.rows_S3, *k_TMD.stride()[:2], *v_TMD.stride()[:2],
            HEADS=kv_heads, DIM=dim, TOKENS=16,
        )  # fmt: skip
    return outputs


def _launch_attend(
    q_TND: Tensor,
    k_TMD: Tensor,
    v_TMD: Tensor,
    out_TND: Tensor,
    part_TPND: Tensor,
    lse_TPN: Tensor,
    table: Table,
    shape: Tiles,
) -> None:
    """Compute all tiles: into `out_TND`, or into the splits of `part_TPND`."""
    _, heads, dim = q_TND.shape
    kv_heads = k_TMD.shape[1]
    groups = heads // kv_heads
    splits = lse_TPN.shape[1]
    row_tiles = triton.cdiv(table.longest * groups, shape.rows)
    grid = row_tiles, kv_heads * splits * (dim // shape.values), len(table.segments_S7)
    tensors = (
        q_TND, k_TMD, v_TMD, out_TND, part_TPND, lse_TPN, table.segments_S7, table.rows_S3,
        *q_TND.stride()[:2], *k_TMD.stride()[:2], *v_TMD.stride()[:2],
    )  # fmt: skip
    constants: dict[str, Any] = {
        "WINDOW": table.window or 0, "HAS_TEXT": table.appends, "GROUPS": groups, "HEADS": kv_heads, "DIM": dim,
        "KEYS": shape.keys, "VALUES": shape.values, "SPLITS": splits, "num_warps": shape.warps,
    }  # fmt: skip
    if shape.roles:
        hopper = gluon_kernels("attention_hopper")
        assert hopper is not None, "tiles with separate roles need it"
        hopper.attend_hopper[grid](*tensors, **constants, STAGES=shape.stages)
    else:
        _attend[grid](*tensors, **constants, HAS_BLOCKS=table.blocks, ROWS=shape.rows, num_stages=shape.stages)


def _check(q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor) -> None:
    dim = q_TND.shape[2]
    if dim < 16 or dim & (dim - 1):
        raise ValueError(f"the head dimension must be a power of two and at least 16, got {dim}")
    if not q_TND.dtype == k_TMD.dtype == v_TMD.dtype:
        raise ValueError(
            f"queries, keys and values must share one dtype, got {q_TND.dtype}, {k_TMD.dtype}, {v_TMD.dtype}"
        )
    for tensor in (q_TND, k_TMD, v_TMD):
        alignments = [tensor.stride(0) * tensor.itemsize, tensor.stride(1) * tensor.itemsize, tensor.data_ptr()]
        if tensor.stride(2) != 1 or any(alignment % 16 for alignment in alignments):
            raise ValueError("heads must be contiguous and start at multiples of 16 bytes")


@triton.jit
def _attend(
    q_ptr, k_ptr, v_ptr, out_ptr, part_ptr, lse_ptr, segment_ptr, row_ptr,
    q_token, q_head, k_token, k_head, v_token, v_head,
    WINDOW: tl.constexpr,
    HAS_TEXT: tl.constexpr, HAS_BLOCKS: tl.constexpr,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Compute one tile of rows of one segment with FlashAttention (arXiv 2205.14135), keys before the segment first.

    Grid: (row tiles of the longest segment, M * SPLITS * D / VALUES, S); programs without work return. q_ptr, k_ptr,
    v_ptr are [T, heads, D] with the strides that follow. out_ptr is [T, N, D]; part_ptr [T, P, N, D] and lse_ptr [T, P,
    N] hold the splits. segment_ptr and row_ptr are the tensors of `Table`. WINDOW 0 means no sliding window. HAS_TEXT:
    whether a segment is text; without text the masks are cheaper, and the sums are the same. HAS_BLOCKS: whether a
    text is the block of an image.

    The blocks of a segment are counted from the first key that its tile sees, cached or from this call, and taken in
    order. Those of a canvas, or of a short text, are divided into SPLITS runs of blocks, each accumulated separately.
    So the sums do not depend on other segments.

    Tiles are sized so that it does not wait for the L2 cache; see `attention_tiles.py`.
    """
    segment_ptr += tl.program_id(2) * COLUMNS
    length = tl.load(segment_ptr + LENGTH)
    causal = tl.load(segment_ptr + CAUSAL)
    # The last tiles of a text see most keys. They start first, so that the programs that end last are short.
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    head = tl.program_id(1) % HEADS
    split = tl.program_id(1) // HEADS % SPLITS
    unsplit = (causal != 0) & (length > SHORT)
    if (tile >= length * GROUPS) | (unsplit & (split > 0)):
        return
    offset = tl.load(segment_ptr + OFFSET)
    start = tl.load(segment_ptr + START)
    cached = tl.load(segment_ptr + CACHED)
    fresh = tl.load(segment_ptr + FRESH)

    d_D = tl.arange(0, DIM)
    value_V = tl.program_id(1) // (HEADS * SPLITS) * VALUES + tl.arange(0, VALUES)
    row_R = tile + tl.arange(0, ROWS)
    # Surplus rows of the last tile repeat the last query: no row is without a key, and every load is in bounds.
    query_R = tl.minimum(row_R // GROUPS, length - 1)
    token_R = (offset + query_R).to(tl.int64)
    head_R = head * GROUPS + row_R % GROUPS
    valid_R = row_R < length * GROUPS

    # Each row sees the positions from first_R to last_R; the tile sees those from low up to, but not including, top.
    # All rows of a canvas share one range. In a text, the range moves with the row. In a block it ends with the block,
    # and begins no later than the block does, which may be longer than the window.
    first_query = tile // GROUPS
    last_query = tl.minimum((tile + ROWS - 1) // GROUPS, length - 1)
    last_R = start + tl.where(causal != 0, query_R, length - 1)
    top = start + tl.where(causal != 0, last_query, length - 1) + 1
    first_R = tl.zeros_like(query_R)
    low = start * 0
    if WINDOW:
        first_R = start + causal * query_R - (WINDOW - 1)
        low = tl.maximum(start + causal * first_query - (WINDOW - 1), 0)
    if HAS_BLOCKS:
        is_block = causal == BLOCK
        last_R = tl.where(is_block, start + length - 1, last_R)
        top = tl.where(is_block, start + length, top)
        if WINDOW:
            first_R = tl.where(is_block, start + tl.minimum(query_R - (WINDOW - 1), 0), first_R)
            low = tl.where(is_block, tl.maximum(start + tl.minimum(first_query - (WINDOW - 1), 0), 0), low)
    own_low = tl.maximum(low, start)
    past_blocks = tl.cdiv(tl.maximum(start - low, 0), KEYS)
    blocks = past_blocks + tl.cdiv(top - own_low, KEYS)

    run = tl.cdiv(blocks, tl.where(unsplit, 1, SPLITS))
    first_block = split * run
    last_block = tl.minimum(first_block + run, blocks)
    part_R = (token_R * SPLITS + split) * (HEADS * GROUPS) + head_R
    if first_block >= last_block:  # fewer blocks than splits: none is left for this one
        tl.store(lse_ptr + part_R, float("-inf"), mask=valid_R)
        return

    row_ptr += tl.program_id(2) * 3
    cached_k = tl.load(row_ptr).to(tl.pointer_type(k_ptr.dtype.element_ty)) + head * DIM
    cached_v = tl.load(row_ptr + 1).to(tl.pointer_type(v_ptr.dtype.element_ty)) + head * DIM
    capacity = tl.load(row_ptr + 2).to(tl.int32)
    low_slot = low % tl.maximum(capacity, 1)
    k_ptr += head * k_head
    v_ptr += head * v_head
    q_RD = tl.load(q_ptr + (token_R * q_token + head_R * q_head)[:, None] + d_D[None, :])

    peak_R = tl.full([ROWS], float("-inf"), tl.float32)  # of the scores, in powers of two
    total_R = tl.zeros([ROWS], tl.float32)
    sum_RV = tl.zeros([ROWS, VALUES], tl.float32)
    for block in range(first_block, last_block):
        own = block >= past_blocks
        base = tl.where(own, own_low + (block - past_blocks) * KEYS, low + block * KEYS)
        limit = tl.where(own, top, start)
        position_B = base + tl.arange(0, KEYS)

        # Beyond the limit the last key is loaded again and masked below, so that loads need no mask.
        key_B = tl.minimum(position_B, limit - 1)
        if HAS_TEXT:
            slot_B = key_B - low + low_slot
            slot_B = tl.where(slot_B >= capacity, slot_B - capacity, slot_B)
            in_cache_B = key_B < cached
            index_B = tl.where(in_cache_B, slot_B, key_B + tl.where(own, offset - start, fresh - cached)).to(tl.int64)
            k_B = tl.where(in_cache_B, cached_k, k_ptr) + index_B * tl.where(in_cache_B, HEADS * DIM, k_token)
            v_B = tl.where(in_cache_B, cached_v, v_ptr) + index_B * tl.where(in_cache_B, HEADS * DIM, v_token)
        else:  # the whole block is in the cache, or none of it
            index_B = key_B + tl.where(own, offset - start, low_slot - low)
            wrap_at = tl.where(own, 0x7FFFFFFF, capacity)
            index_B = tl.where(index_B >= wrap_at, index_B - wrap_at, index_B).to(tl.int64)
            k_B = tl.where(own, k_ptr, cached_k) + index_B * tl.where(own, k_token, HEADS * DIM)
            v_B = tl.where(own, v_ptr, cached_v) + index_B * tl.where(own, v_token, HEADS * DIM)
        # State the alignment of addresses from the table: otherwise the compiler loads element by element.
        k_B, v_B = tl.multiple_of(k_B, 16), tl.multiple_of(v_B, 16)
        k_BD = tl.load(k_B[:, None] + d_D[None, :])
        v_BV = tl.load(v_B[:, None] + value_V[None, :])

        score_RB = tl.dot(q_RD, tl.trans(k_BD), input_precision="ieee")
        if HAS_TEXT:
            visible_RB = position_B[None, :] <= tl.minimum(last_R, limit - 1)[:, None]
            if WINDOW:
                visible_RB = visible_RB & (position_B[None, :] >= first_R[:, None])
            score_RB = tl.where(visible_RB, score_RB, float("-inf"))
        else:  # all rows see the same keys
            score_RB += tl.where(position_B < limit, 0.0, float("-inf"))[None, :]

        new_R = tl.maximum(peak_R, tl.max(score_RB, 1) * LOG2E)
        # Avoid infinity minus infinity in a row that has seen no key yet.
        shift_R = tl.where(new_R == float("-inf"), 0.0, new_R) if HAS_TEXT else new_R
        weight_RB = tl.exp2(score_RB * LOG2E - shift_R[:, None])
        rescale_R = tl.exp2(peak_R - shift_R)
        total_R = total_R * rescale_R + tl.sum(weight_RB, 1)
        sum_RV = sum_RV * rescale_R[:, None]
        sum_RV = tl.dot(weight_RB.to(v_BV.dtype), v_BV, sum_RV, input_precision="ieee")
        peak_R = new_R

    # a row of text may see no key of a split; its maximum gives that split no weight
    total_R = tl.maximum(total_R, 1e-30)
    out_R = out_ptr + (token_R * (HEADS * GROUPS) + head_R) * DIM
    if SPLITS > 1:
        out_R = tl.multiple_of(tl.where(unsplit, out_R, part_ptr + part_R * DIM), 16)
        # All programs that share the values of a split store the same number.
        tl.store(lse_ptr + part_R, peak_R + tl.log2(total_R), mask=valid_R)
    out_RV = (sum_RV / total_R[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_R[:, None] + value_V[None, :], out_RV, mask=valid_R[:, None])


@triton.jit
def _combine(
    part_ptr, lse_ptr, out_ptr, segment_ptr,
    HEADS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Average the splits of some rows, each weighted by the sum of its softmax weights (arXiv 2311.01282).

    Grid: (N * longest / ROWS, S). part_ptr [T, P, N, D] and lse_ptr [T, P, N], in log2, come from `_attend`.
    Memory-bound.
    """
    segment_ptr += tl.program_id(1) * COLUMNS
    length = tl.load(segment_ptr + LENGTH)
    rows = length * HEADS
    if (tl.program_id(0) * ROWS >= rows) | ((tl.load(segment_ptr + CAUSAL) != 0) & (length > SHORT)):
        return
    d_D = tl.arange(0, DIM)
    row_R = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)
    token_R = (tl.load(segment_ptr + OFFSET) + row_R // HEADS).to(tl.int64)
    part_R = token_R * (SPLITS * HEADS) + row_R % HEADS

    out_RD = _average(part_ptr, lse_ptr, part_R, d_D, HEADS, DIM, SPLITS).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + ((token_R * HEADS + row_R % HEADS) * DIM)[:, None] + d_D[None, :], out_RD)


@triton.jit
def _combine_low(
    part_ptr, lse_ptr, out_ptr, low_ptr, scale_ptr, segment_ptr,
    HEADS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Average the splits of a token as `_combine` does, round them as it does, and quantize the row to FP8.

    Grid: (longest, S). The row of a text whose keys are not split is read from out [T, N, D]. low is [T, N D], scale
    [T]. Memory-bound.
    """
    segment_ptr += tl.program_id(1) * COLUMNS
    length = tl.load(segment_ptr + LENGTH)
    if tl.program_id(0) >= length:
        return
    token = (tl.load(segment_ptr + OFFSET) + tl.program_id(0)).to(tl.int64)
    head_N, d_D = tl.arange(0, HEADS), tl.arange(0, DIM)
    at_ND = token * (HEADS * DIM) + (head_N * DIM)[:, None] + d_D[None, :]
    if (tl.load(segment_ptr + CAUSAL) != 0) & (length > SHORT):
        out_ND = tl.load(out_ptr + at_ND)
    else:
        part_N = token * (SPLITS * HEADS) + head_N
        out_ND = _average(part_ptr, lse_ptr, part_N, d_D, HEADS, DIM, SPLITS).to(out_ptr.dtype.element_ty)
    rounded_ND = out_ND.to(tl.float32)
    scale = fp8_scale(tl.max(tl.max(tl.abs(rounded_ND), 1), 0))
    tl.store(low_ptr + at_ND, fp8(rounded_ND / scale))
    tl.store(scale_ptr + token, scale)


@triton.jit
def _average(part_ptr, lse_ptr, part_R, d_D, HEADS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr):
    """Return the weighted average of the splits of some rows. part_R are the rows of their first split."""
    peak_R = tl.load(lse_ptr + part_R)
    for split in tl.static_range(1, SPLITS):
        peak_R = tl.maximum(peak_R, tl.load(lse_ptr + part_R + split * HEADS))
    total_R = tl.zeros_like(peak_R)
    sum_RD = tl.zeros_like(part_R[:, None] + d_D[None, :]).to(tl.float32)
    for split in tl.static_range(SPLITS):
        weight_R = tl.exp2(tl.load(lse_ptr + part_R + split * HEADS) - peak_R)
        from_RD = part_ptr + ((part_R + split * HEADS) * DIM)[:, None] + d_D[None, :]
        # A split without keys was never written.
        part_RD = tl.load(from_RD, mask=(weight_R > 0)[:, None], other=0.0)
        total_R += weight_R
        sum_RD += weight_R[:, None] * part_RD.to(tl.float32)
    return sum_RD / total_R[:, None]


@triton.jit
def _append(
    k_ptr, v_ptr, segment_ptr, row_ptr, k_token, k_head, v_token, v_head,
    HEADS: tl.constexpr, DIM: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Copy the keys and values of text to its cache row.

    Grid: (longest / TOKENS, M, S). k and v are [T, M, D] with the strides that follow; tables as in `_attend`.
    """
    segment_ptr += tl.program_id(2) * COLUMNS
    length = tl.where(tl.load(segment_ptr + CAUSAL) != 0, tl.load(segment_ptr + LENGTH), 0)
    if tl.program_id(0) * TOKENS >= length:
        return
    row_ptr += tl.program_id(2) * 3
    capacity = tl.load(row_ptr + 2).to(tl.int32)

    head = tl.program_id(1)
    d_D = tl.arange(0, DIM)
    query_B = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    position_B = tl.load(segment_ptr + START) + query_B
    token_B = (tl.load(segment_ptr + OFFSET) + query_B).to(tl.int64)
    # If tokens share a slot of a ring buffer, only the last is written: programs run in no fixed order.
    kept_B1 = ((query_B < length) & (position_B >= tl.load(segment_ptr + END) - capacity))[:, None]
    slot_B = (position_B % tl.maximum(capacity, 1)).to(tl.int64) * (HEADS * DIM) + head * DIM
    cached_k_B = tl.multiple_of(tl.load(row_ptr).to(tl.pointer_type(k_ptr.dtype.element_ty)) + slot_B, 16)
    cached_v_B = tl.multiple_of(tl.load(row_ptr + 1).to(tl.pointer_type(v_ptr.dtype.element_ty)) + slot_B, 16)
    k_BD = tl.load(k_ptr + (token_B * k_token + head * k_head)[:, None] + d_D[None, :], mask=kept_B1)
    v_BD = tl.load(v_ptr + (token_B * v_token + head * v_head)[:, None] + d_D[None, :], mask=kept_B1)
    tl.store(cached_k_B[:, None] + d_D[None, :], k_BD, mask=kept_B1)
    tl.store(cached_v_B[:, None] + d_D[None, :], v_BD, mask=kept_B1)
