"""Multiply few rows by packed weights: memory-bound.

Weights are used in the order of the file. A vector holds 64 values: one half of each of four groups, the same half as
the vector of the row that it is multiplied by (`rounding.py`).

R rows, I inputs, O outputs, E experts, G experts with rows. A single matrix is a stack of one expert.
"""

from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.compiling import VERSION, entry, inlined, load_four
from gesso.backends.cpu.kernels.rounding import BLOCK, GROUP, ROW_BLOCK_BYTES

OUTPUTS = 32  # of one part of the work
AHEAD = 1024  # bytes of weights to prefetch ahead: 17 GB/s on two cores instead of 14


@inlined
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


@inlined
def _unpack_some(weight, groups, bits):
    """Return the last block, of fewer than four groups."""
    if bits == 4:
        packed = vec.load_some_bytes(weight, 16 * groups)
        return vec.low_nibbles(packed), vec.high_nibbles(packed)
    a, b = vec.load_some_bytes(weight, min(64, 32 * groups)), vec.load_some_bytes(weight + 64, max(0, 32 * groups - 64))
    return vec.offset_bytes(vec.first_halves(a, b)), vec.offset_bytes(vec.second_halves(a, b))


@inlined
def _add_block(sums, x, first, second, scales, bits):
    start = vec.load_ints(x + 128)
    if bits == 4:
        products = vec.dot_nibbles(vec.dot_nibbles(start, first, vec.load_bytes(x)), second, vec.load_bytes(x + 64))
    else:
        products = vec.dot_bytes(vec.dot_bytes(start, first, vec.load_bytes(x)), second, vec.load_bytes(x + 64))
    return vec.fused(vec.to_floats(products), vec.times(scales, vec.load_floats(x + 192)), sums)


@inlined
def dot(x, weight, scale, inputs, bits):
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


@inlined
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
                vec.store_float(out + 4 * (row * outputs + o), dot(x_row, weight, scale, inputs, bits))


def _entries(version):
    @entry
    def multiply_few_int4(arguments):
        if version:
            _multiply_few(arguments, 4)

    @entry
    def multiply_few_int8(arguments):
        if version:
            _multiply_few(arguments, 8)

    return multiply_few_int4, multiply_few_int8


multiply_few_int4, multiply_few_int8 = _entries(VERSION)
