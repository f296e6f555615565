"""Multiply many rows by packed weights: compute-bound.

The weights of 32 outputs are rearranged, then used for all rows (`tiles.py`).

R rows, I inputs, O outputs, E experts, G experts with rows. A single matrix is a stack of one expert.
"""

from gesso.backends.cpu.kernels import tiles
from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.compiling import VERSION, entry, inlined, load_four
from gesso.backends.cpu.kernels.rounding import GROUP

OUTPUTS = 16 * tiles.COLUMNS  # of one part of the work
DEPTH = 16  # groups that are rearranged at a time: what fits into the first-level cache
COLUMN_BYTES = DEPTH * tiles.GROUP_BYTES
SPACE_BYTES = tiles.COLUMNS * COLUMN_BYTES  # of a thread


@inlined
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


@inlined
def _multiply_many(arguments, bits):
    """Multiply rows by the matrices of their experts; arguments as in `few_rows.py`, and

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


def _entries(version):
    @entry
    def multiply_many_int4(arguments):
        if version:
            _multiply_many(arguments, 4)

    @entry
    def multiply_many_int8(arguments):
        if version:
            _multiply_many(arguments, 8)

    return multiply_many_int4, multiply_many_int8


multiply_many_int4, multiply_many_int8 = _entries(VERSION)
