"""What happens to a token between the products, fused: each kernel reads and writes a row once.

A layer has some twenty such steps, each a few microseconds on a GPU whether it has much to do or not. These are four:
after the projections (norms and rotation of queries, keys and values), after attention, before the experts (the choice
of them), and after them. All work in float32 inside and round once, at the end.

T tokens, H hidden, N query heads, M key/value heads, D head dim, E experts, K experts a token.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.ops.kernels.linear import precision

SPLIT = 11  # programs that share the sum of a router's score: with 256 tokens one row of tiles would leave most idle


def rms_norm(x_TH: Tensor, weight_H: Tensor | None, eps: float) -> Tensor:
    y_TH = torch.empty_like(x_TH)
    width = x_TH.shape[-1]
    _rms_norm[(x_TH.numel() // width,)](x_TH, weight_H, y_TH, width, eps, COLUMNS=triton.next_power_of_2(width))
    return y_TH


def heads(
    q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, q_weight_D: Tensor, k_weight_D: Tensor,
    rotation: tuple[Tensor, Tensor], eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What `ops.heads` computes. A global layer's values are its keys before norm and rotation: the same tensor."""
    out = torch.empty_like(q_TND), torch.empty_like(k_TMD), torch.empty_like(v_TMD)
    tokens, queries, dim = q_TND.shape
    keys = k_TMD.shape[1]
    _heads[tokens, queries + 2 * keys](
        q_TND, k_TMD, v_TMD, *out, q_weight_D, k_weight_D, *rotation, eps, queries, keys, DIM=dim
    )
    return out


def add_norms(
    x_TH: Tensor, y_TH: Tensor, weight_H: Tensor, then: Sequence[Tensor], scale_H: Tensor, factor: float, eps: float
) -> tuple[Tensor, list[Tensor]]:
    """What `ops.add_norms` computes."""
    sum_TH, outs = torch.empty_like(x_TH), [torch.empty_like(x_TH) for _ in range(3)]
    width = x_TH.shape[1]
    _add_norms[(len(x_TH),)](
        x_TH, y_TH, weight_H, *then, scale_H, factor, sum_TH, *outs, width, eps,
        COLUMNS=triton.next_power_of_2(width), num_warps=8,
    )  # fmt: skip
    return sum_TH, outs


def route(x_TH: Tensor, weight_EH: Tensor, expert_scale_E: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The router's product and `ops.route`: chosen experts and their weights [T, K]."""
    tokens, width = x_TH.shape
    experts, rows = len(weight_EH), 16
    across = triton.next_power_of_2(max(experts, 16))
    partial_STE = torch.empty(SPLIT, tokens, experts, device=x_TH.device)
    _scores[triton.cdiv(tokens, rows), SPLIT](
        x_TH, weight_EH, partial_STE, tokens, width, experts,
        ROWS=rows, EXPERTS=across, DEPTH=64, SPLIT=SPLIT, PRECISION=precision(x_TH), num_warps=4, num_stages=3,
    )  # fmt: skip
    index_TK = torch.empty(tokens, k, dtype=torch.int32, device=x_TH.device)
    weight_TK = torch.empty(tokens, k, device=x_TH.device)
    _choose[(tokens,)](
        partial_STE, expert_scale_E, index_TK, weight_TK, tokens, experts, EXPERTS=across, K=k, SPLIT=SPLIT,
        ROUNDED=x_TH.dtype == torch.bfloat16, num_warps=1,
    )  # fmt: skip
    return index_TK, weight_TK


def join(
    x_TH: Tensor, dense_TH: Tensor, sparse_TH: Tensor, weights: Sequence[Tensor], scalar_T1: Tensor, eps: float
) -> Tensor:
    """What `ops.join` computes."""
    out_TH, width = torch.empty_like(x_TH), x_TH.shape[1]
    _join[(len(x_TH),)](
        x_TH, dense_TH, sparse_TH, *weights, scalar_T1, out_TH, width, eps,
        COLUMNS=triton.next_power_of_2(width), num_warps=8,
    )  # fmt: skip
    return out_TH


@triton.jit
def _normed(x, width, eps):
    return x * tl.rsqrt(tl.sum(x * x, 0) / width + eps)


@triton.jit
def _row(ptr, start, column, width):
    return tl.load(ptr + start + column, mask=column < width, other=0.0).to(tl.float32)


@triton.jit
def _rms_norm(x_ptr, weight_ptr, y_ptr, width, eps, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    start = tl.program_id(0).to(tl.int64) * width
    y = _normed(_row(x_ptr, start, column, width), width, eps)
    if weight_ptr is not None:
        y *= _row(weight_ptr, 0, column, width)
    tl.store(y_ptr + start + column, y.to(y_ptr.dtype.element_ty), mask=column < width)


@triton.jit
def _heads(
    q_ptr, k_ptr, v_ptr, q_out, k_out, v_out, q_weight, k_weight, cos_ptr, sin_ptr, eps, queries, keys,
    DIM: tl.constexpr,
):  # fmt: skip
    """One program a token and head: first the queries, then keys, then values."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half = tl.arange(0, DIM // 2)
    if head < queries:
        _turn(q_ptr, q_out, q_weight, cos_ptr, sin_ptr, token, token * queries + head, eps, half, DIM)
    elif head < queries + keys:
        _turn(k_ptr, k_out, k_weight, cos_ptr, sin_ptr, token, token * keys + head - queries, eps, half, DIM)
    else:
        at = (token * keys + head - queries - keys) * DIM + tl.arange(0, DIM)
        v = _normed(tl.load(v_ptr + at).to(tl.float32), DIM, eps)
        tl.store(v_out + at, v.to(v_out.dtype.element_ty))


@triton.jit
def _turn(x_ptr, out_ptr, weight_ptr, cos_ptr, sin_ptr, token, row, eps, half, DIM: tl.constexpr):
    left_at, angle_at = row * DIM + half, token * DIM + half
    left = tl.load(x_ptr + left_at).to(tl.float32)
    right = tl.load(x_ptr + left_at + DIM // 2).to(tl.float32)
    size = tl.rsqrt((tl.sum(left * left, 0) + tl.sum(right * right, 0)) / DIM + eps)
    left *= size * tl.load(weight_ptr + half).to(tl.float32)
    right *= size * tl.load(weight_ptr + half + DIM // 2).to(tl.float32)
    # The angles of the two halves are the same.
    cos, sin = tl.load(cos_ptr + angle_at).to(tl.float32), tl.load(sin_ptr + angle_at).to(tl.float32)
    tl.store(out_ptr + left_at, (left * cos - right * sin).to(out_ptr.dtype.element_ty))
    tl.store(out_ptr + left_at + DIM // 2, (right * cos + left * sin).to(out_ptr.dtype.element_ty))


@triton.jit
def _add_norms(
    x_ptr, y_ptr, weight_ptr, a_ptr, b_ptr, scale_ptr, factor, sum_ptr, a_out, b_out, c_out, width, eps,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)
    start = tl.program_id(0).to(tl.int64) * width
    y = _normed(_row(y_ptr, start, column, width), width, eps) * _row(weight_ptr, 0, column, width)
    # Rounded before the norms are taken, as it is for whoever reads it later.
    total = (_row(x_ptr, start, column, width) + y).to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + start + column, total, mask=column < width)
    normed = _normed(total.to(tl.float32), width, eps)
    kind = a_out.dtype.element_ty
    tl.store(a_out + start + column, (normed * _row(a_ptr, 0, column, width)).to(kind), mask=column < width)
    tl.store(b_out + start + column, (normed * _row(b_ptr, 0, column, width)).to(kind), mask=column < width)
    # A router's choice may hang on the last bit, so this one is rounded wherever the plain version rounds.
    routed = (normed.to(kind).to(tl.float32) * _row(scale_ptr, 0, column, width)).to(kind).to(tl.float32) * factor
    tl.store(c_out + start + column, routed.to(kind), mask=column < width)


@triton.jit
def _scores(
    x_ptr, weight_ptr, partial_ptr, tokens, width, experts,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, DEPTH: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, EXPERTS)
    score = tl.zeros((ROWS, EXPERTS), tl.float32)
    for start in range(tl.program_id(1) * DEPTH, width, SPLIT * DEPTH):
        depth = start + tl.arange(0, DEPTH)
        x_at = x_ptr + row[:, None].to(tl.int64) * width + depth[None, :]
        x = tl.load(x_at, mask=(row[:, None] < tokens) & (depth[None, :] < width), other=0.0)
        weight_at = weight_ptr + expert[None, :] * width + depth[:, None]
        weight = tl.load(weight_at, mask=(expert[None, :] < experts) & (depth[:, None] < width), other=0.0)
        score = tl.dot(x, weight, score, input_precision=PRECISION)
    at = (tl.program_id(1) * tokens + row[:, None]) * experts + expert[None, :]
    tl.store(partial_ptr + at, score, mask=(row[:, None] < tokens) & (expert[None, :] < experts))


@triton.jit
def _choose(
    partial_ptr, scale_ptr, index_ptr, weight_ptr, tokens, experts,
    EXPERTS: tl.constexpr, K: tl.constexpr, SPLIT: tl.constexpr, ROUNDED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    score = tl.zeros((EXPERTS,), tl.float32)
    for part in tl.static_range(SPLIT):
        score += tl.load(partial_ptr + (part * tokens + token) * experts + expert, mask=expert < experts, other=0.0)
    if ROUNDED:  # as the product of the plain version is
        score = score.to(tl.bfloat16).to(tl.float32)
    # Not a number is no reason to choose fewer than K: an index would be left unwritten, and read.
    score = tl.where((expert < experts) & (score == score), score, -1e30)
    # The shares of the chosen do not need those of the others: exp(score - best), over the sum of the chosen.
    share = tl.exp(score - tl.max(score, 0))
    total = 0.0
    left = tl.where(expert < experts, share, -1.0)
    chosen_at = tl.zeros((EXPERTS,), tl.int32)
    for choice in tl.static_range(K):
        best = tl.argmax(left, 0, tie_break_left=True)
        total += tl.sum(tl.where(expert == best, share, 0.0), 0)
        chosen_at = tl.where(expert == best, choice + 1, chosen_at)
        left = tl.where(expert == best, -1.0, left)
    scale = tl.load(scale_ptr + expert, mask=expert < experts, other=0.0).to(tl.float32)
    at = token * K + chosen_at - 1
    tl.store(index_ptr + at, expert, mask=chosen_at > 0)
    tl.store(weight_ptr + at, share / total * scale, mask=chosen_at > 0)


@triton.jit
def _join(
    x_ptr, dense_ptr, sparse_ptr, dense_norm, sparse_norm, both_norm, scalar_ptr, out_ptr, width, eps,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)
    token = tl.program_id(0).to(tl.int64)
    start = token * width
    both = _normed(_row(dense_ptr, start, column, width), width, eps) * _row(dense_norm, 0, column, width)
    both += _normed(_row(sparse_ptr, start, column, width), width, eps) * _row(sparse_norm, 0, column, width)
    out = _row(x_ptr, start, column, width) + _normed(both, width, eps) * _row(both_norm, 0, column, width)
    out *= tl.load(scalar_ptr + token).to(tl.float32)
    tl.store(out_ptr + start + column, out.to(out_ptr.dtype.element_ty), mask=column < width)
