"""The kernel of `feed_forward.py`, in Gluon, for the copy engine and the warp-group products of Hopper GPUs.

As many programs as fit on the GPU work through one list of items. An item is a tile of rows times a block of columns:
64 of gate and the same 64 of up in the first products, 128 in the second. Three groups of warps of a program share its
items: one fetches weights, one fetches rows, one multiplies. The first two run ahead, over the borders of items, so
that the GPU never stops reading weights. All items of the second products come after those of the first. They wait for
the rows that they read by counters. This is safe because the launch is cooperative: all programs run at the same time.

The sums have the order and the rounding of `_up` and `_down` in `experts.py`, so rows have the same bits.

T tokens, H hidden, E experts, K experts per token, I expert width, D dense width, R = T * K pairs, N tiles of rows.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from gesso.backends.cuda.kernels.feed_forward_parts import FeedForward, TileList
from gesso.backends.cuda.kernels.gluon_names import barrier, copy_to_shared, fetch_tile

ROW_WARPS = gl.constexpr(2)  # warps that fetch rows
# Per thread: on average, and of the warps that fetch weights and rows. With two programs on an SM 128 is the most.
REGISTERS, WEIGHT_REGISTERS, ROW_REGISTERS = 128, gl.constexpr(56), gl.constexpr(80)


def launch(
    x: tuple[Tensor, Tensor | None, Tensor, Tensor | None], weights: FeedForward,
    out: tuple[Tensor, Tensor | None, Tensor], tiles: TileList, k: int, *, rows: int, stages: int, programs: int,
) -> None:  # fmt: skip
    """Run the kernel. x are the rows for the experts and for the dense MLP, each with its scales; out are the rows
    between the products, their scales, and the outputs.
    """
    tokens, hidden = x[0].shape
    depth = 128 // x[0].itemsize
    dense = [argument for each in weights.dense for argument in (_tiled(each.weight_OI, depth), each.scale_O)]
    sparse = [
        argument
        for each in (weights.gate_up, weights.down)
        for argument in (_tiled(each.weight_EOI.flatten(0, 1), depth), each.scale_EO)
    ]
    _feed_forward[(programs,)](
        *x, *dense, *sparse, *out, *tiles.tensors(), tokens, tokens * k, len(tiles.expert_N),
        H=hidden, WIDTH=weights.down.inputs, D=weights.dense_down.weight_OI.shape[1], K=k,
        ROWS=rows, DEPTH=depth, STAGES=stages, PROGRAMS=programs, LOW=x[1] is not None,
        num_warps=4, maxnreg=REGISTERS, launch_cooperative_grid=True,
    )  # fmt: skip


def _tiled(rows: Tensor, depth: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8 * rows.itemsize, rank=2)
    return TensorDescriptor.from_tensor(rows, [64, depth], layout)


# --- the list of items ------------------------------------------------------------------------------------------------


@gluon.jit
def first_item(item, dense_items, dense_tiles, BLOCKS: gl.constexpr):
    """Return an item of the first products: whether it is dense, its tile of rows, and its block of columns.

    Program p has the items p, p + PROGRAMS, and so on. Dense items come first; tiles that share a block of dense
    weights run at the same time.
    """
    dense = item < dense_items
    sparse_item = gl.maximum(item - dense_items, 0)
    tile = gl.where(dense, item % dense_tiles, sparse_item // BLOCKS)
    return dense, tile, gl.where(dense, item // dense_tiles, sparse_item % BLOCKS)


@gluon.jit
def second_share(
    program, first_items, dense_tiles, tiles,
    PROGRAMS: gl.constexpr, BLOCKS: gl.constexpr, FIRST: gl.constexpr, DENSE: gl.constexpr,
):  # fmt: skip
    """Return the share of a program in the second products, for `second_item`: its rank, the number of its dense items,
    the number of items that it has more than others and where they begin, where the items of all begin, and the number
    of its items.

    All programs should end at the same time. An item of the first products takes as long as FIRST sparse ones of the
    second, and a dense one as DENSE. A program that has fewer of those gets more sparse items instead.
    """
    rest = first_items % PROGRAMS  # so many programs have one item more of the first products; they have the last ranks
    rank = (program - rest + PROGRAMS) % PROGRAMS
    less = PROGRAMS - rest
    dense_items = dense_tiles * BLOCKS
    whole, part = dense_items // PROGRAMS, dense_items % PROGRAMS
    own_dense = whole + gl.where(rank < part, 1, 0)
    cost = gl.where(rank >= less, FIRST, 0) + DENSE * own_dense
    most = gl.maximum(
        gl.where(rest > 0, FIRST, 0) + DENSE * (whole + gl.where(part > less, 1, 0)),
        DENSE * (whole + gl.where(part > 0, 1, 0)),
    )
    before = rank * most - FIRST * gl.maximum(rank - less, 0) - DENSE * (whole * rank + gl.minimum(rank, part))
    begin = PROGRAMS * most - FIRST * rest - DENSE * dense_items
    items = tiles * BLOCKS
    more = gl.maximum(gl.minimum(most - cost, items - before), 0)
    return (
        rank,
        own_dense,
        more,
        before,
        begin,
        own_dense + more + gl.maximum(items - begin - rank + PROGRAMS - 1, 0) // PROGRAMS,
    )


@gluon.jit
def second_item(
    number, rank, own_dense, more, before, begin, dense_tiles, tiles, PROGRAMS: gl.constexpr, BLOCKS: gl.constexpr
):
    """Return an item of the second products, as `first_item`, from its number among those of a program."""
    dense = number < own_dense
    dense_item = rank + number * PROGRAMS
    other = number - own_dense
    sparse_item = gl.where(other < more, before + other, begin + rank + (other - more) * PROGRAMS)
    sparse_item = gl.maximum(gl.minimum(sparse_item, tiles * BLOCKS - 1), 0)  # also of a program that has no item
    tile = gl.where(dense, dense_item % dense_tiles, sparse_item // BLOCKS)
    return dense, tile, gl.where(dense, dense_item // dense_tiles, sparse_item % BLOCKS)


@gluon.jit
def _tile(dense, tile, first_ptr, rows_ptr, tokens, ROWS: gl.constexpr):
    """Return the first row of a tile, and the number of its rows."""
    first = gl.where(dense, tile * ROWS, gl.load(first_ptr + tile))
    return first, gl.where(dense, gl.minimum(tokens - tile * ROWS, ROWS), gl.load(rows_ptr + tile))


@gluon.jit
def _scales_of(dense, tile, capacity, WIDTH: gl.constexpr, D: gl.constexpr, ROWS: gl.constexpr):
    """Return where the scales of a tile between the products begin."""
    return gl.where(dense, capacity * (WIDTH // 64 + 1) + tile * (D // 64 + 1), tile * (WIDTH // 64 + 1)) * ROWS


# --- warps that fetch -------------------------------------------------------------------------------------------------


@gluon.jit
def _fetch_two(first, second, line, second_line, depth, w, full, empty, step, STAGES: gl.constexpr):
    """Fetch 64 lines of each of two matrices into the next stage."""
    slot = step % STAGES
    mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
    ready = full.index(slot)
    mbarrier.expect(ready, 2 * 64 * 128)  # bytes
    fetch_tile(first, [line, depth], ready, w.index(slot).slice(0, 64, dim=0))
    fetch_tile(second, [second_line, depth], ready, w.index(slot).slice(64, 64, dim=0))


@gluon.jit
def _fetch_weights(
    gate, up, dense_down, sparse_up, sparse_down, w, full, empty, expert_ptr, count_ptr, tokens,
    H: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Fetch the weights of all items of a program, stage by stage. One warp."""
    program, tiles = gl.program_id(0), gl.load(count_ptr)
    dense_tiles = (tokens + ROWS - 1) // ROWS
    dense_items = dense_tiles * (D // 64)
    first_items = dense_items + tiles * (WIDTH // 64)
    step = program * 0
    for item in range(program, first_items, PROGRAMS):
        dense, tile, block = first_item(item, dense_items, dense_tiles, WIDTH // 64)
        line = gl.where(dense, 0, gl.load(expert_ptr + tile) * (2 * WIDTH)) + block * 64
        for k in range(H // DEPTH):
            if dense:
                _fetch_two(gate, up, line, line, k * DEPTH, w, full, empty, step, STAGES)
            else:
                _fetch_two(sparse_up, sparse_up, line, line + WIDTH, k * DEPTH, w, full, empty, step, STAGES)
            step += 1
    rank, own_dense, more, before, begin, items = second_share(
        program, first_items, dense_tiles, tiles, PROGRAMS, H // 128, H // WIDTH, (D + WIDTH - 1) // WIDTH
    )
    for number in range(items):
        dense, tile, block = second_item(
            number, rank, own_dense, more, before, begin, dense_tiles, tiles, PROGRAMS, H // 128
        )
        line = gl.where(dense, 0, gl.load(expert_ptr + tile) * H) + block * 128
        for k in range((gl.where(dense, D, WIDTH) + DEPTH - 1) // DEPTH):
            if dense:
                _fetch_two(dense_down, dense_down, line, line + 64, k * DEPTH, w, full, empty, step, STAGES)
            else:
                _fetch_two(sparse_down, sparse_down, line, line + 64, k * DEPTH, w, full, empty, step, STAGES)
            step += 1


@gluon.jit
def _fetch_rows(
    x_ptr, dense_x_ptr, h_ptr, h_scale_ptr, order_ptr, first_ptr, rows_ptr, count_ptr, counter_ptr,
    x, h_scale, full, empty, tokens, pairs, capacity,
    H: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, PROGRAMS: gl.constexpr, LOW: gl.constexpr,
):  # fmt: skip
    """Fetch the rows of all items of a program, stage by stage, and between the products their scales.

    Rows that a tile does not have are not read. The rows of experts are scattered, so the copy engine cannot do this.
    """
    tile_l: gl.constexpr = gl.BlockedLayout([1, DEPTH // 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    scale_l: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0])
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, tile_l))
    column = gl.arange(0, DEPTH, layout=gl.SliceLayout(0, tile_l))
    program, tiles = gl.program_id(0), gl.load(count_ptr)
    dense_tiles = (tokens + ROWS - 1) // ROWS
    dense_items = dense_tiles * (D // 64)
    first_items = dense_items + tiles * (WIDTH // 64)
    step = program * 0
    for item in range(program, first_items, PROGRAMS):
        dense, tile, block = first_item(item, dense_items, dense_tiles, WIDTH // 64)
        first, count = _tile(dense, tile, first_ptr, rows_ptr, tokens, ROWS)
        valid = row < count
        pair = gl.load(order_ptr + first + row, mask=valid & (dense == 0), other=0)
        token = gl.where(dense, first + row, pair // K)
        at = gl.where(dense, dense_x_ptr, x_ptr) + (token * H)[:, None] + column[None, :]
        for k in range(H // DEPTH):
            slot = step % STAGES
            mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
            copy_to_shared(x.index(slot), at + k * DEPTH, mask=valid[:, None])
            async_copy.mbarrier_arrive(full.index(slot), increment_count=False)
            step += 1
    rank, own_dense, more, before, begin, items = second_share(
        program, first_items, dense_tiles, tiles, PROGRAMS, H // 128, H // WIDTH, (D + WIDTH - 1) // WIDTH
    )
    done = program * 0
    dense, tile, block = second_item(0, rank, own_dense, more, before, begin, dense_tiles, tiles, PROGRAMS, H // 128)
    first, count = _tile(dense, tile, first_ptr, rows_ptr, tokens, ROWS)
    for number in range(items):
        width = gl.where(dense, D, WIDTH)
        valid = row < count
        at = h_ptr + (gl.where(dense, pairs * WIDTH, 0) + (first + row) * width)[:, None] + column[None, :]
        if LOW:
            scale_at = h_scale_ptr + _scales_of(dense, tile, capacity, WIDTH, D, ROWS)
        if done < first_items:  # once all first products are done, there is nothing to wait for
            counter = counter_ptr + 1 + gl.where(dense, capacity + tile, tile)
            ready = gl.atomic_add(counter, 0, sem="acquire", scope="gpu")
            while ready < width // 64:
                ready = gl.atomic_add(counter, 0, sem="acquire", scope="gpu")
            done = gl.atomic_add(counter_ptr, 0, sem="acquire", scope="gpu")
        # Find the next tile already: these loads take longer than a stage.
        dense, tile, block = second_item(
            gl.minimum(number + 1, items - 1), rank, own_dense, more, before, begin, dense_tiles, tiles,
            PROGRAMS, H // 128,
        )  # fmt: skip
        first, count = _tile(dense, tile, first_ptr, rows_ptr, tokens, ROWS)
        for k in range((width + DEPTH - 1) // DEPTH):
            slot = step % STAGES
            mbarrier.wait(empty.index(slot), ((step // STAGES) & 1) ^ 1)
            mask = valid[:, None] & (k * DEPTH + column < width)[None, :]
            copy_to_shared(x.index(slot), at + k * DEPTH, mask=mask)
            if LOW:
                scale = k * (2 * ROWS) + gl.arange(0, 2 * ROWS, layout=scale_l)
                copy_to_shared(h_scale.index(slot), scale_at + scale)
            async_copy.mbarrier_arrive(full.index(slot), increment_count=False)
            step += 1


# --- warps that multiply ----------------------------------------------------------------------------------------------


@gluon.jit
def _sums(total, x, w, full, empty, step, steps, STAGES: gl.constexpr):
    """Add the products of the next stages. The product of a stage runs while the next one is awaited."""
    for k in range(steps):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        fence_async_shared()
        total = warpgroup_mma(x.index(slot), w.index(slot).permute((1, 0)), total, is_async=True)
        total = warpgroup_mma_wait(1, deps=(total,))
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=k > 0)
        step += 1
    total = warpgroup_mma_wait(0, deps=(total,))
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
    return total, step


@gluon.jit
def _half(x, w, zero, HALF: gl.constexpr):
    """Multiply one half of the depth of a stage."""
    weights = w.slice(HALF * 64, 64, dim=1).permute((1, 0))
    product = warpgroup_mma(x.slice(HALF * 64, 64, dim=1), weights, zero, use_acc=False, is_async=True)
    return warpgroup_mma_wait(0, deps=(product,))


@gluon.jit
def _scaled_sums(
    total, x, h_scale, w, full, empty, step, width, ROWS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr
):
    """Add the products of the next stages with FP8 rows that have one scale per half of a stage."""
    sum_l: gl.constexpr = total.type.layout
    row_l: gl.constexpr = gl.SliceLayout(1, sum_l)
    zero = gl.zeros([ROWS, 128], gl.float32, sum_l)
    for k in range((width + DEPTH - 1) // DEPTH):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        fence_async_shared()
        scale = h_scale.index(slot).slice(0, ROWS).load(row_l)
        second_scale = h_scale.index(slot).slice(ROWS, ROWS).load(row_l)
        # The last half may be beyond the width. Its product is zero; its scale is not set.
        second_scale = gl.where(k * DEPTH + 64 < width, second_scale, 0.0)
        total += _half(x.index(slot), w.index(slot), zero, 0) * scale[:, None]
        second = _half(x.index(slot), w.index(slot), zero, 1)
        mbarrier.arrive(empty.index(slot), count=1)
        total += second * second_scale[:, None]
        step += 1
    return total, step


@gluon.jit
def _gelu(x):
    """As `gelu` in `linear.py`."""
    return x * (1 / (1 + gl.exp(-gl.maximum(1.5957691216057308 * (x + 0.044715 * x * x * x), -80.0))))


@gluon.jit
def _multiply(
    x_scale_ptr, dense_x_scale_ptr, gate_scale_ptr, up_scale_ptr, dense_down_scale_ptr, sparse_up_scale_ptr,
    sparse_down_scale_ptr, h_ptr, h_scale_ptr, y_ptr, order_ptr, expert_ptr, first_ptr, rows_ptr, count_ptr,
    counter_ptr, x, h_scale, w, full, empty, tokens, pairs, capacity,
    H: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, PROGRAMS: gl.constexpr, LOW: gl.constexpr,
):  # fmt: skip
    """Multiply and store all items of a program. Loads for the next item are started before the sums of this one."""
    sum_l: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, 128, DEPTH // 4])
    h_l: gl.constexpr = gl.BlockedLayout([1, DEPTH // 8], [DEPTH // 16, 512 // DEPTH], [gl.num_warps(), 1], [1, 0])
    y_l: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [gl.num_warps(), 1], [1, 0])
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, sum_l))
    column = gl.arange(0, 128, layout=gl.SliceLayout(0, sum_l))
    h_row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, h_l))
    h_column = gl.arange(0, 64, layout=gl.SliceLayout(0, h_l))
    y_row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, y_l))
    y_column = gl.arange(0, 128, layout=gl.SliceLayout(0, y_l))
    program, tiles = gl.program_id(0), gl.load(count_ptr)
    dense_tiles = (tokens + ROWS - 1) // ROWS
    dense_items = dense_tiles * (D // 64)
    first_items = dense_items + tiles * (WIDTH // 64)
    step = program * 0
    dense, tile, block = first_item(gl.minimum(program, first_items - 1), dense_items, dense_tiles, WIDTH // 64)
    first, count = _tile(dense, tile, first_ptr, rows_ptr, tokens, ROWS)
    expert = gl.load(expert_ptr + tile)
    if LOW:
        pair = gl.load(order_ptr + first + row, mask=(row < count) & (dense == 0), other=0)
    for item in range(program, first_items, PROGRAMS):
        if LOW:
            token = gl.where(dense, first + row, pair // K)
            x_scale = gl.load(gl.where(dense, dense_x_scale_ptr, x_scale_ptr) + token, mask=row < count, other=0.0)
            sparse_at = (
                sparse_up_scale_ptr + expert * (2 * WIDTH) + gl.where(column < 64, column, column + (WIDTH - 64))
            )
            dense_at = gl.where(column < 64, gate_scale_ptr, up_scale_ptr) + column % 64
            scale = gl.load(gl.where(dense, dense_at, sparse_at) + block * 64)
        next_dense, next_tile, next_block = first_item(
            gl.minimum(item + PROGRAMS, first_items - 1), dense_items, dense_tiles, WIDTH // 64
        )
        next_first, next_count = _tile(next_dense, next_tile, first_ptr, rows_ptr, tokens, ROWS)
        next_expert = gl.load(expert_ptr + next_tile)
        both = gl.zeros([ROWS, 128], gl.float32, sum_l)  # gate and up
        both, step = _sums(both, x, w, full, empty, step, H // DEPTH, STAGES)
        if LOW:
            pair = gl.load(order_ptr + next_first + row, mask=(row < next_count) & (next_dense == 0), other=0)
            both *= x_scale[:, None] * scale[None, :]
        gate, up = both.reshape([ROWS, 2, 64]).permute([0, 2, 1]).split()
        h = _gelu(gate) * up
        if LOW:
            largest = gl.maximum(gl.max(gl.abs(h), 1), 1e-12) / 448.0
            scale_l: gl.constexpr = largest.type.layout
            scale_row = gl.arange(0, ROWS, layout=scale_l)
            scale_at = h_scale_ptr + _scales_of(dense, tile, capacity, WIDTH, D, ROWS) + block * ROWS
            gl.store(scale_at + scale_row, largest)
            h = gl.minimum(gl.maximum(h / largest[:, None], -448.0), 448.0)
        h = gl.convert_layout(h.to(h_ptr.dtype.element_ty), h_l)
        at = gl.where(dense, pairs * WIDTH, 0) + (first + h_row) * gl.where(dense, D, WIDTH) + block * 64
        gl.store(h_ptr + at[:, None] + h_column[None, :], h, mask=(h_row < count)[:, None])
        barrier()  # all threads have stored their part
        gl.atomic_add(counter_ptr + 1 + gl.where(dense, capacity + tile, tile), 1, sem="release", scope="gpu")
        gl.atomic_add(counter_ptr, 1, sem="release", scope="gpu")
        dense, tile, block = next_dense, next_tile, next_block
        first, count, expert = next_first, next_count, next_expert
    rank, own_dense, more, before, begin, items = second_share(
        program, first_items, dense_tiles, tiles, PROGRAMS, H // 128, H // WIDTH, (D + WIDTH - 1) // WIDTH
    )
    dense, tile, block = second_item(0, rank, own_dense, more, before, begin, dense_tiles, tiles, PROGRAMS, H // 128)
    first, count = _tile(dense, tile, first_ptr, rows_ptr, tokens, ROWS)
    expert = gl.load(expert_ptr + tile)
    for number in range(items):
        valid = y_row < count
        y_pair = gl.load(order_ptr + first + y_row, mask=valid & (dense == 0), other=0)
        to = gl.where(dense, pairs + first + y_row, y_pair) * H + block * 128
        if LOW:
            line = block * 128 + column
            y_scale = gl.load(gl.where(dense, dense_down_scale_ptr + line, sparse_down_scale_ptr + expert * H + line))
        width = gl.where(dense, D, WIDTH)
        dense, tile, block = second_item(
            gl.minimum(number + 1, items - 1), rank, own_dense, more, before, begin, dense_tiles, tiles,
            PROGRAMS, H // 128,
        )  # fmt: skip
        first, count = _tile(dense, tile, first_ptr, rows_ptr, tokens, ROWS)
        expert = gl.load(expert_ptr + tile)
        y = gl.zeros([ROWS, 128], gl.float32, sum_l)
        if LOW:
            y, step = _scaled_sums(y, x, h_scale, w, full, empty, step, width, ROWS, DEPTH, STAGES)
            y *= y_scale[None, :]
        else:
            y, step = _sums(y, x, w, full, empty, step, (width + DEPTH - 1) // DEPTH, STAGES)
        y = gl.convert_layout(y.to(y_ptr.dtype.element_ty), y_l)
        gl.store(y_ptr + to[:, None] + y_column[None, :], y, mask=valid[:, None])


@gluon.jit(do_not_specialize=["tokens", "pairs", "capacity"])
def _feed_forward(
    x_ptr, x_scale_ptr, dense_x_ptr, dense_x_scale_ptr,
    gate, gate_scale_ptr, up, up_scale_ptr, dense_down, dense_down_scale_ptr,
    sparse_up, sparse_up_scale_ptr, sparse_down, sparse_down_scale_ptr,
    h_ptr, h_scale_ptr, y_ptr, order_ptr, expert_ptr, first_ptr, rows_ptr, count_ptr, counter_ptr,
    tokens, pairs, capacity,
    H: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, PROGRAMS: gl.constexpr, LOW: gl.constexpr,
):  # fmt: skip
    """Compute the outputs of the dense MLP and of the experts.

    Grid: (PROGRAMS,), which must all fit on the GPU at once. x and dense_x are [T, H]. gate, up and dense_down are
    descriptors of [D, H] and [H, D], sparse_up one of [E 2I, H] with the gate's rows first, sparse_down one of [E H,
    I]. h has [R, I], in sorted order, and then [T, D]; y is [R + T, H]. order, expert, first, rows, count and counter
    are the tensors of `TileList`, of which expert has `capacity` entries. LOW: operands are FP8, with scales per row of
    x and per output channel; h has one per row and 64 columns, tile by tile, [ROWS] for each block of columns.

    With one canvas, memory-bound: it reads all weights once.
    """
    dtype: gl.constexpr = h_ptr.dtype.element_ty
    tile_l: gl.constexpr = gate.layout
    x = gl.allocate_shared_memory(dtype, [STAGES, ROWS, DEPTH], tile_l)
    w = gl.allocate_shared_memory(dtype, [STAGES, 128, DEPTH], tile_l)
    h_scale = gl.allocate_shared_memory(gl.float32, [STAGES, 2 * ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1 + 32 * ROW_WARPS)  # the copy engine, and each thread that fetches rows
        mbarrier.init(empty.index(slot), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _multiply,
                (
                    x_scale_ptr, dense_x_scale_ptr, gate_scale_ptr, up_scale_ptr, dense_down_scale_ptr,
                    sparse_up_scale_ptr, sparse_down_scale_ptr, h_ptr, h_scale_ptr, y_ptr, order_ptr, expert_ptr,
                    first_ptr, rows_ptr, count_ptr, counter_ptr, x, h_scale, w, full, empty, tokens, pairs, capacity,
                    H, WIDTH, D, K, ROWS, DEPTH, STAGES, PROGRAMS, LOW,
                ),
            ),
            (
                _fetch_weights,
                (
                    gate, up, dense_down, sparse_up, sparse_down, w, full, empty, expert_ptr, count_ptr, tokens,
                    H, WIDTH, D, ROWS, DEPTH, STAGES, PROGRAMS,
                ),
            ),
            (
                _fetch_rows,
                (
                    x_ptr, dense_x_ptr, h_ptr, h_scale_ptr, order_ptr, first_ptr, rows_ptr, count_ptr, counter_ptr,
                    x, h_scale, full, empty, tokens, pairs, capacity,
                    H, WIDTH, D, K, ROWS, DEPTH, STAGES, PROGRAMS, LOW,
                ),
            ),
        ],
        [1, ROW_WARPS],
        [WEIGHT_REGISTERS, ROW_REGISTERS],
    )  # fmt: skip
