"""Mixture of experts: each token goes through its K chosen experts, gated GELU units, and sums their weighted answers.

T tokens of all segments, S tokens of one segment, H hidden, E experts, K experts a token, I expert width.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gesso.ops import fast
from gesso.ops.linear import linear
from gesso.ops.weight import Adapted, Rows, Weight, dense, multiply, wanted

Product = Callable[[Tensor], Tensor]  # a matrix, as a function of the rows it is given
FOUR_BITS = (128, 64)  # values of a row that a tile of four-bit weights takes at most, in the two products of an expert


def choose(
    x_TH: Tensor, matrix: Adapted, expert_scale_E: Tensor, k: int, lengths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """The chosen experts and their weights [T, K], and the scores [T, E] of all, which only training asks for."""
    if fast.kernels(x_TH) and isinstance(matrix.weight, Tensor) and not (few(len(matrix.weight), k) or matrix.change):
        return *fast.load("rows").route(x_TH, matrix.weight, expert_scale_E, k), x_TH.new_empty(0)
    scores_TE = linear(x_TH, matrix, lengths)
    return *route(scores_TE, expert_scale_E, k), scores_TE


def route(scores_TE: Tensor, expert_scale_E: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The K likeliest experts and their weights [T, K]: shares of the chosen, times each expert's own scale.

    Where experts are few, all of them stand there, those not chosen with a weight of zero: see `_all`.
    """
    probability_TE = scores_TE.softmax(-1, dtype=torch.float32)
    experts = scores_TE.shape[-1]
    if few(experts, k):
        index_TK = torch.arange(experts, device=scores_TE.device).expand_as(scores_TE)
        probability_TK, scale = probability_TE * chosen(probability_TE, k), expert_scale_E
    else:
        probability_TK, index_TK = probability_TE.topk(k, dim=-1)
        scale = expert_scale_E[index_TK]
    return index_TK, probability_TK / probability_TK.sum(-1, keepdim=True) * scale


def chosen(probability_TE: Tensor, k: int) -> Tensor:
    """Which are among the K likeliest [T, E]; of equals, the first."""
    experts = probability_TE.shape[-1]
    if not few(experts, k):
        empty_TE = torch.zeros_like(probability_TE, dtype=torch.bool)
        return empty_TE.scatter(-1, probability_TE.topk(k).indices, True)
    # How many come before each: comparing all pairs is cheaper than sorting.
    mine, other = probability_TE[:, :, None], probability_TE[:, None, :]
    earlier = torch.ones(experts, experts, dtype=torch.bool, device=probability_TE.device).tril(-1)
    return ((other > mine) | ((other == mine) & earlier)).sum(-1) < k


def few(experts: int, k: int) -> bool:
    """Whether so many are chosen that running all of them costs less than sorting tokens by expert."""
    return experts <= 2 * k


class Answers(NamedTuple):
    """What each expert says to a token, not yet weighted and summed: kernels leave that to whoever reads them."""

    answers_RH: Tensor  # K for each token
    weight_TK: Tensor


def experts(
    x_TH: Rows, index_TK: Tensor, weight_TK: Tensor, gate_up: Adapted, down: Adapted, lengths: Sequence[int]
) -> Tensor | Answers:
    """What the chosen experts say, weighted. By segments, for the reason given in `ops/linear.py`."""
    if not isinstance(x_TH, Tensor) or _kernels(x_TH, index_TK, gate_up, down):
        return Answers(fast.load("products").experts(x_TH, index_TK, gate_up.weight, down.weight), weight_TK)
    dtype = x_TH.dtype
    parts = zip(*(tensor.split(list(lengths)) for tensor in (x_TH, index_TK, weight_TK)), strict=True)
    if index_TK.shape[1] == gate_up.weight.shape[0]:  # see `few`
        out, into = _fan_out(gate_up, dtype), _fan_in(down, dtype)
        outputs = [_all(x_SH, weight_SE, out, into) for x_SH, _, weight_SE in parts]
    else:
        gate_up_E, down_E = _each(gate_up, dtype), _each(down, dtype)
        outputs = [_chosen_only(x_SH, index_SK, weight_SK, gate_up_E, down_E) for x_SH, index_SK, weight_SK in parts]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _kernels(x_TH: Tensor, index_TK: Tensor, gate_up: Adapted, down: Adapted) -> bool:
    return fast.kernels(x_TH) and fast.rows_fit(x_TH) and kernels_take(gate_up, down, index_TK.shape[1])


def kernels_take(gate_up: Adapted, down: Adapted, k: int) -> bool:
    """Whether kernels are made for these experts. They fetch rows of a multiple of 16 bytes, and of four bits whole
    tiles of rows."""
    if gate_up.change or down.change or few(gate_up.weight.shape[0], k):
        return False
    hidden, width = gate_up.weight.shape[-1], down.weight.shape[-1]
    if wanted([gate_up, down]) in ("int4", "nvfp4"):
        return hidden % FOUR_BITS[0] == 0 and width % FOUR_BITS[1] == 0
    return width % 16 == 0


def stay_on_device(gate_up: Adapted, down: Adapted, k: int, dtype: torch.dtype) -> bool:
    """Whether a GPU needs no host between the products. Without kernels, and unless all experts run for all tokens, the
    host has to know how many tokens each is given."""
    count, _, hidden = gate_up.weight.shape
    return few(count, k) or (dtype != torch.float16 and hidden % 16 == 0 and kernels_take(gate_up, down, k))


def gated_gelu(x_T2I: Tensor) -> Tensor:
    gate, up = x_T2I.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


# --- many experts: each is given the tokens that chose it -------------------------------------------------------------


def _chosen_only(
    x_SH: Tensor, index_SK: Tensor, weight_SK: Tensor, gate_up_E: Sequence[Product], down_E: Sequence[Product]
) -> Tensor:
    k = index_SK.shape[1]
    order = index_SK.flatten().argsort(stable=True)  # (token, choice) pairs, grouped by expert
    counts = index_SK.flatten().bincount(minlength=len(gate_up_E)).tolist()
    answers = [
        down_E[e](gated_gelu(gate_up_E[e](x_RH))) for e, x_RH in enumerate(x_SH[order // k].split(counts)) if counts[e]
    ]
    # Back to (token, choice) order and summed there, not scattered: a scatter adds in no fixed order on a GPU.
    y_SKH = torch.cat(answers)[order.argsort()].view(*index_SK.shape, -1)
    return (y_SKH * weight_SK[..., None]).sum(1).to(x_SH.dtype)


def _each(matrices: Adapted, dtype: torch.dtype) -> list[Product]:
    """Each expert's matrix, with its change where there is one.

    `unbind`, not indexing: the gradient of `weight[e]` is a tensor of zeros as large as all of them but for one slice,
    made anew for every expert.
    """
    weights: Sequence[Weight] = matrices.weight.unbind()
    change = matrices.change
    if change is None:
        return [partial(multiply, weight_OI=weight_OI) for weight_OI in weights]
    scale = change.scale

    def apply(x_RI: Tensor, weight_OI: Weight, a_LI: Tensor, b_OL: Tensor) -> Tensor:
        return multiply(x_RI, weight_OI) + F.linear(F.linear(x_RI, a_LI) * scale, b_OL)

    factors = zip(weights, change.A.to(dtype).unbind(), change.B.to(dtype).unbind(), strict=True)
    return [partial(apply, weight_OI=weight_OI, a_LI=a_LI, b_OL=b_OL) for weight_OI, a_LI, b_OL in factors]


# --- few experts: all of them run, and a weight of zero silences those not chosen -------------------------------------


def _all(x_SH: Tensor, weight_SE: Tensor, out: Product, into: Product) -> Tensor:
    """Two plain products: [S, H] to [S, E, 2I], and [S, E, I] summed over the experts to [S, H]."""
    y_SEI = gated_gelu(out(x_SH))
    return into(y_SEI * weight_SE[..., None].to(y_SEI.dtype)).to(x_SH.dtype)


def _product(x_SI: Tensor, weight_OI: Tensor) -> Tensor:
    """Multiply, on a GPU by our kernel: cuBLAS may give other last bits in a captured graph or in another stream."""
    return linear(x_SI, Adapted(weight_OI), [len(x_SI)])


def _fan_out(matrices: Adapted, dtype: torch.dtype) -> Product:
    weight_EOI, change = dense(matrices.weight, dtype), matrices.change

    def apply(x_SI: Tensor) -> Tensor:
        y_SEO = _product(x_SI, weight_EOI.flatten(0, 1)).unflatten(1, (len(weight_EOI), -1))
        if change is None:
            return y_SEO
        low_SEL = F.linear(x_SI, change.A.to(dtype).flatten(0, 1)).unflatten(1, (len(weight_EOI), -1)) * change.scale
        return y_SEO + torch.einsum("sel,eol->seo", low_SEL, change.B.to(dtype))

    return apply


def _fan_in(matrices: Adapted, dtype: torch.dtype) -> Product:
    weight_EOI, change = dense(matrices.weight, dtype), matrices.change

    def apply(x_SEI: Tensor) -> Tensor:
        y_SO = _product(x_SEI.flatten(1), weight_EOI.transpose(0, 1).flatten(1))
        if change is None:
            return y_SO
        low_SEL = torch.einsum("sei,eli->sel", x_SEI, change.A.to(dtype)) * change.scale
        return y_SO + F.linear(low_SEL.flatten(1), change.B.to(dtype).transpose(0, 1).flatten(1))

    return apply
