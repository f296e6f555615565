"""Attention of one token.

N query heads, M key/value heads, G = N/M queries per key head, D head dim, L capacity of the cache.
"""

import math

from numba import types

from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.compiling import VERSION, entry, inlined, load_four
from gesso.backends.cpu.kernels.functions import exponential

BLOCK = 64  # tokens whose values are in a cache while all their parts are added
AHEAD = 4  # tokens: those of one head are too far from each other for the processor to prefetch them


@inlined
def _score(q, other, k, size, ahead, score, other_score):
    """Write the scores of a key for two queries."""
    a, b = vec.no_floats(), vec.no_floats()
    for i in range(0, 4 * size, 64):
        part = vec.load_floats(k + i)
        vec.prefetch(k + i + ahead)
        a, b = vec.fused(vec.load_floats(q + i), part, a), vec.fused(vec.load_floats(other + i), part, b)
    vec.store_float(score, vec.total(a))
    vec.store_float(other_score, vec.total(b))


@inlined
def _add_values(v, tokens, stride, size, weight, other_weight, y, other):
    """Add the values of some tokens to the outputs of two queries."""
    for i in range(0, 4 * size, 128):
        a, b = vec.load_floats(y + i), vec.load_floats(y + i + 64)
        c, d = vec.load_floats(other + i), vec.load_floats(other + i + 64)
        for token in range(tokens):
            at = v + token * stride + i
            first, second = vec.load_floats(at), vec.load_floats(at + 64)
            p, q = vec.floats(vec.load_float(weight + 4 * token)), vec.floats(vec.load_float(other_weight + 4 * token))
            a, b, c, d = (
                vec.fused(p, first, a),
                vec.fused(p, second, b),
                vec.fused(q, first, c),
                vec.fused(q, second, d),
            )
        vec.store_floats(y + i, a)
        vec.store_floats(y + i + 64, b)
        vec.store_floats(other + i, c)
        vec.store_floats(other + i + 64, d)


@inlined
def _softmax(scores, room):
    """Replace scores by probabilities."""
    top = vec.load_floats(scores)
    for i in range(64, 4 * room, 64):
        top = vec.larger(top, vec.load_floats(scores + i))
    minus, sums = vec.floats(-vec.greatest(top)), vec.no_floats()
    for i in range(0, 4 * room, 64):
        weights = exponential(vec.plus(vec.load_floats(scores + i), minus))
        vec.store_floats(scores + i, weights)
        sums = vec.plus(sums, weights)
    factor = types.float32(1) / vec.total(sums)
    for i in range(0, 4 * room, 64):
        vec.store_floats(scores + i, vec.multiplied(vec.load_floats(scores + i), factor))


@inlined
def attend_head(q, key, value, keys, values, count, oldest, unseen, stride, group, size, out, scores):
    """Attend from the queries of one key head to the keys of a cache and that of the token itself.

    q, out        float32 [G, D]; D is a multiple of 32
    key, value    float32 [D]: those of the token itself
    keys, values  rows of float32 [D], `stride` bytes apart; the first `count` are seen, except `unseen` of them from
                  `oldest` on: in a ring, those before the window
    scores        float32 [G, room], where `room` is count + 1, rounded up to a multiple of 16
    """
    room, last = (count + 16) // 16 * 16, group - 1
    for g in range(group):
        vec.store_floats(scores + 4 * (g * room + room - 16), vec.floats(types.float32(-math.inf)))
        for i in range(0, 4 * size, 64):
            vec.store_floats(out + 4 * g * size + i, vec.no_floats())
    for token in range(count + 1):
        k = keys + token * stride if token < count else key
        for g in range(0, group, 2):  # an odd query is its own partner
            h, at = min(g + 1, last), scores + 4 * token
            _score(q + 4 * g * size, q + 4 * h * size, k, size, AHEAD * stride, at + 4 * g * room, at + 4 * h * room)
    for i in range(oldest, oldest + unseen):
        for g in range(group):
            vec.store_float(scores + 4 * (g * room + (i if i < count else i - count)), types.float32(-math.inf))
    for g in range(group):
        _softmax(scores + 4 * g * room, room)
    for token in range(0, count + 1, BLOCK):
        tokens = min(BLOCK, count - token)  # of the cache
        for g in range(0, group, 2):
            h, weights = min(g + 1, last), scores + 4 * token
            p, r, y, z = weights + 4 * g * room, weights + 4 * h * room, out + 4 * g * size, out + 4 * h * size
            _add_values(values + token * stride, tokens, stride, size, p, r, y, z)
            if token + BLOCK > count:  # the last block: the token itself
                _add_values(value, 1, stride, size, p + 4 * tokens, r + 4 * tokens, y, z)


@inlined
def _attend(arguments):
    """Attend from one token to the keys of a cache and its own. One part of the work is a key head.

    q, out        float32 [N, D]: N = M·G query heads; D is a multiple of 32
    key, value    float32 [M, D]: those of the token itself
    keys, values  float32 [L, M, D], of which some are seen: `count`, `oldest` and `unseen` as for `attend_head`
    scores        float32 [N, room], where `room` is count + 1, rounded up to a multiple of 16
    """
    q, key, value, keys = load_four(arguments + 8)
    values, count, heads, group = load_four(arguments + 40)
    size, out, scores = vec.load_long(arguments + 72), vec.load_long(arguments + 80), vec.load_long(arguments + 88)
    oldest, unseen = vec.load_long(arguments + 96), vec.load_long(arguments + 104)
    room = (count + 16) // 16 * 16
    while True:
        head = vec.take(arguments)
        if head >= heads:
            break
        at, first = 4 * head * size, head * group
        attend_head(
            q + 4 * first * size, key + at, value + at, keys + at, values + at, count, oldest, unseen,
            4 * heads * size, group, size, out + 4 * first * size, scores + 4 * first * room,
        )  # fmt: skip


def _entries(version):
    @entry
    def attend(arguments):
        if version:
            _attend(arguments)

    return attend


attend = _entries(VERSION)
