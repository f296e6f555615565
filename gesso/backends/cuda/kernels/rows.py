"""Fused operations on the rows of tokens between the products: each kernel reads and writes a row once. The plain
versions are in `gesso/backends/cuda/reference.py` and `gesso/model`.

A layer has some twenty such operations, each a few microseconds on a GPU however little it computes. These are four
kernels: after the projections (norms and rotation of queries, keys and values), after attention, before the experts
(routing), and after the experts. All of them compute in float32 and round once, at the end.
"Latency-bound" below refers to passes with one canvas.

T tokens, H hidden, N query heads, M key/value heads, D head dim, E experts, K experts per token, S splits.
"""

from collections.abc import Sequence
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.backends.cuda.activations import ExpertOutputs, Fp8Rows, Interleaved, NextNorm, Rows, SplitK
from gesso.backends.cuda.kernels.experts_four_bit import depth
from gesso.backends.cuda.kernels.four_bit import interleaved_to
from gesso.backends.cuda.kernels.linear import FP8, fp8, fp8_scale, precision

# Split-K of the router's scores: with 256 tokens, one program per row tile would leave most of the GPU idle.
SPLIT = 11


def rms_norm(x_TH: Tensor, weight_H: Tensor | None, eps: float) -> Tensor:
    """Return x / rms(x), times the weight if there is one."""
    y_TH = torch.empty_like(x_TH)
    width = x_TH.shape[-1]
    _rms_norm[(x_TH.numel() // width,)](x_TH, weight_H, y_TH, width, eps, COLUMNS=triton.next_power_of_2(width))
    return y_TH


def norm_for(x_TH: Tensor, weight_H: Tensor, eps: float, format: str | None) -> Rows:
    """Return the norm of rows, in FP8 if `format` is "fp8". Rows for four-bit experts come from `add_norms` instead."""
    if format is None:
        return rms_norm(x_TH, weight_H, eps)
    y, width = _rows_for(x_TH, format), x_TH.shape[1]
    _norm_low[(len(x_TH),)](
        x_TH, weight_H, *_tensors(y), width, eps, COLUMNS=triton.next_power_of_2(width), num_warps=4
    )
    return y


def heads(
    q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, q_weight_D: Tensor, k_weight_D: Tensor,
    rotation: tuple[Tensor, Tensor], eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return queries and keys normed and rotated, values normed: `reference.heads`.

    The values of a global layer are its keys before norm and rotation: the same tensor.
    """
    out = torch.empty_like(q_TND), torch.empty_like(k_TMD), torch.empty_like(v_TMD)
    tokens, queries, dim = q_TND.shape
    keys = k_TMD.shape[1]
    heads_per_program = gcd(queries, keys, 8)  # heads per program: one alone is hardly worth its launch
    _heads[tokens, (queries + 2 * keys) // heads_per_program](
        q_TND,
        k_TMD,
        v_TMD,
        *out,
        q_weight_D,
        k_weight_D,
        *rotation,
        eps,
        queries,
        keys,
        DIM=dim,
        HEADS=heads_per_program,
    )
    return out


def add_norms(
    x_TH: Tensor, y_TH: Tensor | SplitK, weight_H: Tensor, then: Sequence[NextNorm],
    scale_H: Tensor, factor: float, eps: float,
) -> tuple[Tensor, tuple[Rows, Rows, Tensor]]:  # fmt: skip
    """Return x + norm(y) and three norms of that sum: `reference.add_norms`."""
    sum_TH, routed_TH, width = torch.empty_like(x_TH), torch.empty_like(x_TH), x_TH.shape[1]
    (first_H, first_format), (second_H, second_format) = then
    first, second = _rows_for(x_TH, first_format), _rows_for(x_TH, second_format)
    interleave = depth("up", second_format) if isinstance(second, Interleaved) and second_format else 0
    y, parts = (y_TH, 1) if isinstance(y_TH, Tensor) else (y_TH.sums_PTO, len(y_TH.sums_PTO))
    _add_norms[(len(x_TH),)](
        x_TH, y, weight_H, first_H, second_H, scale_H, factor, sum_TH, *_tensors(first), *_tensors(second), routed_TH,
        width, eps, PARTS=parts, INTERLEAVE=interleave, COLUMNS=triton.next_power_of_2(width), num_warps=8,
    )  # fmt: skip
    return sum_TH, (first, second, routed_TH)


def _rows_for(x_TH: Tensor, format: str | None) -> Rows:
    """Allocate rows in an activation format."""
    if format == "fp8":
        return Fp8Rows(torch.empty_like(x_TH, dtype=FP8), torch.empty(len(x_TH), device=x_TH.device), x_TH.dtype)
    return torch.empty_like(x_TH) if format is None else Interleaved(torch.empty_like(x_TH))


def _tensors(rows: Rows) -> tuple[Tensor, Tensor | None]:
    """Return the tensors that a kernel writes: rows, and their scales in FP8."""
    if isinstance(rows, Fp8Rows):
        return rows.low_TI, rows.scale_T
    return (rows if isinstance(rows, Tensor) else rows.interleaved_TI), None


def route(
    x_TH: Tensor, weight_EH: Tensor, expert_scale_E: Tensor, k: int, change_TE: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the chosen experts and their weights [T, K]: the router's product, and `route` of
    `gesso/model/experts.py`. `change_TE` is added to the scores: what adapters of the router change.
    """
    tokens, width = x_TH.shape
    experts, rows = len(weight_EH), 16
    across = triton.next_power_of_2(max(experts, 16))
    splits = SPLIT if change_TE is None else SPLIT + 1
    partial_STE = torch.empty(splits, tokens, experts, device=x_TH.device)
    if change_TE is not None:
        partial_STE[SPLIT] = change_TE
    _scores[triton.cdiv(tokens, rows), SPLIT](
        x_TH, weight_EH, partial_STE, tokens, width, experts,
        ROWS=rows, EXPERTS=across, DEPTH=64, SPLIT=SPLIT, PRECISION=precision(x_TH), num_warps=4, num_stages=3,
    )  # fmt: skip
    index_TK = torch.empty(tokens, k, dtype=torch.int32, device=x_TH.device)
    weight_TK = torch.empty(tokens, k, device=x_TH.device)
    _choose[(tokens,)](
        partial_STE, expert_scale_E, index_TK, weight_TK, tokens, experts, EXPERTS=across, K=k, SPLIT=splits,
        ROUNDED=x_TH.dtype == torch.bfloat16, num_warps=1,
    )  # fmt: skip
    return index_TK, weight_TK


def join(
    x_TH: Tensor, dense_TH: Tensor, sparse_TH: Tensor | ExpertOutputs, weights: Sequence[Tensor], scalar_T1: Tensor,
    eps: float, then: NextNorm,
) -> tuple[Tensor, Rows]:  # fmt: skip
    """Return the output of a layer from its two feed-forward branches, and the norm that follows: `reference.join`."""
    outputs, expert_weights = (sparse_TH, None) if isinstance(sparse_TH, Tensor) else sparse_TH
    out_TH, width = torch.empty_like(x_TH), x_TH.shape[1]
    normed = _rows_for(x_TH, then.format)
    _join[(len(x_TH),)](
        x_TH, dense_TH, outputs, expert_weights, *weights, scalar_T1, out_TH,
        then.weight_H, *_tensors(normed), width, eps, K=len(outputs) // len(x_TH),
        COLUMNS=triton.next_power_of_2(width), num_warps=8, maxnreg=64,  # four programs per SM
    )  # fmt: skip
    return out_TH, normed


@triton.jit
def _normed(x, width, eps):
    return x * tl.rsqrt(tl.sum(x * x, 0) / width + eps)


@triton.jit
def _load_row(ptr, start, column, width):
    return tl.load(ptr + start + column, mask=column < width, other=0.0).to(tl.float32)


@triton.jit
def _store_row(y, y_ptr, scale_ptr, start, column, width, DTYPE: tl.constexpr, INTERLEAVE: tl.constexpr):
    """Store a row, rounded to DTYPE, and from there to FP8 with its own scale if scale_ptr is given.

    If INTERLEAVE is not 0, store it interleaved for tiles of that many bytes of four-bit weights.
    """
    y = y.to(DTYPE)
    if scale_ptr is not None:
        rounded = y.to(tl.float32)
        scale = fp8_scale(tl.max(tl.abs(rounded), 0))  # columns beyond the width are zero
        tl.store(y_ptr + start + column, fp8(rounded / scale), mask=column < width)
        tl.store(scale_ptr + tl.program_id(0), scale)
    else:
        target = interleaved_to(column, INTERLEAVE) if INTERLEAVE else column
        tl.store(y_ptr + start + target, y, mask=column < width)


@triton.jit
def _rms_norm(x_ptr, weight_ptr, y_ptr, width, eps, COLUMNS: tl.constexpr):
    """Norm one row. Grid: (rows,). x and y are [rows, width], weight is [width] or None. Latency-bound."""
    column = tl.arange(0, COLUMNS)
    start = tl.program_id(0).to(tl.int64) * width
    y = _normed(_load_row(x_ptr, start, column, width), width, eps)
    if weight_ptr is not None:
        y *= _load_row(weight_ptr, 0, column, width)
    tl.store(y_ptr + start + column, y.to(y_ptr.dtype.element_ty), mask=column < width)


@triton.jit
def _norm_low(x_ptr, weight_ptr, y_ptr, scale_ptr, width, eps, COLUMNS: tl.constexpr):
    """Norm one row and quantize it to FP8. Grid: (T,). x and y are [T, width], scale is [T]. Latency-bound."""
    column = tl.arange(0, COLUMNS)
    start = tl.program_id(0).to(tl.int64) * width
    y = _normed(_load_row(x_ptr, start, column, width), width, eps) * _load_row(weight_ptr, 0, column, width)
    _store_row(y, y_ptr, scale_ptr, start, column, width, x_ptr.dtype.element_ty, 0)


@triton.jit
def _heads(
    q_ptr, k_ptr, v_ptr, q_out, k_out, v_out, q_weight, k_weight, cos_ptr, sin_ptr, eps, queries, keys,
    DIM: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Norm and rotate HEADS heads of a token: first the queries, then the keys; values are only normed.

    Grid: (T, (N + 2M) / HEADS). q, k, v and their outputs are [T, heads, D]; cos and sin are [T, D]. Latency-bound.
    """
    token, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * HEADS
    head = tl.arange(0, HEADS)
    if first < queries:
        _norm_and_rotate(q_ptr, q_out, q_weight, cos_ptr, sin_ptr, token, token * queries + first + head, eps, DIM)
    elif first < queries + keys:
        _norm_and_rotate(
            k_ptr, k_out, k_weight, cos_ptr, sin_ptr, token, token * keys + first - queries + head, eps, DIM
        )
    else:
        row = token * keys + first - queries - keys + head
        at = row[:, None] * DIM + tl.arange(0, DIM)[None, :]
        v = tl.load(v_ptr + at).to(tl.float32)
        v *= tl.rsqrt(tl.sum(v * v, 1) / DIM + eps)[:, None]
        tl.store(v_out + at, v.to(v_out.dtype.element_ty))


@triton.jit
def _norm_and_rotate(x_ptr, out_ptr, weight_ptr, cos_ptr, sin_ptr, token, row, eps, DIM: tl.constexpr):
    """Norm and rotate some heads of a token."""
    half = tl.arange(0, DIM // 2)
    at = row[:, None] * DIM + half[None, :]
    left = tl.load(x_ptr + at).to(tl.float32)
    right = tl.load(x_ptr + at + DIM // 2).to(tl.float32)
    size = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / DIM + eps)[:, None]
    left *= size * tl.load(weight_ptr + half).to(tl.float32)[None, :]
    right *= size * tl.load(weight_ptr + half + DIM // 2).to(tl.float32)[None, :]
    # Both halves have the same angles.
    cos = tl.load(cos_ptr + token * DIM + half).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + token * DIM + half).to(tl.float32)[None, :]
    tl.store(out_ptr + at, (left * cos - right * sin).to(out_ptr.dtype.element_ty))
    tl.store(out_ptr + at + DIM // 2, (right * cos + left * sin).to(out_ptr.dtype.element_ty))


@triton.jit
def _add_norms(
    x_ptr, y_ptr, weight_ptr, a_ptr, b_ptr, scale_ptr, factor, sum_ptr, a_out, a_scale, b_out, b_scale, c_out,
    width, eps, PARTS: tl.constexpr, INTERLEAVE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute x + norm(y) of one row, and three norms of the sum.

    Grid: (T,). x is [T, H]; y is [T, H], or [P, T, H] as PARTS unreduced split-K sums. The norms with weights a and b
    are stored in their activation formats: a_scale and b_scale are given for FP8, INTERLEAVE applies to b. c is the
    router's input: scaled by scale [H] and by factor. Latency-bound.
    """
    column = tl.arange(0, COLUMNS)
    start = tl.program_id(0).to(tl.int64) * width
    y = _load_row(y_ptr, start, column, width)
    for part in tl.static_range(1, PARTS):
        y += _load_row(y_ptr, start + part * tl.num_programs(0).to(tl.int64) * width, column, width)
    y = y.to(x_ptr.dtype.element_ty).to(tl.float32)  # rounded as the output of a product
    y = _normed(y, width, eps) * _load_row(weight_ptr, 0, column, width)
    # Round before the norms, so that they see the same numbers as later readers of the sum.
    total = (_load_row(x_ptr, start, column, width) + y).to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + start + column, total, mask=column < width)
    normed = _normed(total.to(tl.float32), width, eps)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    _store_row(normed * _load_row(a_ptr, 0, column, width), a_out, a_scale, start, column, width, dtype, 0)
    _store_row(normed * _load_row(b_ptr, 0, column, width), b_out, b_scale, start, column, width, dtype, INTERLEAVE)
    # The router's choice may depend on the last bit, so this is rounded wherever the plain version rounds.
    routed = (normed.to(dtype).to(tl.float32) * _load_row(scale_ptr, 0, column, width)).to(dtype).to(
        tl.float32
    ) * factor
    tl.store(c_out + start + column, routed.to(dtype), mask=column < width)


@triton.jit
def _scores(
    x_ptr, weight_ptr, partial_ptr, tokens, width, experts,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, DEPTH: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one split of the router's scores for ROWS tokens and all experts.

    Grid: (T / ROWS, SPLIT). x is [T, H], weight [E, H], partial [S, T, E]. Split p takes every SPLIT-th block of DEPTH
    inputs, from block p on. Latency-bound.
    """
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
    """Choose the K experts of one token and compute their weights.

    Grid: (T,). partial [S, T, E] comes from `_scores`; index and weight are [T, K]. ROUNDED: round the scores to
    bfloat16. Latency-bound.
    """
    token = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    score = tl.zeros((EXPERTS,), tl.float32)
    for part in tl.static_range(SPLIT):
        score += tl.load(partial_ptr + (part * tokens + token) * experts + expert, mask=expert < experts, other=0.0)
    if ROUNDED:  # as the plain version's product is
        score = score.to(tl.bfloat16).to(tl.float32)
    # Even if scores are NaN, choose K experts: otherwise an index would be read that was never written.
    score = tl.where((expert < experts) & (score == score), score, -1e30)
    # The softmax over all experts is not needed: exp(score - best), divided by the sum over the chosen experts.
    weight = tl.exp(score - tl.max(score, 0))
    total = 0.0
    left = tl.where(expert < experts, weight, -1.0)
    chosen_at = tl.zeros((EXPERTS,), tl.int32)
    for choice in tl.static_range(K):
        best = tl.argmax(left, 0, tie_break_left=True)
        total += tl.sum(tl.where(expert == best, weight, 0.0), 0)
        chosen_at = tl.where(expert == best, choice + 1, chosen_at)
        left = tl.where(expert == best, -1.0, left)
    scale = tl.load(scale_ptr + expert, mask=expert < experts, other=0.0).to(tl.float32)
    at = token * K + chosen_at - 1
    tl.store(index_ptr + at, expert, mask=chosen_at > 0)
    tl.store(weight_ptr + at, weight / total * scale, mask=chosen_at > 0)


@triton.jit
def _join(
    x_ptr, dense_ptr, sparse_ptr, weight_ptr, dense_norm, sparse_norm, both_norm, scalar_ptr, out_ptr,
    next_ptr, normed_ptr, normed_scale, width, eps, K: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the output of a layer for one row, and the norm that follows.

    Grid: (T,). x, dense and out are [T, H]; sparse is [T, H], or [T K, H] with weights [T, K] if weight_ptr is given.
    next_ptr is the weight of the norm that follows; normed and normed_scale as in `_store_row`. Latency-bound.
    """
    column = tl.arange(0, COLUMNS)
    token = tl.program_id(0).to(tl.int64)
    start = token * width
    both = _normed(_load_row(dense_ptr, start, column, width), width, eps) * _load_row(dense_norm, 0, column, width)
    sparse = tl.zeros((COLUMNS,), tl.float32)
    for choice in tl.static_range(K):
        output = _load_row(sparse_ptr, (token * K + choice) * width, column, width)
        sparse += output if weight_ptr is None else output * tl.load(weight_ptr + token * K + choice)
    sparse = sparse.to(out_ptr.dtype.element_ty).to(tl.float32)  # rounded as the plain version's sum
    both += _normed(sparse, width, eps) * _load_row(sparse_norm, 0, column, width)
    out = _load_row(x_ptr, start, column, width) + _normed(both, width, eps) * _load_row(both_norm, 0, column, width)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    out = (out * tl.load(scalar_ptr + token).to(tl.float32)).to(dtype)
    tl.store(out_ptr + start + column, out, mask=column < width)
    if next_ptr is not None:
        normed = _normed(out.to(tl.float32), width, eps) * _load_row(next_ptr, 0, column, width)
        _store_row(normed, normed_ptr, normed_scale, start, column, width, dtype, 0)
