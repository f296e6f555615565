"""The prediction of one row: logits, the statistics of their distribution, and a draw from it, in one pass.

`predict` and `summarize` in `gesso/backends/torch.py` are the specification, and `draw` in `gesso/diffusion/hash.py`.

H hidden, V vocabulary, P parts of the vocabulary.
"""

import math

from llvmlite import ir
from numba import njit, types

from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.compiling import VERSION, entry, load_four
from gesso.backends.cpu.kernels.few_rows import OUTPUTS
from gesso.backends.cpu.kernels.functions import exponential, logarithm, softcapped
from gesso.backends.cpu.kernels.instructions import INT, LONG, call, indices, splat
from gesso.backends.cpu.kernels.matrices import multiply_part
from gesso.backends.cpu.kernels.vectors import LANES, Floats, Ints, operation

PART = 8 * OUTPUTS  # tokens of a part
STATISTICS = 6  # float32 values of a part: see `_summarize`
GOLDEN, M1, M2 = 0x9E3779B9, 0x7FEB352D, 0x846CA68B  # as in `gesso/diffusion/hash.py`


def _ints(number):
    return ir.Constant(Ints.llvm, [number] * LANES)


def _mixed(builder, x, bits):
    return builder.xor(x, builder.lshr(x, _ints(bits)))


@operation(Floats, types.int64, types.int64, types.int64)
def uniform(builder, token, first, second):
    """Return numbers between 0 and 1 for 16 consecutive tokens, from the two hashes of a position."""
    token, first, second = (splat(builder, builder.trunc(value, INT), LANES) for value in (token, first, second))
    number = builder.mul(builder.add(token, indices(range(LANES))), _ints(GOLDEN))
    x = builder.add(builder.mul(_mixed(builder, builder.xor(number, first), 16), _ints(M1)), second)
    x = _mixed(builder, builder.mul(_mixed(builder, x, 15), _ints(M2)), 16)
    # The upper 23 bits become the fraction of a float between 1 and 2.
    bits = builder.or_(builder.lshr(x, _ints(9)), _ints(0x3F800000))
    return builder.fsub(builder.bitcast(bits, Floats.llvm), ir.Constant(Floats.llvm, [1 - 2.0**-24] * LANES))


@operation(Ints, types.int64)
def _numbers(builder, first):
    """Return 16 consecutive integers."""
    return builder.add(splat(builder, builder.trunc(first, INT), LANES), indices(range(LANES)))


@operation(Ints, Floats, Floats, Ints, Ints)
def _of_larger(builder, value, best, number, best_number):
    """Return the numbers of the larger values; those of `best` if they are equal."""
    return builder.select(builder.fcmp_ordered(">", value, best), number, best_number)


@operation(types.int64, Floats, types.float32, Ints)
def _first_place(builder, best, largest, number):
    """Return the smallest of the numbers whose values are the largest; 2^31 - 1 if that is NaN."""
    is_largest = builder.fcmp_ordered("==", best, splat(builder, largest, LANES))
    places = builder.select(is_largest, number, _ints(2**31 - 1))
    return builder.sext(call(builder, "llvm.vector.reduce.umin.v16i32", INT, places), LONG)


@njit
def _store_largest(best, number, target):
    largest = vec.greatest(best)
    vec.store_float(target, largest)
    vec.store_float(target + 4, types.float32(_first_place(best, largest, number)))


@njit
def _summarize(logits, first, count, cap, temperature, keys, target):
    """Write the statistics of the tokens from `first` on, whose products are replaced by logits.

    0   the largest logit, and its token
    8   the sum of e^(logit - largest), and of that times (logit - largest)
    16  the largest sum of logit and Gumbel noise, and its token
    """
    one, two = vec.load_int(keys), vec.load_int(keys + 4)
    lowest, zero = vec.floats(types.float32(-math.inf)), _numbers(first)
    best, best_number, drawn, drawn_number = lowest, zero, lowest, zero
    for i in range(0, count, LANES):
        logit = vec.divided(softcapped(vec.load_floats(logits + 4 * i), cap), vec.floats(temperature))
        vec.store_floats(logits + 4 * i, logit)
        number = _numbers(first + i)
        best_number = _of_larger(logit, best, number, best_number)
        best = vec.larger(logit, best)
        exponent = vec.minus(vec.no_floats(), logarithm(uniform(first + i, one, two)))
        noisy = vec.minus(logit, logarithm(exponent))
        drawn_number = _of_larger(noisy, drawn, number, drawn_number)
        drawn = vec.larger(noisy, drawn)
    _store_largest(best, best_number, target)
    _store_largest(drawn, drawn_number, target + 16)
    largest, sums, products = vec.floats(vec.greatest(best)), vec.no_floats(), vec.no_floats()
    for i in range(0, count, LANES):
        below = vec.minus(vec.load_floats(logits + 4 * i), largest)
        power = exponential(below)
        sums, products = vec.plus(sums, power), vec.fused(below, power, products)
    vec.store_float(target + 8, vec.total(sums))
    vec.store_float(target + 12, vec.total(products))


@njit
def _predict(arguments):
    """Predict from a rounded row, one part of the vocabulary at a time.

    matrix       the head [V, H]: see `matrices.py`
    logits       float32 [V]
    keys         int32 [2]: the hashes of the position
    temperature  float64; cap: float64, the softcap
    out          float32 [P, 6]
    """
    matrix, x, logits, keys = load_four(arguments + 8)
    temperature, cap = vec.load_double(arguments + 40), vec.load_double(arguments + 48)
    out, tokens = vec.load_long(arguments + 56), vec.load_long(matrix + 16)
    while True:
        part = vec.take(arguments)
        first = part * PART
        count = min(tokens, first + PART) - first
        if count <= 0:
            break
        for block in range(first // OUTPUTS, (first + count + OUTPUTS - 1) // OUTPUTS):
            multiply_part(matrix, 0, block, x, logits)
        target = out + 4 * STATISTICS * part
        _summarize(logits + 4 * first, first, count, types.float32(cap), types.float32(temperature), keys, target)


def _entries(version):
    @entry
    def predict(arguments):
        if version:
            _predict(arguments)

    return predict


predict = _entries(VERSION)
