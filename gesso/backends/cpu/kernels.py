"""Products of float32 rows and packed weights, int4 or int8 in groups of 32, as compiled kernels.

Rows are first rounded to 8 bits, with one scale per 32 values. Then bytes are multiplied by bytes and summed as
integers, which is exact, and each group's sum is multiplied by the scales of weights and row.

- Few rows: memory-bound. Weights are used in the order of the file. A vector holds 64 values of four groups.
- Many rows: compute-bound. The weights of 32 outputs are rearranged, then used for all rows (`tiles.py`).

A kernel has one argument, the address of integers of 64 bits, which are named where it reads them (`threads.py`). The
sums of a row do not depend on the other rows, to the last bit.

R rows, I inputs, O outputs, G experts with rows. A single matrix is a stack of one expert.
"""

import math

from numba import cfunc, njit, types

from gesso.backends.cpu import tiles
from gesso.backends.cpu import vectors as vec

GROUP = 32  # values with one scale
BLOCK = 128  # values: four groups, the unit of most loops
ROW_BLOCK_BYTES = 256  # of a rounded row
TOP = 127.0  # largest magnitude of a rounded value
TINY = 1e-30  # groups below are zeros; the inverse of a smaller number may be infinite
OUTPUTS = 32  # of one part of the work
DEPTH = 16  # groups that are rearranged at a time: what fits into the first-level cache
COLUMN_BYTES = DEPTH * tiles.GROUP_BYTES
SPACE_BYTES = tiles.COLUMNS * COLUMN_BYTES
AHEAD = 1024  # bytes of weights to prefetch ahead: 17 GB/s on two cores instead of 14

_inlined = njit(forceinline=True)


@_inlined
def load_four(address):
    return vec.load_long(address), vec.load_long(address + 8), vec.load_long(address + 16), vec.load_long(address + 24)


# --- rounding ---------------------------------------------------------------------------------------------------------


@_inlined
def _halves(x, bits):
    """Return the 32 values at an address in two halves: even and odd ones for int4, the first and the last for int8.

    A byte of int4 holds an even value in its low half and an odd one in its high half.
    """
    a, b = vec.load_floats(x), vec.load_floats(x + 64)
    if bits == 4:
        return vec.even_lanes(a, b), vec.odd_lanes(a, b)
    return a, b


@_inlined
def _round(x, bits):
    """Return the rounded halves of a group, the integer that its sums start from, and its scale.

    The integer takes back the offset of the weights: codes of int4 are values plus 8.
    """
    a, b = _halves(x, bits)
    top = vec.largest(a, b)
    factor = types.float32(TOP) / top if top > TINY else types.float32(0)
    first, second = vec.rounded(a, factor), vec.rounded(b, factor)
    offset = 8 if bits == 4 else vec.bytes_offset()
    return first, second, -offset * vec.sum_of(first, second), top / types.float32(TOP)


@_inlined
def _round_few(arguments, bits):
    """Round rows for `_multiply_few`. A row has 256 bytes per block:

    0    of each group, the first half
    64   of each group, the second half
    128  of each group, the integer that its sums start from, and three zeros
    192  of each group, its scale four times

    Missing groups of the last block are zeros.
    """
    x, rows, inputs, target = load_four(arguments + 8)
    blocks, groups = (inputs + BLOCK - 1) // BLOCK, inputs // GROUP
    while True:
        row = vec.take(arguments)
        if row >= rows:
            break
        for group in range(4 * blocks):
            at = target + (row * blocks + group // 4) * ROW_BLOCK_BYTES + group % 4 * 16
            vec.store_nothing(at + 128)
            if group < groups:
                first, second, start, scale = _round(x + 4 * (row * inputs + group * GROUP), bits)
                vec.store_as_bytes(at, first)
                vec.store_as_bytes(at + 64, second)
                vec.store_int(at + 128, start)
                vec.store_scale(at + 192, scale)
            else:
                vec.store_nothing(at)
                vec.store_nothing(at + 64)
                vec.store_nothing(at + 192)


@_inlined
def _round_many(arguments, bits):
    """Round rows for `_multiply_many`; the layout is in `tiles.py`."""
    x, rows, inputs, target = load_four(arguments + 8)
    groups = inputs // GROUP
    while True:
        row = vec.take(arguments)
        if row >= rows:
            break
        for group in range(row * groups, (row + 1) * groups):
            at = target + group * tiles.ROW_GROUP_BYTES
            first, second, start, scale = _round(x + 4 * GROUP * group, bits)
            if bits == 4:
                vec.store_alternating(at, first, second)
            else:
                vec.store_as_bytes(at, first)
                vec.store_as_bytes(at + 16, second)
            vec.store_int(at + 32, start)
            vec.store_float(at + 36, scale)


# --- norms ------------------------------------------------------------------------------------------------------------


@_inlined
def _normalize(arguments):
    """Divide rows by the root of their mean square, and multiply them by weights.

    x, y    float32 [R, I]; I is a multiple of 16
    weight  float32 [I]
    eps     float64, added to the mean square
    """
    x, rows, inputs, y = load_four(arguments + 8)
    weight, eps = vec.load_long(arguments + 40), vec.load_double(arguments + 48)
    while True:
        row = vec.take(arguments)
        if row >= rows:
            break
        at, sums = 4 * row * inputs, vec.no_floats()
        for i in range(0, 4 * inputs, 64):
            values = vec.load_floats(x + at + i)
            sums = vec.fused(values, values, sums)
        factor = types.float32(1 / math.sqrt(vec.total(sums) / inputs + eps))
        for i in range(0, 4 * inputs, 64):
            values = vec.times(vec.load_floats(x + at + i), vec.load_floats(weight + i))
            vec.store_floats(y + at + i, vec.multiplied(values, factor))


# --- attention --------------------------------------------------------------------------------------------------------


@_inlined
def _score(q, k, size):
    sums = vec.no_floats()
    for i in range(0, 4 * size, 64):
        sums = vec.fused(vec.load_floats(q + i), vec.load_floats(k + i), sums)
    return vec.total(sums)


@_inlined
def _softmax(scores, room):
    """Replace scores by their exponentials and return the factor that makes probabilities of them."""
    top = vec.load_floats(scores)
    for i in range(64, 4 * room, 64):
        top = vec.larger(top, vec.load_floats(scores + i))
    minus, sums = vec.floats(-vec.greatest(top)), vec.no_floats()
    for i in range(0, 4 * room, 64):
        weights = vec.exponential(vec.plus(vec.load_floats(scores + i), minus))
        vec.store_floats(scores + i, weights)
        sums = vec.plus(sums, weights)
    return types.float32(1) / vec.total(sums)


@_inlined
def _attend(arguments):
    """Attend from one token to the keys of a cache and its own. One part of the work is a key head.

    q, out        float32 [N, D]: N = M·G query heads; D is a multiple of 16
    key, value    float32 [M, D]: those of the token itself
    keys, values  float32 [L, M, D], of which the first `count` are seen
    scores        float32 [N, room], where `room` is count + 1, rounded up to a multiple of 16
    """
    q, key, value, keys = load_four(arguments + 8)
    values, count, heads, group = load_four(arguments + 40)
    size, out, scores = vec.load_long(arguments + 72), vec.load_long(arguments + 80), vec.load_long(arguments + 88)
    room = (count + 16) // 16 * 16
    while True:
        head = vec.take(arguments)
        if head >= heads:
            break
        at, first = 4 * head * size, head * group
        for g in range(first, first + group):
            vec.store_floats(scores + 4 * (g * room + room - 16), vec.floats(types.float32(-math.inf)))
        for token in range(count + 1):
            k = keys + 4 * token * heads * size + at if token < count else key + at
            for g in range(first, first + group):
                vec.store_float(scores + 4 * (g * room + token), _score(q + 4 * g * size, k, size))
        for g in range(first, first + group):
            factor = _softmax(scores + 4 * g * room, room)
            for i in range(0, 4 * size, 64):
                vec.store_floats(out + 4 * g * size + i, vec.no_floats())
            for token in range(count + 1):
                v = values + 4 * token * heads * size + at if token < count else value + at
                weight = vec.floats(vec.load_float(scores + 4 * (g * room + token)) * factor)
                for i in range(0, 4 * size, 64):
                    y = out + 4 * g * size + i
                    vec.store_floats(y, vec.fused(weight, vec.load_floats(v + i), vec.load_floats(y)))


# --- few rows ---------------------------------------------------------------------------------------------------------


@_inlined
def _unpack(weight, bits):
    """Return a block of weights in two halves of 64 bytes."""
    if bits == 4:
        packed = vec.load_bytes(weight)
        vec.prefetch(weight + AHEAD)
        return vec.low_nibbles(packed), vec.high_nibbles(packed)
    a, b = vec.load_bytes(weight), vec.load_bytes(weight + 64)
    vec.prefetch(weight + AHEAD)
    vec.prefetch(weight + AHEAD + 64)
    return vec.offset_bytes(vec.first_halves(a, b)), vec.offset_bytes(vec.second_halves(a, b))


@_inlined
def _unpack_some(weight, groups, bits):
    """Return the last block, of fewer than four groups."""
    if bits == 4:
        packed = vec.load_some_bytes(weight, 16 * groups)
        return vec.low_nibbles(packed), vec.high_nibbles(packed)
    a, b = vec.load_some_bytes(weight, min(64, 32 * groups)), vec.load_some_bytes(weight + 64, max(0, 32 * groups - 64))
    return vec.offset_bytes(vec.first_halves(a, b)), vec.offset_bytes(vec.second_halves(a, b))


@_inlined
def _add_block(sums, x, first, second, scales, bits):
    start = vec.load_ints(x + 128)
    if bits == 4:
        products = vec.dot_nibbles(vec.dot_nibbles(start, first, vec.load_bytes(x)), second, vec.load_bytes(x + 64))
    else:
        products = vec.dot_bytes(vec.dot_bytes(start, first, vec.load_bytes(x)), second, vec.load_bytes(x + 64))
    return vec.fused(vec.to_floats(products), vec.times(scales, vec.load_floats(x + 192)), sums)


@_inlined
def _dot(x, weight, scale, inputs, bits):
    """Return the product of a rounded row and the weights of one output."""
    sums = vec.no_floats()
    blocks = inputs // BLOCK
    for block in range(blocks):
        first, second = _unpack(weight + 16 * bits * block, bits)
        sums = _add_block(sums, x + ROW_BLOCK_BYTES * block, first, second, vec.load_scales(scale + 8 * block), bits)
    rest = inputs // GROUP - 4 * blocks
    if rest:
        first, second = _unpack_some(weight + 16 * bits * blocks, rest, bits)
        scales = vec.load_some_scales(scale + 8 * blocks, rest)
        sums = _add_block(sums, x + ROW_BLOCK_BYTES * blocks, first, second, scales, bits)
    return vec.total(sums)


@_inlined
def _multiply_few(arguments, bits):
    """Multiply rows by the matrices of their experts.

    x         rounded rows
    source    int64 [R]: the row of x for each row of `out`; rows of one expert are neighbours
    weights   [E, O, I] codes, and scales bfloat16 [E, O, I / 32]
    out       float32 [R, O]
    expert    int64 [G]: the experts with rows; end: int64 [G], the row of `out` after the last one of each
    """
    x, source, weights, scales = load_four(arguments + 8)
    inputs, outputs, out, experts = load_four(arguments + 40)
    expert, end = vec.load_long(arguments + 72), vec.load_long(arguments + 80)
    x_bytes = (inputs + BLOCK - 1) // BLOCK * ROW_BLOCK_BYTES
    parts = (outputs + OUTPUTS - 1) // OUTPUTS
    while True:
        group, part = divmod(vec.take(arguments), parts)
        if group >= experts:
            break
        matrix = vec.load_long(expert + 8 * group) * outputs
        start = vec.load_long(end + 8 * (group - 1)) if group else 0
        for row in range(start, vec.load_long(end + 8 * group)):
            x_row = x + x_bytes * vec.load_long(source + 8 * row)
            for o in range(part * OUTPUTS, min(outputs, (part + 1) * OUTPUTS)):
                weight, scale = weights + (matrix + o) * (inputs * bits // 8), scales + (matrix + o) * (inputs // 16)
                vec.store_float(out + 4 * (row * outputs + o), _dot(x_row, weight, scale, inputs, bits))


# --- many rows --------------------------------------------------------------------------------------------------------


@_inlined
def _rearrange(weight, scale, rows, inputs, groups, target, bits):
    """Rearrange some groups of the weights of 16 outputs, or of the first `rows` of them."""
    weight_bytes, scale_bytes = inputs * bits // 8, inputs // 16
    blocks = groups // 4
    for block in range(blocks):
        w, at = weight + 16 * bits * block, target + 4 * tiles.GROUP_BYTES * block
        if bits == 4:
            tiles.rearrange_int4(w, weight_bytes, rows, 4, at)
        else:
            tiles.rearrange_int8(w, weight_bytes, rows, 4, at)
        tiles.rearrange_scales(scale + 8 * block, scale_bytes, rows, 4, at)
    rest = groups - 4 * blocks
    if rest:
        w, at = weight + 16 * bits * blocks, target + 4 * tiles.GROUP_BYTES * blocks
        if bits == 4:
            tiles.rearrange_some_int4(w, weight_bytes, rows, rest, at)
        else:
            tiles.rearrange_some_int8(w, weight_bytes, rows, rest, at)
        tiles.rearrange_some_scales(scale + 8 * blocks, scale_bytes, rows, rest, at)


@_inlined
def _multiply_many(arguments, bits):
    """Multiply rows by the matrices of their experts; arguments as in `_multiply_few`, and

    taken      a counter, from which each thread takes the number of its space
    space      SPACE_BYTES for each thread
    """
    x, source, weights, scales = load_four(arguments + 8)
    inputs, outputs, out, experts = load_four(arguments + 40)
    expert, end = vec.load_long(arguments + 72), vec.load_long(arguments + 80)
    space = vec.load_long(arguments + 96) + vec.take(arguments + 88) * SPACE_BYTES
    groups, parts = inputs // GROUP, (outputs + OUTPUTS - 1) // OUTPUTS
    x_bytes, y_bytes = groups * tiles.ROW_GROUP_BYTES, 4 * outputs
    while True:
        group, part = divmod(vec.take(arguments), parts)
        if group >= experts:
            break
        o = part * OUTPUTS
        some = min(OUTPUTS, outputs - o)
        first = vec.load_long(expert + 8 * group) * outputs + o
        weight, scale = weights + first * (inputs * bits // 8), scales + first * (inputs // 16)
        start, stop = vec.load_long(end + 8 * (group - 1)) if group else 0, vec.load_long(end + 8 * group)
        for begin in range(0, groups, DEPTH):
            deep = min(DEPTH, groups - begin)
            for column in range((some + 15) // 16):
                w = weight + 16 * column * (inputs * bits // 8) + begin * 4 * bits
                s = scale + 16 * column * (inputs // 16) + begin * 2
                _rearrange(w, s, min(16, some - 16 * column), inputs, deep, space + column * COLUMN_BYTES, bits)
            for row in range(start, stop, tiles.ROWS):
                # The last tile may have fewer rows: its last one is computed several times, and stored as often.
                r1, r2, r3 = min(row + 1, stop - 1), min(row + 2, stop - 1), min(row + 3, stop - 1)
                y0, y1 = out + 4 * o + y_bytes * row, out + 4 * o + y_bytes * r1
                y2, y3 = out + 4 * o + y_bytes * r2, out + 4 * o + y_bytes * r3
                x_begin = x + begin * tiles.ROW_GROUP_BYTES
                x0 = x_begin + x_bytes * vec.load_long(source + 8 * row)
                x1 = x_begin + x_bytes * vec.load_long(source + 8 * r1)
                x2 = x_begin + x_bytes * vec.load_long(source + 8 * r2)
                x3 = x_begin + x_bytes * vec.load_long(source + 8 * r3)
                tile = tiles.load_tile(y0, y1, y2, y3, some) if begin else tiles.no_tile()
                for g in range(deep):
                    at, w = g * tiles.ROW_GROUP_BYTES, space + g * tiles.GROUP_BYTES
                    if bits == 4:
                        tile = tiles.add_int4_group(tile, x0 + at, x1 + at, x2 + at, x3 + at, w, COLUMN_BYTES)
                    else:
                        tile = tiles.add_int8_group(tile, x0 + at, x1 + at, x2 + at, x3 + at, w, COLUMN_BYTES)
                tiles.store_tile(tile, y0, y1, y2, y3, some)


# --- entry points -----------------------------------------------------------------------------------------------------

_compiled = cfunc(types.void(types.intp), cache=True)


@_compiled
def normalize(arguments):
    _normalize(arguments)


@_compiled
def attend(arguments):
    _attend(arguments)


@_compiled
def round_few_int4(arguments):
    _round_few(arguments, 4)


@_compiled
def round_few_int8(arguments):
    _round_few(arguments, 8)


@_compiled
def round_many_int4(arguments):
    _round_many(arguments, 4)


@_compiled
def round_many_int8(arguments):
    _round_many(arguments, 8)


@_compiled
def multiply_few_int4(arguments):
    _multiply_few(arguments, 4)


@_compiled
def multiply_few_int8(arguments):
    _multiply_few(arguments, 8)


@_compiled
def multiply_many_int4(arguments):
    _multiply_many(arguments, 4)


@_compiled
def multiply_many_int8(arguments):
    _multiply_many(arguments, 8)
