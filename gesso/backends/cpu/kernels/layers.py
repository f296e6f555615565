"""One token through all layers, in one kernel: threads meet between stages only.

`Layer` in `gesso/model/transformer.py` is the specification, and `table.py` has the fields of a layer.
"""

from numba import njit, types

from gesso.backends.cpu.kernels import table as at
from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.attention import attend_head
from gesso.backends.cpu.kernels.compiling import VERSION, entry
from gesso.backends.cpu.kernels.few_rows import OUTPUTS
from gesso.backends.cpu.kernels.functions import gated_gelu
from gesso.backends.cpu.kernels.heads import copy, norm_and_rotate, norm_plain
from gesso.backends.cpu.kernels.matrices import multiply_part, parts_of, round_for
from gesso.backends.cpu.kernels.norm import normalize_row
from gesso.backends.cpu.kernels.rounding import BLOCK, ROW_BLOCK_BYTES
from gesso.backends.cpu.kernels.routing import choose, score_expert
from gesso.backends.cpu.kernels.stages import STAGE_BYTES, finish_part, next_part, wait

STAGES = 12  # of a layer
ROUTER_OUTPUTS = 8  # of one part


@njit
def _stage(layer, number):
    return vec.load_long(layer + at.COUNTERS) + STAGE_BYTES * number


@njit
def get(layer, field):
    return vec.load_long(layer + field)


@njit
def _projections(layer):
    """Queries, keys and values; a global layer has no matrix for values."""
    stage = _stage(layer, 0)
    part = next_part(stage)
    if part < 1:
        x, y, hidden = get(layer, at.X), get(layer, at.Y), get(layer, at.HIDDEN)
        normalize_row(x, hidden, y, get(layer, at.NORM_INPUT), vec.load_double(layer + at.EPS))
        round_for(layer + at.Q_PROJ, y, get(layer, at.ROUNDED))
        finish_part(stage)
    wait(stage, 1)
    stage, x = _stage(layer, 1), get(layer, at.ROUNDED)
    queries, keys = parts_of(layer + at.Q_PROJ), parts_of(layer + at.K_PROJ)
    parts = queries + keys + parts_of(layer + at.V_PROJ)
    while True:
        part = next_part(stage)
        if part >= parts:
            break
        if part < queries:
            multiply_part(layer + at.Q_PROJ, 0, part, x, get(layer, at.QUERIES))
        elif part < queries + keys:
            multiply_part(layer + at.K_PROJ, 0, part - queries, x, get(layer, at.NEW_KEYS))
        else:
            multiply_part(layer + at.V_PROJ, 0, part - queries - keys, x, get(layer, at.RAW_VALUES))
        finish_part(stage)
    wait(stage, parts)


@njit
def _attention(layer):
    """Norms and rotation of the heads, and their attention. One part is a key head."""
    stage, heads, group, size = _stage(layer, 2), get(layer, at.HEADS), get(layer, at.GROUP), get(layer, at.SIZE)
    eps, held = vec.load_double(layer + at.EPS), get(layer, at.HELD)
    oldest, unseen = get(layer, at.OLDEST), get(layer, at.UNSEEN)
    cos, sin, stride = get(layer, at.COS), get(layer, at.SIN), 4 * heads * size
    while True:
        head = next_part(stage)
        if head >= heads:
            break
        own, first = 4 * head * size, 4 * head * group * size
        key, value, queries = (
            get(layer, at.NEW_KEYS) + own,
            get(layer, at.NEW_VALUES) + own,
            get(layer, at.QUERIES) + first,
        )
        norm_plain(get(layer, at.RAW_VALUES) + own, size, value, eps)  # first: in a global layer it is the key, too
        norm_and_rotate(key, size, get(layer, at.NORM_KEY), cos, sin, eps)
        for g in range(group):
            norm_and_rotate(queries + 4 * g * size, size, get(layer, at.NORM_QUERY), cos, sin, eps)
        keys, values, place = get(layer, at.KEYS) + own, get(layer, at.VALUES) + own, get(layer, at.PLACE) * stride
        attend_head(
            queries, key, value, keys, values, held, oldest, unseen, stride, group, size,
            get(layer, at.ATTENDED) + first, get(layer, at.SCORES) + 4 * head * group * ((held + 16) // 16 * 16),
        )  # fmt: skip
        copy(key, size, keys + place)  # last: it may replace a token that is seen here
        copy(value, size, values + place)
        finish_part(stage)
    wait(stage, heads)
    stage = _stage(layer, 3)
    if next_part(stage) < 1:
        round_for(layer + at.O_PROJ, get(layer, at.ATTENDED), get(layer, at.ROUNDED))
        finish_part(stage)
    wait(stage, 1)
    stage, parts = _stage(layer, 4), parts_of(layer + at.O_PROJ)
    while True:
        part = next_part(stage)
        if part >= parts:
            break
        multiply_part(layer + at.O_PROJ, 0, part, get(layer, at.ROUNDED), get(layer, at.Y))
        finish_part(stage)
    wait(stage, parts)


@njit
def _add_attended(layer):
    """Add attention to the hidden state, and write the inputs of router, dense MLP and experts."""
    x, y, hidden, eps = get(layer, at.X), get(layer, at.Y), get(layer, at.HIDDEN), vec.load_double(layer + at.EPS)
    normalize_row(y, hidden, y, get(layer, at.NORM_ATTENDED), eps)
    for i in range(0, 4 * hidden, 64):
        vec.store_floats(x + i, vec.plus(vec.load_floats(x + i), vec.load_floats(y + i)))
    normalize_row(x, hidden, y, get(layer, at.NORM_DENSE), eps)
    round_for(layer + at.GATE_PROJ, y, get(layer, at.ROUNDED))
    normalize_row(x, hidden, y, get(layer, at.NORM_EXPERTS), eps)
    round_for(layer + at.EXPERTS_UP, y, get(layer, at.ROUNDED_EXPERTS))
    normalize_row(x, hidden, y, get(layer, at.ROUTER_SCALE), eps)


@njit
def _first_products(layer):
    """Scores of the experts, and the first products of the dense MLP, after the norms of both."""
    stage = _stage(layer, 5)
    if next_part(stage) < 1:
        _add_attended(layer)
        finish_part(stage)
    wait(stage, 1)
    stage, hidden, experts = _stage(layer, 6), get(layer, at.HIDDEN), get(layer, at.EXPERTS)
    root, x = types.float32(vec.load_double(layer + at.ROOT)), get(layer, at.ROUNDED)
    gates, ups = parts_of(layer + at.GATE_PROJ), parts_of(layer + at.UP_PROJ)
    parts = gates + ups + (experts + ROUTER_OUTPUTS - 1) // ROUTER_OUTPUTS
    while True:
        part = next_part(stage)
        if part >= parts:
            break
        if part < gates:
            multiply_part(layer + at.GATE_PROJ, 0, part, x, get(layer, at.GATES))
        elif part < gates + ups:
            multiply_part(layer + at.UP_PROJ, 0, part - gates, x, get(layer, at.UPS))
        else:
            first = (part - gates - ups) * ROUTER_OUTPUTS
            for expert in range(first, min(experts, first + ROUTER_OUTPUTS)):
                score = score_expert(get(layer, at.ROUTER) + 4 * expert * hidden, get(layer, at.Y), hidden)
                vec.store_float(get(layer, at.ROUTES) + 4 * expert, score * root)
        finish_part(stage)
    wait(stage, parts)


@njit
def _gate(matrix, gate, up, target):
    """Write GELU units, rounded for the products with a matrix. `gate` is overwritten."""
    for i in range(0, 4 * vec.load_long(matrix + 24), 64):
        vec.store_floats(gate + i, gated_gelu(vec.load_floats(gate + i), vec.load_floats(up + i)))
    round_for(matrix, gate, target)


@njit
def _second_products(layer):
    """The last product of the dense MLP, and the first one of the chosen experts."""
    stage, chosen = _stage(layer, 7), get(layer, at.CHOSEN)
    while True:
        part = next_part(stage)
        if part >= 2:
            break
        if part == 0:
            choose(
                get(layer, at.ROUTES), get(layer, at.EXPERTS), chosen, get(layer, at.EXPERT_SCALE),
                get(layer, at.INDEX), get(layer, at.WEIGHT),
            )  # fmt: skip
        else:
            _gate(layer + at.DOWN_PROJ, get(layer, at.GATES), get(layer, at.UPS), get(layer, at.ROUNDED))
        finish_part(stage)
    wait(stage, 2)
    stage, dense, each = _stage(layer, 8), parts_of(layer + at.DOWN_PROJ), parts_of(layer + at.EXPERTS_UP)
    row, parts = 4 * vec.load_long(layer + at.EXPERTS_UP + 16), dense + chosen * each
    while True:
        part = next_part(stage)
        if part >= parts:
            break
        if part < dense:
            multiply_part(layer + at.DOWN_PROJ, 0, part, get(layer, at.ROUNDED), get(layer, at.DENSE))
        else:
            choice, part = divmod(part - dense, each)
            expert, out = vec.load_long(get(layer, at.INDEX) + 8 * choice), get(layer, at.EXPERT_HIDDEN) + row * choice
            multiply_part(layer + at.EXPERTS_UP, expert, part, get(layer, at.ROUNDED_EXPERTS), out)
        finish_part(stage)
    wait(stage, parts)


@njit
def _third_products(layer):
    """The last product of the experts, and the sum of all outputs."""
    stage, chosen = _stage(layer, 9), get(layer, at.CHOSEN)
    width = vec.load_long(layer + at.EXPERTS_DOWN + 24)
    row_bytes = (width + BLOCK - 1) // BLOCK * ROW_BLOCK_BYTES
    while True:
        choice = next_part(stage)
        if choice >= chosen:
            break
        gate = get(layer, at.EXPERT_HIDDEN) + 8 * width * choice
        _gate(layer + at.EXPERTS_DOWN, gate, gate + 4 * width, get(layer, at.ROUNDED_EXPERTS) + row_bytes * choice)
        finish_part(stage)
    wait(stage, chosen)
    stage, parts = _stage(layer, 10), parts_of(layer + at.EXPERTS_DOWN)
    while True:
        part = next_part(stage)
        if part >= parts:
            break
        _sum_experts(layer, part, chosen, row_bytes)
        finish_part(stage)
    wait(stage, parts)
    stage = _stage(layer, 11)
    if next_part(stage) < 1:
        _add_outputs(layer)
        finish_part(stage)
    wait(stage, 1)


@njit
def _sum_experts(layer, part, chosen, row_bytes):
    """Write the weighted sum of one part of all experts' outputs."""
    sparse, hidden = get(layer, at.SPARSE), get(layer, at.HIDDEN)
    product = get(layer, at.Y)  # not in use here
    for choice in range(chosen):
        expert = vec.load_long(get(layer, at.INDEX) + 8 * choice)
        weight = vec.load_float(get(layer, at.WEIGHT) + 4 * choice)
        multiply_part(
            layer + at.EXPERTS_DOWN, expert, part, get(layer, at.ROUNDED_EXPERTS) + row_bytes * choice, product
        )
        for i in range(4 * part * OUTPUTS, 4 * min(hidden, (part + 1) * OUTPUTS), 4):
            before = vec.load_float(sparse + i) if choice else types.float32(0)
            vec.store_float(sparse + i, before + weight * vec.load_float(product + i))


@njit
def _add_outputs(layer):
    """Add the outputs of dense MLP and experts to the hidden state, each after its norm, and scale it."""
    x, dense, sparse = get(layer, at.X), get(layer, at.DENSE), get(layer, at.SPARSE)
    hidden, eps, scalar = get(layer, at.HIDDEN), vec.load_double(layer + at.EPS), vec.load_float(get(layer, at.SCALAR))
    normalize_row(dense, hidden, dense, get(layer, at.NORM_AFTER_DENSE), eps)
    normalize_row(sparse, hidden, sparse, get(layer, at.NORM_AFTER_EXPERTS), eps)
    for i in range(0, 4 * hidden, 64):
        vec.store_floats(sparse + i, vec.plus(vec.load_floats(sparse + i), vec.load_floats(dense + i)))
    normalize_row(sparse, hidden, sparse, get(layer, at.NORM_AFTER), eps)
    for i in range(0, 4 * hidden, 64):
        total = vec.plus(vec.load_floats(x + i), vec.load_floats(sparse + i))
        vec.store_floats(x + i, vec.multiplied(total, scalar))


def _entries(version):
    @entry
    def run_layers(arguments):
        """Run a token through layers: the address of their table, and their number."""
        table, count = vec.load_long(arguments + 8), vec.load_long(arguments + 16)
        if version:
            for layer in range(table, table + count * at.LAYER_BYTES, at.LAYER_BYTES):
                _projections(layer)
                _attention(layer)
                _first_products(layer)
                _second_products(layer)
                _third_products(layer)

    return run_layers


run_layers = _entries(VERSION)
