"""Products of one row with part of a packed matrix, for kernels that run several products.

Such a kernel gets a matrix [O, I], or a stack of experts [E, O, I], as five integers:

    codes, scales    addresses; the layout is that of the format
    outputs, inputs  O and I
    bits             4 for int4, 8 for int8
"""

from numba import njit

from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.compiling import load_four
from gesso.backends.cpu.kernels.few_rows import OUTPUTS, dot
from gesso.backends.cpu.kernels.rounding import round_row

MATRIX_BYTES = 40


@njit
def parts_of(matrix):
    """Return how many parts the product with a matrix has."""
    return (vec.load_long(matrix + 16) + OUTPUTS - 1) // OUTPUTS


@njit
def round_for(matrix, x, target):
    """Round a row of float32 [I] for the products with a matrix."""
    inputs = vec.load_long(matrix + 24)
    if vec.load_long(matrix + 32) == 4:
        round_row(x, inputs, target, 4)
    else:
        round_row(x, inputs, target, 8)


@njit
def multiply_part(matrix, expert, part, x, out):
    """Write one part of the product of a rounded row and a matrix to float32 [O]."""
    codes, scales, outputs, inputs = load_four(matrix)
    bits = vec.load_long(matrix + 32)
    for o in range(part * OUTPUTS, min(outputs, (part + 1) * OUTPUTS)):
        row = expert * outputs + o
        weight, scale = codes + row * (inputs * bits // 8), scales + row * (inputs // 16)
        if bits == 4:
            vec.store_float(out + 4 * o, dot(x, weight, scale, inputs, 4))
        else:
            vec.store_float(out + 4 * o, dot(x, weight, scale, inputs, 8))
