"""The table of a kernel that runs a token through all layers: one row of integers of 64 bits per layer.

The constants are the fields of a row, in bytes. Most hold the address of float32 values.

H hidden, N query heads, M key/value heads, D head dim, I width of the dense MLP, E experts, K experts per token,
W width of an expert, L capacity of the cache.
"""

from gesso.backends.cpu.kernels.matrices import MATRIX_BYTES

_MATRICES, _NUMBERS = 9, 48

# Packed matrices: five integers each.
Q_PROJ, K_PROJ, V_PROJ, O_PROJ, GATE_PROJ, UP_PROJ, DOWN_PROJ, EXPERTS_UP, EXPERTS_DOWN = (
    MATRIX_BYTES * i for i in range(_MATRICES)
)
(
    COUNTERS,  # of the stages
    HIDDEN, HEADS, GROUP, SIZE, EXPERTS, CHOSEN,  # H, M, N / M, D, E, K
    EPS, ROOT,  # float64: of the norms, and the factor of the router's input
    # Weights of norms, router and layer.
    NORM_INPUT, NORM_QUERY, NORM_KEY, NORM_ATTENDED, NORM_DENSE, NORM_EXPERTS, NORM_AFTER_DENSE, NORM_AFTER_EXPERTS,
    NORM_AFTER, ROUTER, ROUTER_SCALE, EXPERT_SCALE, SCALAR,
    KEYS, VALUES, PLACE,  # the cache [L, M, D], and the place of this token in it
    HELD, OLDEST, UNSEEN,  # how many tokens are in it, the place of the oldest, and how many from there on are not seen
    COS, SIN,  # [D]
    # Buffers.
    X, Y,  # [H]: the hidden state, and a normed one
    QUERIES, NEW_KEYS, RAW_VALUES, NEW_VALUES, ATTENDED,  # [N, D], three [M, D], [N, D]
    SCORES,  # [N, HELD + 1], rows rounded up to a multiple of 16
    ROUNDED, ROUNDED_EXPERTS,  # a row for products; K rows
    GATES, UPS, DENSE, ROUTES,  # [I], [I], [H], [E]
    INDEX, WEIGHT, EXPERT_HIDDEN, SPARSE,  # int64 [K], [K], [K, 2W], [H]
) = (MATRIX_BYTES * _MATRICES + 8 * i for i in range(_NUMBERS))  # fmt: skip
LAYER_BYTES = MATRIX_BYTES * _MATRICES + 8 * _NUMBERS
