"""Norms and rotation of the heads of one token. D head dim: its first and second half are rotated together."""

from numba import njit, types

from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.norm import inverse_length


@njit
def norm_and_rotate(x, size, weight, cos, sin, eps):
    """Apply a norm and the rotation of a position to a head, in place. All are float32 [D]; D is a multiple of 32."""
    factor, half = inverse_length(x, size, eps), 2 * size
    for i in range(0, half, 64):
        a = vec.multiplied(vec.times(vec.load_floats(x + i), vec.load_floats(weight + i)), factor)
        b = vec.multiplied(vec.times(vec.load_floats(x + half + i), vec.load_floats(weight + half + i)), factor)
        turned_a = vec.multiplied(vec.times(b, vec.load_floats(sin + i)), types.float32(-1))
        turned_b = vec.times(a, vec.load_floats(sin + half + i))
        vec.store_floats(x + i, vec.fused(a, vec.load_floats(cos + i), turned_a))
        vec.store_floats(x + half + i, vec.fused(b, vec.load_floats(cos + half + i), turned_b))


@njit
def norm_plain(x, size, y, eps):
    """Write a head, after a norm without weights, to `y`."""
    factor = inverse_length(x, size, eps)
    for i in range(0, 4 * size, 64):
        vec.store_floats(y + i, vec.multiplied(vec.load_floats(x + i), factor))


@njit
def copy(x, size, y):
    for i in range(0, 4 * size, 64):
        vec.store_floats(y + i, vec.load_floats(x + i))
