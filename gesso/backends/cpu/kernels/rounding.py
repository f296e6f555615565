"""Round rows of float32 to 8 bits, with one scale per 32 values, for the products of few and of many rows.

R rows, I inputs.
"""

from numba import types

from gesso.backends.cpu.kernels import tiles
from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.compiling import VERSION, entry, inlined, load_four

GROUP = 32  # values with one scale
BLOCK = 128  # values: four groups, the unit of most loops
ROW_BLOCK_BYTES = 256  # of a row that is rounded for few rows
TOP = 127.0  # largest magnitude of a rounded value
TINY = 1e-30  # groups below are zeros; the inverse of a smaller number may be infinite


@inlined
def _halves(x, bits):
    """Return the 32 values at an address in two halves: even and odd ones for int4, the first and the last for int8.

    A byte of int4 holds an even value in its low half and an odd one in its high half.
    """
    a, b = vec.load_floats(x), vec.load_floats(x + 64)
    if bits == 4:
        return vec.even_lanes(a, b), vec.odd_lanes(a, b)
    return a, b


@inlined
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


@inlined
def round_row(x, inputs, target, bits):
    """Round a row for the products of few rows. It has 256 bytes per block:

    0    of each group, the first half
    64   of each group, the second half
    128  of each group, the integer that its sums start from, and three zeros
    192  of each group, its scale four times

    Missing groups of the last block are zeros.
    """
    blocks, groups = (inputs + BLOCK - 1) // BLOCK, inputs // GROUP
    for group in range(4 * blocks):
        at = target + group // 4 * ROW_BLOCK_BYTES + group % 4 * 16
        vec.store_nothing(at + 128)
        if group < groups:
            first, second, start, scale = _round(x + 4 * group * GROUP, bits)
            vec.store_as_bytes(at, first)
            vec.store_as_bytes(at + 64, second)
            vec.store_int(at + 128, start)
            vec.store_scale(at + 192, scale)
        else:
            vec.store_nothing(at)
            vec.store_nothing(at + 64)
            vec.store_nothing(at + 192)


@inlined
def _round_few(arguments, bits):
    """Round rows for `_multiply_few`."""
    x, rows, inputs, target = load_four(arguments + 8)
    row_bytes = (inputs + BLOCK - 1) // BLOCK * ROW_BLOCK_BYTES
    while True:
        row = vec.take(arguments)
        if row >= rows:
            break
        round_row(x + 4 * row * inputs, inputs, target + row * row_bytes, bits)


@inlined
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


def _entries(version):
    @entry
    def round_few_int4(arguments):
        if version:
            _round_few(arguments, 4)

    @entry
    def round_few_int8(arguments):
        if version:
            _round_few(arguments, 8)

    @entry
    def round_many_int4(arguments):
        if version:
            _round_many(arguments, 4)

    @entry
    def round_many_int8(arguments):
        if version:
            _round_many(arguments, 8)

    return round_few_int4, round_few_int8, round_many_int4, round_many_int8


round_few_int4, round_few_int8, round_many_int4, round_many_int8 = _entries(VERSION)
