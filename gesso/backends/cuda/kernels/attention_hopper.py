"""`_attend` of `attention.py` for Hopper GPUs, as warps with separate roles: one warpgroup loads keys and values, two
multiply 64 rows each. `_attend` is the specification, and gives the same bits.

In `_attend` all warps wait for loads, multiply, and compute softmax weights in turns. Here, loads are always in flight,
and the tensor cores multiply weights and values of a block while the weights of the next are computed.

Shared memory holds the queries and, per stage, one block of keys and values in chunks of CHUNK columns. A chunk is
refilled as soon as both warpgroups have multiplied it. Letters as in `attention.py`; C columns of a chunk.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from gesso.backends.cuda.kernels.gluon_names import barrier, copy_to_shared
from gesso.backends.cuda.kernels.segments import CACHED, CAUSAL, COLUMNS, FRESH, LENGTH, OFFSET, SHORT, START

ROWS = gl.constexpr(64)  # of one warpgroup
CHUNK = gl.constexpr(128)
LOG2E = gl.constexpr(1.4426950408889634)
# 16 bytes per thread: a warp copies two rows of a chunk
COPY = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
SHARED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2))


@gluon.jit
def addresses(
    LAYOUT: gl.constexpr, block, past_blocks, low, own_low, top, start, offset, cached, fresh, low_slot, capacity,
    cached_ptr, ptr, token_stride, HAS_TEXT: gl.constexpr, CACHED_STRIDE: gl.constexpr, KEYS: gl.constexpr,
):  # fmt: skip
    """Return the addresses [B, 1] of the keys of a block, or of its values, as in `_attend`."""
    own = block >= past_blocks
    base = gl.where(own, own_low + (block - past_blocks) * KEYS, low + block * KEYS)
    limit = gl.where(own, top, start)
    key_B = gl.minimum(base + gl.arange(0, KEYS, gl.SliceLayout(1, LAYOUT)), limit - 1)
    if HAS_TEXT:
        slot_B = key_B - low + low_slot
        slot_B = gl.where(slot_B >= capacity, slot_B - capacity, slot_B)
        in_cache_B = key_B < cached
        index_B = gl.where(in_cache_B, slot_B, key_B + gl.where(own, offset - start, fresh - cached)).to(gl.int64)
        ptr_B = gl.where(in_cache_B, cached_ptr, ptr) + index_B * gl.where(in_cache_B, CACHED_STRIDE, token_stride)
    else:
        index_B = key_B + gl.where(own, offset - start, low_slot - low)
        wrap_at = gl.where(own, 0x7FFFFFFF, capacity)
        index_B = gl.where(index_B >= wrap_at, index_B - wrap_at, index_B).to(gl.int64)
        ptr_B = gl.where(own, ptr, cached_ptr) + index_B * gl.where(own, token_stride, CACHED_STRIDE)
    return gl.multiple_of(ptr_B, 16)[:, None]


@gluon.jit
def _load_block(
    chunks, full, empty, turn, block, past_blocks, low, own_low, top, start, offset, cached, fresh, low_slot, capacity,
    cached_ptr, ptr, token_stride,
    HAS_TEXT: gl.constexpr, HEADS: gl.constexpr, DIM: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load the keys of a block, or its values, as soon as each chunk is free."""
    ptr_B1 = addresses(
        COPY, block, past_blocks, low, own_low, top, start, offset, cached, fresh, low_slot, capacity,
        cached_ptr, ptr, token_stride, HAS_TEXT, HEADS * DIM, KEYS,
    )  # fmt: skip
    ptr_BC = ptr_B1 + gl.arange(0, CHUNK, gl.SliceLayout(0, COPY))[None, :]
    COUNT: gl.constexpr = chunks.shape[0] // STAGES
    for chunk in gl.static_range(COUNT):
        at = turn % STAGES * COUNT + chunk
        mbarrier.wait(empty.index(at), turn // STAGES % 2 ^ 1)
        copy_to_shared(chunks.index(at), ptr_BC + chunk * CHUNK)
        async_copy.mbarrier_arrive(full.index(at), increment_count=False)


@gluon.jit
def _load_blocks(
    keys, values, k_full, k_empty, v_full, v_empty, first_block, last_block, past_blocks, low, own_low, top,
    start, offset, cached, fresh, low_slot, capacity, cached_k, cached_v, k_ptr, v_ptr, k_token, v_token,
    HAS_TEXT: gl.constexpr, HEADS: gl.constexpr, DIM: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load the keys and values of all blocks, in the order in which `_multiply` makes space for them: the keys of a
    block before the values of the block before it.
    """
    for step in range(first_block, last_block + 1):
        if step < last_block:
            _load_block(
                keys, k_full, k_empty, step - first_block, step, past_blocks, low, own_low, top, start, offset, cached,
                fresh, low_slot, capacity, cached_k, k_ptr, k_token, HAS_TEXT, HEADS, DIM, KEYS, STAGES,
            )  # fmt: skip
        # The space of the first values is free, so they need not wait.
        block = gl.where(step == first_block, step, step - 1)
        if step != first_block + 1:
            _load_block(
                values, v_full, v_empty, block - first_block, block, past_blocks, low, own_low, top, start, offset,
                cached, fresh, low_slot, capacity, cached_v, v_ptr, v_token, HAS_TEXT, HEADS, DIM, KEYS, STAGES,
            )  # fmt: skip
    async_copy.wait_group(0)


@gluon.jit
def softmax_weights(
    score_RB, peak_R, total_R, first_R, last_R, block, past_blocks, low, own_low, top, start,
    WINDOW: gl.constexpr, HAS_TEXT: gl.constexpr, KEYS: gl.constexpr,
):  # fmt: skip
    """Return the softmax weights of a block, the factor of earlier sums, and the new maximum and total."""
    layout: gl.constexpr = score_RB.type.layout
    own = block >= past_blocks
    base = gl.where(own, own_low + (block - past_blocks) * KEYS, low + block * KEYS)
    limit = gl.where(own, top, start)
    position_B = base + gl.arange(0, KEYS, gl.SliceLayout(0, layout))
    if HAS_TEXT:
        visible_RB = position_B[None, :] <= gl.minimum(last_R, limit - 1)[:, None]
        if WINDOW:
            visible_RB = visible_RB & (position_B[None, :] >= first_R[:, None])
        score_RB = gl.where(visible_RB, score_RB, float("-inf"))
    else:
        score_RB += gl.where(position_B < limit, 0.0, float("-inf"))[None, :]
    new_R = gl.maximum(peak_R, gl.max(score_RB, 1) * LOG2E)
    shift_R = gl.where(new_R == float("-inf"), 0.0, new_R) if HAS_TEXT else new_R
    weight_RB = gl.exp2(score_RB * LOG2E - shift_R[:, None])
    rescale_R = gl.exp2(peak_R - shift_R)
    total_R = total_R * rescale_R + gl.sum(weight_RB, 1)
    return weight_RB.to(gl.bfloat16), rescale_R, new_R, total_R


@gluon.jit
def _multiply(
    group: gl.constexpr, queries, keys, values, k_full, k_empty, v_full, v_empty,
    q_ptr, out_ptr, part_ptr, lse_ptr, q_token, q_head,
    tile, head, split, value, unsplit, length, causal, offset,
    first_block, last_block, past_blocks, low, own_low, top, start,
    WINDOW: gl.constexpr, HAS_TEXT: gl.constexpr, GROUPS: gl.constexpr, HEADS: gl.constexpr, DIM: gl.constexpr,
    KEYS: gl.constexpr, VALUES: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute the outputs of 64 rows of the tile."""
    scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHUNK, 16])
    K_CHUNKS: gl.constexpr = DIM // CHUNK
    gl.static_assert(VALUES == 2 * CHUNK)

    # The queries of these rows, in chunks.
    row_R = tile + group * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, COPY))
    query_R = gl.minimum(row_R // GROUPS, length - 1)
    q_R = q_ptr + (offset + query_R).to(gl.int64) * q_token + (head * GROUPS + row_R % GROUPS) * q_head
    q_RC = gl.multiple_of(q_R, 16)[:, None] + gl.arange(0, CHUNK, gl.SliceLayout(0, COPY))[None, :]
    for chunk in gl.static_range(K_CHUNKS):
        copy_to_shared(queries.index(group * K_CHUNKS + chunk), q_RC + chunk * CHUNK)
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    barrier()

    row_R = tile + group * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, scores))
    query_R = gl.minimum(row_R // GROUPS, length - 1)
    last_R = start + gl.where(causal != 0, query_R, length - 1)
    first_R = start + causal * query_R - (WINDOW - 1)

    peak_R = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, scores))
    total_R = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, scores))
    left_RC = gl.full([ROWS, CHUNK], 0.0, gl.float32, sums)
    right_RC = gl.full([ROWS, CHUNK], 0.0, gl.float32, sums)

    # Scores of the first block.
    score_RB = gl.full([ROWS, KEYS], 0.0, gl.float32, scores)
    for chunk in gl.static_range(K_CHUNKS):
        mbarrier.wait(k_full.index(chunk), 0)
        score_RB = warpgroup_mma(
            queries.index(group * K_CHUNKS + chunk), keys.index(chunk).permute((1, 0)), score_RB,
            use_acc=chunk > 0, is_async=True,
        )  # fmt: skip
    score_RB = warpgroup_mma_wait(0, deps=[score_RB])
    for chunk in gl.static_range(K_CHUNKS):
        mbarrier.arrive(k_empty.index(chunk))
    weight_RB, rescale_R, peak_R, total_R = softmax_weights(
        score_RB, peak_R, total_R, first_R, last_R, first_block, past_blocks, low, own_low, top, start,
        WINDOW, HAS_TEXT, KEYS,
    )  # fmt: skip
    weight_RB = gl.convert_layout(weight_RB, gl.DotOperandLayout(0, sums, 2))

    if first_block + 1 < last_block:
        mbarrier.wait(k_full.index((1 % STAGES) * K_CHUNKS), 1 // STAGES % 2)
    for block in range(first_block + 1, last_block):
        turn = block - first_block
        same = gl.minimum(start + block, 0)  # 0, but the compiler does not know: it keeps no addresses in registers
        k_at = turn % STAGES * K_CHUNKS + same
        q_at = group * K_CHUNKS + same
        v_at = (turn - 1) % STAGES * 2 + same

        # Scores of this block; the end of the iteration before has waited for its first chunk.
        zero_RB = gl.full([ROWS, KEYS], 0.0, gl.float32, scores)
        score_RB = warpgroup_mma(
            queries.index(q_at), keys.index(k_at).permute((1, 0)), zero_RB, use_acc=False, is_async=True
        )
        if turn > 1:
            mbarrier.arrive(v_empty.index((turn - 2) % STAGES * 2))
            mbarrier.arrive(v_empty.index((turn - 2) % STAGES * 2 + 1))
        for chunk in gl.static_range(1, K_CHUNKS):
            mbarrier.wait(k_full.index(k_at + chunk), turn // STAGES % 2)
            score_RB = warpgroup_mma(
                queries.index(q_at + chunk), keys.index(k_at + chunk).permute((1, 0)), score_RB, is_async=True
            )
            score_RB = warpgroup_mma_wait(1, deps=[score_RB])
            mbarrier.arrive(k_empty.index(k_at + chunk - 1))

        # Weights and values of the block before.
        factor_R1 = gl.convert_layout(rescale_R, gl.SliceLayout(1, sums))[:, None]
        left_RC, right_RC = left_RC * factor_R1, right_RC * factor_R1
        mbarrier.wait(v_full.index(v_at), (turn - 1) // STAGES % 2)
        left_RC = warpgroup_mma(weight_RB, values.index(v_at), left_RC, is_async=True)
        mbarrier.wait(v_full.index(v_at + 1), (turn - 1) // STAGES % 2)
        right_RC = warpgroup_mma(weight_RB, values.index(v_at + 1), right_RC, is_async=True)

        # Weights of this block, meanwhile.
        score_RB = warpgroup_mma_wait(2, deps=[score_RB])
        mbarrier.arrive(k_empty.index(k_at + K_CHUNKS - 1))
        new_RB, rescale_R, peak_R, total_R = softmax_weights(
            score_RB, peak_R, total_R, first_R, last_R, block, past_blocks, low, own_low, top, start,
            WINDOW, HAS_TEXT, KEYS,
        )  # fmt: skip
        new_RB = gl.convert_layout(new_RB, gl.DotOperandLayout(0, sums, 2))
        # This wait comes before that for the products, because the compiler moves no arithmetic over its loop.
        # Otherwise it would compute the weights after the products.
        mbarrier.wait(
            k_full.index((turn + 1) % STAGES * K_CHUNKS), (turn + 1) // STAGES % 2, pred=block + 1 < last_block
        )
        left_RC, right_RC, weight_RB, new_RB, rescale_R = warpgroup_mma_wait(
            0, deps=[left_RC, right_RC, weight_RB, new_RB, rescale_R]
        )
        weight_RB = new_RB

    # Weights and values of the last block, which may wait for the space of those before.
    if first_block + 1 < last_block:
        mbarrier.arrive(v_empty.index((last_block - 2 - first_block) % STAGES * 2))
        mbarrier.arrive(v_empty.index((last_block - 2 - first_block) % STAGES * 2 + 1))
    factor_R1 = gl.convert_layout(rescale_R, gl.SliceLayout(1, sums))[:, None]
    left_RC, right_RC = left_RC * factor_R1, right_RC * factor_R1
    before = (last_block - 1 - first_block) % STAGES * 2
    phase = (last_block - 1 - first_block) // STAGES % 2
    mbarrier.wait(v_full.index(before), phase)
    left_RC = warpgroup_mma(weight_RB, values.index(before), left_RC, is_async=True)
    mbarrier.wait(v_full.index(before + 1), phase)
    right_RC = warpgroup_mma(weight_RB, values.index(before + 1), right_RC, is_async=True)
    left_RC, right_RC, weight_RB = warpgroup_mma_wait(0, deps=[left_RC, right_RC, weight_RB])

    total_R = gl.maximum(total_R, 1e-30)
    token_R = (offset + query_R).to(gl.int64)
    head_R = head * GROUPS + row_R % GROUPS
    part_R = (token_R * SPLITS + split) * (HEADS * GROUPS) + head_R
    if SPLITS > 1:
        gl.store(lse_ptr + part_R, peak_R + gl.log2(total_R), mask=row_R < length * GROUPS)
    # Through the space of the queries, so that threads store 16 bytes.
    total_R1 = gl.convert_layout(total_R, gl.SliceLayout(1, sums))[:, None]
    left, right = queries.index(group * K_CHUNKS), queries.index(group * K_CHUNKS + 1)
    left.store((left_RC / total_R1).to(gl.bfloat16))
    right.store((right_RC / total_R1).to(gl.bfloat16))
    barrier()
    row_R = tile + group * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, COPY))
    token_R = (offset + gl.minimum(row_R // GROUPS, length - 1)).to(gl.int64)
    head_R = head * GROUPS + row_R % GROUPS
    out_R = out_ptr + (token_R * (HEADS * GROUPS) + head_R) * DIM
    if SPLITS > 1:
        part_R = (token_R * SPLITS + split) * (HEADS * GROUPS) + head_R
        out_R = gl.where(unsplit, out_R, part_ptr + part_R * DIM)
    out_RC = gl.multiple_of(out_R + value, 16)[:, None] + gl.arange(0, CHUNK, gl.SliceLayout(0, COPY))[None, :]
    valid_RC = (row_R < length * GROUPS)[:, None]
    gl.store(out_RC, left.load(COPY), mask=valid_RC)
    gl.store(out_RC + CHUNK, right.load(COPY), mask=valid_RC)


@gluon.jit
def attend_hopper(
    q_ptr, k_ptr, v_ptr, out_ptr, part_ptr, lse_ptr, segment_ptr, row_ptr,
    q_token, q_head, k_token, k_head, v_token, v_head,
    WINDOW: gl.constexpr, HAS_TEXT: gl.constexpr, GROUPS: gl.constexpr, HEADS: gl.constexpr, DIM: gl.constexpr,
    KEYS: gl.constexpr, VALUES: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute one tile of 128 rows of one segment. Arguments and grid as in `_attend`, with 4 warps; bound by tensor
    cores.
    """
    segment_ptr += gl.program_id(2) * COLUMNS
    length = gl.load(segment_ptr + LENGTH)
    causal = gl.load(segment_ptr + CAUSAL)
    tile = (gl.num_programs(0) - 1 - gl.program_id(0)) * (2 * ROWS)
    head = gl.program_id(1) % HEADS
    split = gl.program_id(1) // HEADS % SPLITS
    value = gl.program_id(1) // (HEADS * SPLITS) * VALUES
    unsplit = (causal != 0) & (length > SHORT)
    if (tile >= length * GROUPS) | (unsplit & (split > 0)):
        return
    offset = gl.load(segment_ptr + OFFSET)
    start = gl.load(segment_ptr + START)
    cached = gl.load(segment_ptr + CACHED)
    fresh = gl.load(segment_ptr + FRESH)

    first_query = tile // GROUPS
    last_query = gl.minimum((tile + 2 * ROWS - 1) // GROUPS, length - 1)
    top = start + gl.where(causal != 0, last_query, length - 1) + 1
    low = start * 0
    if WINDOW:
        low = gl.maximum(start + causal * first_query - (WINDOW - 1), 0)
    own_low = gl.maximum(low, start)
    past_blocks = gl.cdiv(gl.maximum(start - low, 0), KEYS)
    blocks = past_blocks + gl.cdiv(top - own_low, KEYS)
    run = gl.cdiv(blocks, gl.where(unsplit, 1, SPLITS))
    first_block = split * run
    last_block = gl.minimum(first_block + run, blocks)
    if first_block >= last_block:  # fewer blocks than splits: none is left for this one
        row_R = tile + gl.arange(0, 2 * ROWS, gl.BlockedLayout([1], [32], [4], [0]))
        token_R = (offset + gl.minimum(row_R // GROUPS, length - 1)).to(gl.int64)
        part_R = (token_R * SPLITS + split) * (HEADS * GROUPS) + head * GROUPS + row_R % GROUPS
        gl.store(lse_ptr + part_R, float("-inf"), mask=row_R < length * GROUPS)
        return

    row_ptr += gl.program_id(2) * 3
    cached_k = gl.load(row_ptr).to(gl.pointer_type(k_ptr.dtype.element_ty)) + head * DIM
    cached_v = gl.load(row_ptr + 1).to(gl.pointer_type(v_ptr.dtype.element_ty)) + head * DIM + value
    capacity = gl.load(row_ptr + 2).to(gl.int32)
    low_slot = low % gl.maximum(capacity, 1)
    k_ptr += head * k_head
    v_ptr += head * v_head + value

    K_CHUNKS: gl.constexpr = STAGES * (DIM // CHUNK)
    V_CHUNKS: gl.constexpr = STAGES * (VALUES // CHUNK)
    queries = gl.allocate_shared_memory(gl.bfloat16, [2 * (DIM // CHUNK), ROWS, CHUNK], SHARED)
    keys = gl.allocate_shared_memory(gl.bfloat16, [K_CHUNKS, KEYS, CHUNK], SHARED)
    values = gl.allocate_shared_memory(gl.bfloat16, [V_CHUNKS, KEYS, CHUNK], SHARED)
    k_full = gl.allocate_shared_memory(gl.int64, [K_CHUNKS, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [K_CHUNKS, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [V_CHUNKS, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [V_CHUNKS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(K_CHUNKS):
        mbarrier.init(k_full.index(i), count=128)  # every thread that copies
        mbarrier.init(k_empty.index(i), count=2)
    for i in gl.static_range(V_CHUNKS):
        mbarrier.init(v_full.index(i), count=128)
        mbarrier.init(v_empty.index(i), count=2)

    gl.warp_specialize(
        [
            (_multiply, (
                gl.constexpr(0), queries, keys, values, k_full, k_empty, v_full, v_empty,
                q_ptr, out_ptr, part_ptr, lse_ptr, q_token, q_head,
                tile, head, split, value, unsplit, length, causal, offset,
                first_block, last_block, past_blocks, low, own_low, top, start,
                WINDOW, HAS_TEXT, GROUPS, HEADS, DIM, KEYS, VALUES, SPLITS, STAGES,
            )),
            (_multiply, (
                gl.constexpr(1), queries, keys, values, k_full, k_empty, v_full, v_empty,
                q_ptr, out_ptr, part_ptr, lse_ptr, q_token, q_head,
                tile, head, split, value, unsplit, length, causal, offset,
                first_block, last_block, past_blocks, low, own_low, top, start,
                WINDOW, HAS_TEXT, GROUPS, HEADS, DIM, KEYS, VALUES, SPLITS, STAGES,
            )),
            (_load_blocks, (
                keys, values, k_full, k_empty, v_full, v_empty, first_block, last_block, past_blocks, low, own_low, top,
                start, offset, cached, fresh, low_slot, capacity, cached_k, cached_v, k_ptr, v_ptr, k_token, v_token,
                HAS_TEXT, HEADS, DIM, KEYS, STAGES,
            )),
        ],
        [4, 4], [224, 56],
    )  # fmt: skip
