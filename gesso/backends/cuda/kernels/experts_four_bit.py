"""The two products of the experts with weights of four bits, int4 or NVFP4, that are widened as they are read.

As in experts.py, but turned over: the weights are the left operand and the rows of a tile are the columns of the
result (four.py says why). They come by the copy engine: of a row, a step takes fewer bytes than the memory gives at
once, and it keeps the rest in the cache for the next step.

T tokens, H hidden, E experts, K experts a token, I expert width, R = T * K pairs.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gesso.backends.cuda.kernels.experts import Groups, group
from gesso.backends.cuda.kernels.four_bit import (
    Packed,
    check_fits,
    gate_and_other,
    gated_sum,
    in_ptx,
    over,
    tile,
    turned_to,
)
from gesso.backends.cuda.kernels.linear import MANY, Cuts, Tiling, precision

# Up to how many tokens, and how they are cut then. Depth is in bytes, each two values; it is the same for any number of
# tokens, for it is part of the order in which sums run. More stages are slower: scales come through the cache that
# shared memory is taken from, and NVFP4 has twice as many. A tile at most half full is multiplied as one of half its
# rows: some experts have several times as many as others.
TILINGS: dict[tuple[str, str], Cuts] = {
    ("up", "int4"): ((768, Tiling(32, 64, 64, 4, 3)), (MANY, Tiling(64, 64, 64, 8, 3))),
    ("up", "nvfp4"): ((768, Tiling(32, 64, 32, 4, 3)), (MANY, Tiling(64, 64, 32, 4, 3))),
    ("back", "int4"): ((768, Tiling(32, 128, 32, 4, 4)), (MANY, Tiling(64, 128, 32, 4, 4))),
    ("back", "nvfp4"): ((768, Tiling(32, 128, 32, 4, 4)), (MANY, Tiling(64, 128, 32, 4, 4))),
}


def cut(product: str, kind: str, tokens: int) -> Tiling:
    return next(tiling for limit, tiling in TILINGS[product, kind] if tokens <= limit)


def up_depth(kind: str) -> int:
    """For which tiles tokens have to be turned."""
    return cut("up", kind, 1).depth


def answers(x_TH: Tensor, index_TK: Tensor, gate_up: Packed, down: Packed) -> Tensor:
    """What each token's experts say to it [R, H], not yet weighted. The columns of x are turned for the first product,
    as those of h are for the second."""
    tokens, k = index_TK.shape
    groups = group(index_TK, len(gate_up.packed_EOB), cut("up", gate_up.kind, tokens).rows)
    return back(up(x_TH, groups, k, gate_up), groups, k, down)


def up(x_TH: Tensor, groups: Groups, k: int, gate_up: Packed) -> Tensor:
    """gelu(x gate) * (x up) [R, I] of all pairs, in the order of `groups`."""
    (tokens, hidden), width = x_TH.shape, gate_up.packed_EOB.shape[1] // 2
    h_RI = x_TH.new_empty(tokens * k, width)
    tiling, then = cut("up", gate_up.kind, tokens), cut("back", gate_up.kind, tokens)
    check_fits(gate_up, tiling)
    grid = (triton.cdiv(width, tiling.columns), len(groups.expert_N))
    _up[grid](
        x_TH, _gate_up(gate_up, tiling), gate_up.scales, gate_up.over_E, h_RI,
        groups.order_R, groups.end_E, groups.expert_N, groups.first_N,
        k, HIDDEN=hidden, WIDTH=width,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, GROUP=gate_up.group,
        IN_WORD=gate_up.scales_in_word, TURN=then.depth, PTX=in_ptx(x_TH), PRECISION=precision(x_TH),
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return h_RI


def back(h_RI: Tensor, groups: Groups, k: int, matrices: Packed) -> Tensor:
    """h down [R, H], each row where its pair stands; h is turned, y is not."""
    (pairs, width), hidden = h_RI.shape, matrices.packed_EOB.shape[1]
    y_RH = h_RI.new_empty(pairs, hidden)
    tiling = cut("back", matrices.kind, pairs // k)
    check_fits(matrices, tiling)
    grid = (triton.cdiv(hidden, tiling.columns), len(groups.expert_N))
    _down[grid](
        h_RI, TensorDescriptor.from_tensor(matrices.words, [1, tiling.columns, tiling.depth // 4]),
        matrices.scales, matrices.over_E, y_RH,
        groups.order_R, groups.end_E, groups.expert_N, groups.first_N,
        WIDTH=width, HIDDEN=hidden,
        ROWS=tiling.rows, COLUMNS=tiling.columns, DEPTH=tiling.depth, GROUP=matrices.group,
        IN_WORD=matrices.scales_in_word, PTX=in_ptx(h_RI), PRECISION=precision(h_RI),
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return y_RH


def _gate_up(gate_up: Packed, tiling: Tiling) -> TensorDescriptor:
    """Both matrices of an expert in the order of `gate_and_other`: [E, I / 8, gate or up, 8, words]."""
    words_EOW = gate_up.words
    experts, both, words = words_EOW.shape
    shape = [experts, both // 16, 2, 8, words]
    strides = [both * words, 8 * words, both // 2 * words, words, 1]
    return TensorDescriptor(words_EOW, shape, strides, [1, tiling.columns // 8, 2, 8, tiling.depth // 4])


# The sizes of a model are constants here: how rows are aligned follows from them, and without that the scales, a few
# bytes a row, could not be fetched ahead.


@triton.jit
def _up(
    x_ptr, packed, scale_ptr, over_ptr, h_ptr, order_ptr, end_ptr, expert_ptr, first_ptr, choices,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, IN_WORD: tl.constexpr, TURN: tl.constexpr, PTX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    expert = tl.load(expert_ptr + tl.program_id(1))
    if expert < 0:
        return
    first = tl.load(first_ptr + tl.program_id(1))
    end = tl.load(end_ptr + expert)
    if end - first <= ROWS // 2:
        _up_rows(
            x_ptr, packed, scale_ptr, over_ptr, h_ptr, order_ptr, expert, first, end, choices,
            HIDDEN, WIDTH, ROWS // 2, COLUMNS, DEPTH, GROUP, IN_WORD, TURN, PTX, PRECISION,
        )  # fmt: skip
    else:
        _up_rows(
            x_ptr, packed, scale_ptr, over_ptr, h_ptr, order_ptr, expert, first, end, choices,
            HIDDEN, WIDTH, ROWS, COLUMNS, DEPTH, GROUP, IN_WORD, TURN, PTX, PRECISION,
        )  # fmt: skip


@triton.jit
def _up_rows(
    x_ptr, packed, scale_ptr, over_ptr, h_ptr, order_ptr, expert, first, end, choices,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, IN_WORD: tl.constexpr, TURN: tl.constexpr, PTX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """gelu(x gate) * (x up) of up to ROWS rows, for as many columns."""
    place = first + tl.arange(0, ROWS)
    live = place < end
    token = tl.load(order_ptr + place, mask=live, other=0) // choices
    # Columns beyond the last are zeros by the last scale: that is not stored.
    place_in_tile, second = gate_and_other(COLUMNS)
    column = tl.minimum(tl.program_id(0) * COLUMNS + place_in_tile, WIDTH - 1)
    row = (expert.to(tl.int64) * 2 + second) * WIDTH + column
    HALF: tl.constexpr = HIDDEN // 2
    FLOAT: tl.constexpr = over_ptr is not None
    SCALES: tl.constexpr = HALF // GROUP // IN_WORD
    kind: tl.constexpr = x_ptr.dtype.element_ty
    x_at = x_ptr + token[None, :].to(tl.int64) * HIDDEN + tl.arange(0, 2 * DEPTH)[:, None]
    scale_at = scale_ptr + row * SCALES
    both = tl.zeros((2 * COLUMNS, ROWS), tl.float32)
    for start in range(0, HALF, DEPTH):
        x = tl.load(x_at + 2 * start, mask=live[None, :], other=0.0)
        word = packed.load([expert, tl.program_id(0) * (COLUMNS // 8), 0, 0, start // 4])
        word = word.reshape((2 * COLUMNS, DEPTH // 4))
        weight = tile(word, scale_at, start, 2 * COLUMNS, DEPTH, GROUP, IN_WORD, FLOAT, PTX, kind)
        both = tl.dot(weight, x, both, input_precision=PRECISION)
    both *= over(over_ptr, expert)
    h = gated_sum(both, COLUMNS, ROWS).to(h_ptr.dtype.element_ty)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    h_at = h_ptr + place[None, :].to(tl.int64) * WIDTH + turned_to(column, TURN)[:, None]
    tl.store(h_at, h, mask=live[None, :] & (column < WIDTH)[:, None])


@triton.jit
def _down(
    h_ptr, packed, scale_ptr, over_ptr, y_ptr, order_ptr, end_ptr, expert_ptr, first_ptr,
    WIDTH: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, IN_WORD: tl.constexpr, PTX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    expert = tl.load(expert_ptr + tl.program_id(1))
    if expert < 0:
        return
    first = tl.load(first_ptr + tl.program_id(1))
    end = tl.load(end_ptr + expert)
    if end - first <= ROWS // 2:
        _down_rows(
            h_ptr, packed, scale_ptr, over_ptr, y_ptr, order_ptr, expert, first, end,
            WIDTH, HIDDEN, ROWS // 2, COLUMNS, DEPTH, GROUP, IN_WORD, PTX, PRECISION,
        )  # fmt: skip
    else:
        _down_rows(
            h_ptr, packed, scale_ptr, over_ptr, y_ptr, order_ptr, expert, first, end,
            WIDTH, HIDDEN, ROWS, COLUMNS, DEPTH, GROUP, IN_WORD, PTX, PRECISION,
        )  # fmt: skip


@triton.jit
def _down_rows(
    h_ptr, packed, scale_ptr, over_ptr, y_ptr, order_ptr, expert, first, end,
    WIDTH: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, IN_WORD: tl.constexpr, PTX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h down of up to ROWS rows, for as many columns, each row written where its pair stands."""
    place = first + tl.arange(0, ROWS)
    live = place < end
    pair = tl.load(order_ptr + place, mask=live, other=0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = expert.to(tl.int64) * HIDDEN + tl.minimum(column, HIDDEN - 1)
    HALF: tl.constexpr = WIDTH // 2
    FLOAT: tl.constexpr = over_ptr is not None
    SCALES: tl.constexpr = HALF // GROUP // IN_WORD
    kind: tl.constexpr = h_ptr.dtype.element_ty
    h_at = h_ptr + place[None, :].to(tl.int64) * WIDTH + tl.arange(0, 2 * DEPTH)[:, None]
    scale_at = scale_ptr + row * SCALES
    y = tl.zeros((COLUMNS, ROWS), tl.float32)
    for start in range(0, HALF, DEPTH):
        h = tl.load(h_at + 2 * start, mask=live[None, :], other=0.0)
        word = packed.load([expert, tl.program_id(0) * COLUMNS, start // 4]).reshape((COLUMNS, DEPTH // 4))
        weight = tile(word, scale_at, start, COLUMNS, DEPTH, GROUP, IN_WORD, FLOAT, PTX, kind)
        y = tl.dot(weight, h, y, input_precision=PRECISION)
    y *= over(over_ptr, expert)
    y_at = y_ptr + pair[None, :].to(tl.int64) * HIDDEN + column[:, None]
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=live[None, :] & (column < HIDDEN)[:, None])
