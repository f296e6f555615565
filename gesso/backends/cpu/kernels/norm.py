"""RMS norm. R rows, I inputs."""

import math

from numba import types

from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.compiling import VERSION, entry, inlined, load_four


@inlined
def inverse_length(x, inputs, eps):
    """Return the factor that makes the mean square of a row 1."""
    sums = vec.no_floats()
    for i in range(0, 4 * inputs, 64):
        values = vec.load_floats(x + i)
        sums = vec.fused(values, values, sums)
    return types.float32(1 / math.sqrt(vec.total(sums) / inputs + eps))


@inlined
def normalize_row(x, inputs, y, weight, eps):
    factor = inverse_length(x, inputs, eps)
    for i in range(0, 4 * inputs, 64):
        values = vec.times(vec.load_floats(x + i), vec.load_floats(weight + i))
        vec.store_floats(y + i, vec.multiplied(values, factor))


@inlined
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
        at = 4 * row * inputs
        normalize_row(x + at, inputs, y + at, weight, eps)


def _entries(version):
    @entry
    def normalize(arguments):
        if version:
            _normalize(arguments)

    return normalize


normalize = _entries(VERSION)
