"""Attention of one token.

N query heads, M key/value heads, G = N/M queries per key head, D head dim, L capacity of the cache.
"""

import math

from numba import types

from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.compiling import VERSION, entry, inlined, load_four
from gesso.backends.cpu.kernels.functions import exponential


@inlined
def _score(q, k, size):
    sums = vec.no_floats()
    for i in range(0, 4 * size, 64):
        sums = vec.fused(vec.load_floats(q + i), vec.load_floats(k + i), sums)
    return vec.total(sums)


@inlined
def _softmax(scores, room):
    """Replace scores by their exponentials and return the factor that makes probabilities of them."""
    top = vec.load_floats(scores)
    for i in range(64, 4 * room, 64):
        top = vec.larger(top, vec.load_floats(scores + i))
    minus, sums = vec.floats(-vec.greatest(top)), vec.no_floats()
    for i in range(0, 4 * room, 64):
        weights = exponential(vec.plus(vec.load_floats(scores + i), minus))
        vec.store_floats(scores + i, weights)
        sums = vec.plus(sums, weights)
    return types.float32(1) / vec.total(sums)


@inlined
def attend_head(q, key, value, keys, values, count, stride, group, size, out, scores):
    """Attend from the queries of one key head to the keys of a cache and that of the token itself.

    q, out        float32 [G, D]; D is a multiple of 16
    key, value    float32 [D]: those of the token itself
    keys, values  rows of float32 [D], `stride` bytes apart, of which the first `count` are seen
    scores        float32 [G, room], where `room` is count + 1, rounded up to a multiple of 16
    """
    room = (count + 16) // 16 * 16
    for g in range(group):
        vec.store_floats(scores + 4 * (g * room + room - 16), vec.floats(types.float32(-math.inf)))
    for token in range(count + 1):
        k = keys + token * stride if token < count else key
        for g in range(group):
            vec.store_float(scores + 4 * (g * room + token), _score(q + 4 * g * size, k, size))
    for g in range(group):
        factor = _softmax(scores + 4 * g * room, room)
        for i in range(0, 4 * size, 64):
            vec.store_floats(out + 4 * g * size + i, vec.no_floats())
        for token in range(count + 1):
            v = values + token * stride if token < count else value
            weight = vec.floats(vec.load_float(scores + 4 * (g * room + token)) * factor)
            for i in range(0, 4 * size, 64):
                y = out + 4 * g * size + i
                vec.store_floats(y, vec.fused(weight, vec.load_floats(v + i), vec.load_floats(y)))


@inlined
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
        attend_head(
            q + 4 * first * size, key + at, value + at, keys + at, values + at, count, 4 * heads * size, group, size,
            out + 4 * first * size, scores + 4 * first * room,
        )  # fmt: skip


def _entries(version):
    @entry
    def attend(arguments):
        if version:
            _attend(arguments)

    return attend


attend = _entries(VERSION)
