"""The attention of `ops/attention.py` as Triton kernels.

  1. `_attend`   every tile of queries over its keys; those of a canvas in several parts, each by a program of its own.
  2. `_combine`  a canvas' outputs from its parts, in one fixed order.
  3. `_append`   the text to the cache.

All that changes from step to step is read from tensors on the device, and the grid follows from shapes alone, so that
a captured CUDA graph stays valid while texts grow and rows change hands. Cached keys are read where they lie.

T tokens of all segments, S segments, N query heads, M key/value heads, G = N/M queries a key head, D head dim,
L capacity of a cache row; R rows of a tile (queries times G), B keys of a block, V a slice of the values' D, P parts of
a canvas' keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.kernels.linear import MANY
from gesso.backends.cuda.kernels.segments import (
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
from gesso.model.attention import Attend

LOG2E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class Tiles:
    rows: int  # R
    keys: int  # B
    values: int  # V: each program computes this many of the D numbers of its outputs
    warps: int
    stages: int  # blocks of keys and values in flight
    splits: int = 1  # P, part of the definition of a canvas' sums: never a function of what else is computed


def tiles(dim: int, dtype: torch.dtype, rows: int = MANY) -> Tiles:
    """What fits a Hopper multiprocessor: 227 KB of shared memory, 65,536 registers, at most 255 of them a thread.

    Every tile of rows reads all the keys and values it sees, most of them from the L2 cache, which feeds one of the 132
    multiprocessors some 40 KB a microsecond. 64 keys and values with D 256 are 64 KB, and 128 rows keep the matrix unit
    busy with them for 1.4 microseconds; 64 rows would wait for the cache instead. So R = 128.

    The sums of the outputs, R x V float32, stay in registers all along: 128 x 256 over eight warps is 128 a thread, and
    the scores (R x B), the weights made of them and the addresses of the keys take the rest. Shared memory holds the
    queries, R x D, and `stages` blocks of keys, B x D, and of values, B x V, two bytes a number.

    D 256:  64 + 3 x (16 + 16) = 160 KB with 32 keys. With 64 only two stages fit, and then nothing is fetched ahead.
    D 512:  128 + 64 + 32 = 224 KB with 64 keys. All of the 128 x 512 sums would be 256 registers. With 16 warps each
            would have half, but both halves compute all the scores, for these are split by rows only. That is the
            price of two programs with half of the values each, too.

    One canvas of 256 tokens and 16 query heads is then 32 programs (D 256, 8 key heads) or 64 (D 512, 2 key heads,
    halves of the values). With its keys in 4 and in 2 parts both are 128, whatever the length of the text. More parts
    cost more than they bring: each is written, read again and rounded to two bytes in between, 8.4 MB a canvas and
    layer in both cases (and about a quarter more rounding error in the output than one sum has).

    Segments whose `rows` all fit into half a tile get that: a large one would be mostly empty, and as slow as if it
    were full. Both have 16 rows a warp and the same blocks of keys, so they use the same matrix instruction, spread a
    row over the same threads, and give the same bits. A tile of 16 rows would not: its warps would share each row.

    float32 does without the matrix units, which would round to ten bits: it is there to compare, not to be fast.
    """
    if dtype == torch.float32:
        return Tiles(rows=32, keys=16, values=min(dim, 128), warps=4, stages=1, splits=2)
    if rows <= 64 and dim > 256:
        return Tiles(rows=64, keys=64, values=256, warps=4, stages=1, splits=2)
    if rows <= 64:
        return Tiles(rows=64, keys=32, values=dim, warps=4, stages=3, splits=4)
    if dim > 256:
        return Tiles(rows=128, keys=64, values=256, warps=8, stages=1, splits=2)
    return Tiles(rows=128, keys=32, values=dim, warps=8, stages=3, splits=4)


def attends(caches: Sequence[CacheRows], segments: Sequence[Segment]) -> list[Attend]:
    """The attention of every layer."""
    return [partial(attention, table=each) for each in tables(caches, segments)]


def attention(q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, table: Table, shape: Tiles | None = None) -> Tensor:
    """[T, N, D]; text is appended to the cache. Tokens of T that belong to no segment get no value at all."""
    (tokens, heads, dim), kv_heads = q_TND.shape, k_TMD.shape[1]
    _check(q_TND, k_TMD, v_TMD)
    shape = shape or tiles(dim, q_TND.dtype, table.longest * (heads // kv_heads))
    out_TND = torch.empty(tokens, heads, dim, dtype=q_TND.dtype, device=q_TND.device)
    slots, groups, splits = len(table.segments_S7), heads // kv_heads, shape.splits if table.parts else 1
    # Outputs by the keys of one part alone, and log2 of the sum of these keys' weights: how much the part counts.
    part_TPND = out_TND if splits == 1 else out_TND.new_empty(tokens, splits, heads, dim)
    mass_TPN = torch.empty(tokens, splits, heads, dtype=torch.float32, device=q_TND.device)
    _attend[triton.cdiv(table.longest * groups, shape.rows), kv_heads * splits * (dim // shape.values), slots](
        q_TND, k_TMD, v_TMD, out_TND, part_TPND, mass_TPN, table.segments_S7, table.rows_S3,
        *q_TND.stride()[:2], *k_TMD.stride()[:2], *v_TMD.stride()[:2],
        WINDOW=table.window or 0, TEXTS=table.appends, GROUPS=groups, HEADS=kv_heads, DIM=dim,
        ROWS=shape.rows, KEYS=shape.keys, VALUES=shape.values, SPLITS=splits,
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    if splits > 1:
        rows = max(2048 // dim, 1)
        _combine[triton.cdiv(table.longest * heads, rows), slots](
            part_TPND, mass_TPN, out_TND, table.segments_S7, HEADS=heads, DIM=dim, SPLITS=splits, ROWS=rows
        )
    if table.appends:
        # Only when all have read: in a ring, new tokens take the place of what the first queries still see.
        _append[triton.cdiv(table.longest, 16), kv_heads, slots](
            k_TMD, v_TMD, table.segments_S7, table.rows_S3, *k_TMD.stride()[:2], *v_TMD.stride()[:2],
            HEADS=kv_heads, DIM=dim, TOKENS=16,
        )  # fmt: skip
    return out_TND


def _check(q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor) -> None:
    dim = q_TND.shape[2]
    if dim < 16 or dim & (dim - 1):
        raise ValueError(f"the head dim must be a power of two, at least 16, got {dim}")
    if not q_TND.dtype == k_TMD.dtype == v_TMD.dtype:
        raise ValueError(f"one dtype for all, got {q_TND.dtype}, {k_TMD.dtype}, {v_TMD.dtype}")
    for tensor in (q_TND, k_TMD, v_TMD):
        apart = [tensor.stride(0) * tensor.itemsize, tensor.stride(1) * tensor.itemsize, tensor.data_ptr()]
        if tensor.stride(2) != 1 or any(distance % 16 for distance in apart):
            raise ValueError("heads must be contiguous and start at multiples of 16 bytes")


@triton.jit
def _attend(
    q_ptr, k_ptr, v_ptr, out_ptr, part_ptr, mass_ptr, segment_ptr, row_ptr,
    q_token, q_head, k_token, k_head, v_token, v_head,
    WINDOW: tl.constexpr,  # 0: all of the text
    TEXTS: tl.constexpr,  # whether there is text among the segments; the same sums in either case
    GROUPS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one segment: FlashAttention (arXiv 2205.14135), the text before the segment first.

    A segment's blocks are counted from the first key its tile sees, whether that is cached or came in this call, and
    taken in order; those of a canvas, or of a short text, are cut into SPLITS runs of blocks, each a sum of its own.
    So its sums know nothing of other segments.
    """
    segment_ptr += tl.program_id(2) * COLUMNS
    length = tl.load(segment_ptr + LENGTH)
    causal = tl.load(segment_ptr + CAUSAL)
    # The last tiles of a text see most. They begin first, so that what ends last is short.
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    head = tl.program_id(1) % HEADS
    split = tl.program_id(1) // HEADS % SPLITS
    whole = (causal != 0) & (length > SHORT)
    if (tile >= length * GROUPS) | (whole & (split > 0)):
        return
    offset = tl.load(segment_ptr + OFFSET)
    start = tl.load(segment_ptr + START)
    cached = tl.load(segment_ptr + CACHED)
    fresh = tl.load(segment_ptr + FRESH)

    d_D = tl.arange(0, DIM)
    value_V = tl.program_id(1) // (HEADS * SPLITS) * VALUES + tl.arange(0, VALUES)
    row_R = tile + tl.arange(0, ROWS)
    # What is over in the last tile repeats the last query: no row without a key, and every load is in bounds.
    query_R = tl.minimum(row_R // GROUPS, length - 1)
    token_R = (offset + query_R).to(tl.int64)
    head_R = head * GROUPS + row_R % GROUPS
    there_R = row_R < length * GROUPS

    # Each row sees the positions from first_R to last_R, the tile those from low to before top. A canvas has one first
    # and one last for all, a text moves both along.
    first_query = tile // GROUPS
    last_query = tl.minimum((tile + ROWS - 1) // GROUPS, length - 1)
    last_R = start + tl.where(causal != 0, query_R, length - 1)
    top = start + tl.where(causal != 0, last_query, length - 1) + 1
    first_R = tl.zeros_like(query_R)
    low = start * 0
    if WINDOW:
        first_R = start + causal * query_R - (WINDOW - 1)
        low = tl.maximum(start + causal * first_query - (WINDOW - 1), 0)
    own_low = tl.maximum(low, start)
    past_blocks = tl.cdiv(tl.maximum(start - low, 0), KEYS)
    blocks = past_blocks + tl.cdiv(top - own_low, KEYS)

    run = tl.cdiv(blocks, tl.where(whole, 1, SPLITS))
    first_block = split * run
    last_block = tl.minimum(first_block + run, blocks)
    part_R = (token_R * SPLITS + split) * (HEADS * GROUPS) + head_R
    if first_block >= last_block:  # so few blocks that none is left for this part
        tl.store(mass_ptr + part_R, float("-inf"), mask=there_R)
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

        # Beyond the limit the last key is loaded again, and then not seen: loads need no mask.
        key_B = tl.minimum(position_B, limit - 1)
        if TEXTS:
            slot_B = key_B - low + low_slot
            slot_B = tl.where(slot_B >= capacity, slot_B - capacity, slot_B)
            in_cache_B = key_B < cached
            at_B = tl.where(in_cache_B, slot_B, key_B + tl.where(own, offset - start, fresh - cached)).to(tl.int64)
            k_B = tl.where(in_cache_B, cached_k, k_ptr) + at_B * tl.where(in_cache_B, HEADS * DIM, k_token)
            v_B = tl.where(in_cache_B, cached_v, v_ptr) + at_B * tl.where(in_cache_B, HEADS * DIM, v_token)
        else:  # all of the block is in the cache, or none of it
            at_B = key_B + tl.where(own, offset - start, low_slot - low)
            room = tl.where(own, 0x7FFFFFFF, capacity)
            at_B = tl.where(at_B >= room, at_B - room, at_B).to(tl.int64)
            k_B = tl.where(own, k_ptr, cached_k) + at_B * tl.where(own, k_token, HEADS * DIM)
            v_B = tl.where(own, v_ptr, cached_v) + at_B * tl.where(own, v_token, HEADS * DIM)
        # The compiler cannot know how an address from a table is aligned; untold, it would load number by number.
        k_B, v_B = tl.multiple_of(k_B, 16), tl.multiple_of(v_B, 16)
        k_BD = tl.load(k_B[:, None] + d_D[None, :])
        v_BV = tl.load(v_B[:, None] + value_V[None, :])

        score_RB = tl.dot(q_RD, tl.trans(k_BD), input_precision="ieee")
        if TEXTS:
            seen_RB = position_B[None, :] <= tl.minimum(last_R, limit - 1)[:, None]
            if WINDOW:
                seen_RB = seen_RB & (position_B[None, :] >= first_R[:, None])
            score_RB = tl.where(seen_RB, score_RB, float("-inf"))
        else:  # all rows see the same keys
            score_RB += tl.where(position_B < limit, 0.0, float("-inf"))[None, :]

        new_R = tl.maximum(peak_R, tl.max(score_RB, 1) * LOG2E)
        # A row that has seen nothing yet must not subtract infinity from itself.
        shift_R = tl.where(new_R == float("-inf"), 0.0, new_R) if TEXTS else new_R
        weight_RB = tl.exp2(score_RB * LOG2E - shift_R[:, None])
        fade_R = tl.exp2(peak_R - shift_R)
        total_R = total_R * fade_R + tl.sum(weight_RB, 1)
        sum_RV = sum_RV * fade_R[:, None]
        sum_RV = tl.dot(weight_RB.to(v_BV.dtype), v_BV, sum_RV, input_precision="ieee")
        peak_R = new_R

    total_R = tl.maximum(total_R, 1e-30)  # a row of a text may see nothing of a part; it weighs nothing, by its peak
    out_R = out_ptr + (token_R * (HEADS * GROUPS) + head_R) * DIM
    if SPLITS > 1:
        out_R = tl.multiple_of(tl.where(whole, out_R, part_ptr + part_R * DIM), 16)
        # The same from all programs that share the values of a part.
        tl.store(mass_ptr + part_R, peak_R + tl.log2(total_R), mask=there_R)
    out_RV = (sum_RV / total_R[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_R[:, None] + value_V[None, :], out_RV, mask=there_R[:, None])


@triton.jit
def _combine(
    part_ptr, mass_ptr, out_ptr, segment_ptr,
    HEADS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Some rows of a segment in parts: their mean, each as heavy as its keys are together (arXiv 2311.01282)."""
    segment_ptr += tl.program_id(1) * COLUMNS
    length = tl.load(segment_ptr + LENGTH)
    rows = length * HEADS
    if (tl.program_id(0) * ROWS >= rows) | ((tl.load(segment_ptr + CAUSAL) != 0) & (length > SHORT)):
        return
    d_D = tl.arange(0, DIM)
    row_R = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)
    token_R = (tl.load(segment_ptr + OFFSET) + row_R // HEADS).to(tl.int64)
    part_R = token_R * (SPLITS * HEADS) + row_R % HEADS

    peak_R = tl.full([ROWS], float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        peak_R = tl.maximum(peak_R, tl.load(mass_ptr + part_R + split * HEADS))
    total_R = tl.zeros([ROWS], tl.float32)
    sum_RD = tl.zeros([ROWS, DIM], tl.float32)
    for split in tl.static_range(SPLITS):
        weight_R = tl.exp2(tl.load(mass_ptr + part_R + split * HEADS) - peak_R)
        from_RD = part_ptr + ((part_R + split * HEADS) * DIM)[:, None] + d_D[None, :]
        # A part without keys was never written.
        part_RD = tl.load(from_RD, mask=(weight_R > 0)[:, None], other=0.0)
        total_R += weight_R
        sum_RD += weight_R[:, None] * part_RD.to(tl.float32)
    out_RD = (sum_RD / total_R[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + ((token_R * HEADS + row_R % HEADS) * DIM)[:, None] + d_D[None, :], out_RD)


@triton.jit
def _append(
    k_ptr, v_ptr, segment_ptr, row_ptr, k_token, k_head, v_token, v_head,
    HEADS: tl.constexpr, DIM: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    segment_ptr += tl.program_id(2) * COLUMNS
    length = tl.load(segment_ptr + LENGTH) * tl.load(segment_ptr + CAUSAL)
    if tl.program_id(0) * TOKENS >= length:
        return
    row_ptr += tl.program_id(2) * 3
    capacity = tl.load(row_ptr + 2).to(tl.int32)

    head = tl.program_id(1)
    d_D = tl.arange(0, DIM)
    query_B = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    position_B = tl.load(segment_ptr + START) + query_B
    token_B = (tl.load(segment_ptr + OFFSET) + query_B).to(tl.int64)
    # Of tokens that share a slot the last one stays; programs run in no order, so the others are not written at all.
    kept_B1 = ((query_B < length) & (position_B >= tl.load(segment_ptr + END) - capacity))[:, None]
    slot_B = (position_B % tl.maximum(capacity, 1)).to(tl.int64) * (HEADS * DIM) + head * DIM
    cached_k_B = tl.multiple_of(tl.load(row_ptr).to(tl.pointer_type(k_ptr.dtype.element_ty)) + slot_B, 16)
    cached_v_B = tl.multiple_of(tl.load(row_ptr + 1).to(tl.pointer_type(v_ptr.dtype.element_ty)) + slot_B, 16)
    k_BD = tl.load(k_ptr + (token_B * k_token + head * k_head)[:, None] + d_D[None, :], mask=kept_B1)
    v_BD = tl.load(v_ptr + (token_B * v_token + head * v_head)[:, None] + d_D[None, :], mask=kept_B1)
    tl.store(cached_k_B[:, None] + d_D[None, :], k_BD, mask=kept_B1)
    tl.store(cached_v_B[:, None] + d_D[None, :], v_BD, mask=kept_B1)
