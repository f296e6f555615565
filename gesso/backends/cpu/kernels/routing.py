"""Choose the experts of one token. `route` in `gesso/model/experts.py` is the specification.

E experts, K experts per token.
"""

import math

from numba import njit, types

from gesso.backends.cpu.kernels import vectors as vec

LOWEST = -math.inf


@njit
def score_expert(weight, x, inputs):
    """Return the score of an expert: the product of two rows of float32."""
    sums = vec.no_floats()
    for i in range(0, 4 * inputs, 64):
        sums = vec.fused(vec.load_floats(weight + i), vec.load_floats(x + i), sums)
    return vec.total(sums)


@njit
def choose(scores, experts, k, expert_scale, index, weight):
    """Choose the K experts with the largest scores, among equals the first. Their scores are overwritten.

    scores, expert_scale  float32 [E]
    index, weight         int64 [K], float32 [K]: the experts and their weights, which are written

    Probabilities that are renormalized among the chosen are the softmax of their scores alone.
    """
    top, total = types.float32(0), 0.0
    for choice in range(k):
        best, largest = 0, vec.load_float(scores)
        for expert in range(1, experts):
            score = vec.load_float(scores + 4 * expert)
            if score > largest:
                best, largest = expert, score
        if choice == 0:
            top = largest
        power = math.exp(largest - top)
        total += power
        vec.store_float(scores + 4 * best, types.float32(LOWEST))
        vec.store_long(index + 8 * choice, best)
        vec.store_float(weight + 4 * choice, types.float32(power))
    for choice in range(k):
        scale = vec.load_float(expert_scale + 4 * vec.load_long(index + 8 * choice))
        vec.store_float(weight + 4 * choice, types.float32(vec.load_float(weight + 4 * choice) / total * scale))
