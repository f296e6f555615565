"""Experts of a training pass: one grouped product for all experts, instead of one product per expert.

`Experts` in `gesso/model/experts.py` is the specification; at the 26B shape it launches 128 products where this
launches one. Nothing is read on the host, so layers can be compiled. A token's weights multiply the narrow rows between
the two products instead of their outputs, which is the same sum.

T tokens, H hidden, E experts, K experts per token, R = T·K pairs of a token and its expert, sorted by expert, I inputs
(or expert width), O outputs, L rank.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from gesso.adapters.lora import AdaptedExperts, Lora
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.model.experts import Experts
from gesso.model.modules import gated_gelu

ALIGNED = 8  # grouped products need rows of multiples of 16 bytes


class SortedPairs(NamedTuple):
    order_R: Tensor  # the pair at each place of the sorted order
    place_R: Tensor  # the place of each pair
    end_E: Tensor  # the place after each expert's last pair, int32


def sort_pairs(index_TK: Tensor, experts: int) -> SortedPairs:
    """Sort the pairs by expert; those of one expert stay in the order of the tokens."""
    index_R = index_TK.flatten().to(torch.int16)  # a GPU sorts fewer bits in less time
    sorted_R, order_R = index_R.sort(stable=True)
    number_R = torch.arange(len(index_R), device=index_R.device)
    end_E = torch.searchsorted(
        sorted_R, torch.arange(experts, dtype=torch.int16, device=index_R.device), right=True, out_int32=True
    )
    return SortedPairs(order_R, torch.empty_like(order_R).scatter_(0, order_R, number_R), end_E)


class GroupedExperts(AdaptedExperts):
    """Experts with the parameters and adapters of others."""

    def forward(self, x_TH: Tensor, index_TK: Tensor | None, weight: Tensor) -> Tensor:
        if index_TK is None:  # all experts run: two dense products
            return super().forward(x_TH, index_TK, weight)
        dtype = x_TH.dtype
        if torch.is_autocast_enabled(x_TH.device.type):  # which does not know grouped products
            x_TH = x_TH.to(torch.get_autocast_dtype(x_TH.device.type))
        if x_TH.is_cuda and x_TH.dtype != torch.bfloat16:  # for which alone a GPU has a grouped kernel
            return super().forward(x_TH, index_TK, weight).to(dtype)
        k = index_TK.shape[1]
        pairs = sort_pairs(index_TK, len(self.gate_up_proj))
        # The rows of all pairs take 100 MB at the 26B shape. Without a name they are freed after their last use.
        gate_RI, up_RI = self._product(
            "gate_up_proj",
            Spread.apply(x_TH, pairs, k),  # type: ignore[no-untyped-call]
            pairs,
        ).chunk(2, -1)
        h_RI = gated_gelu(gate_RI, up_RI)
        h_RI = (h_RI * weight.flatten()[pairs.order_R, None]).to(x_TH.dtype)
        y_TH: Tensor = Collect.apply(self._product("down_proj", h_RI, pairs), pairs, k)  # type: ignore[no-untyped-call]
        return y_TH.to(dtype)

    def _product(self, name: str, x_RI: Tensor, pairs: SortedPairs) -> Tensor:
        y_RO = grouped(x_RI, getattr(self, name), pairs.end_E)
        return y_RO if (lora := self.lora(name)) is None else y_RO + low_rank(x_RI, lora, pairs.end_E)


def make_grouped(model: nn.Module) -> None:
    """Replace all experts. Parameters and adapters keep their names."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Experts) and not isinstance(child, GroupedExperts):
                setattr(parent, name, GroupedExperts(child))


def grouped(x_RI: Tensor, weight: Weight, end_E: Tensor) -> Tensor:
    """Multiply each expert's rows by its matrix of [E, O, I]."""
    if isinstance(weight, Packed):
        y_RO: Tensor = PackedProduct.apply(x_RI, weight, end_E)  # type: ignore[no-untyped-call]
        return y_RO
    return F.grouped_mm(x_RI, weight.to(x_RI.dtype).transpose(1, 2), offs=end_E)


def low_rank(x_RI: Tensor, lora: Lora, end_E: Tensor) -> Tensor:
    padding = -lora.rank % ALIGNED
    a_ELI, b_EOL = (factor.to(x_RI.dtype) for factor in (lora.A, lora.B))
    a_ELI, b_EOL = F.pad(a_ELI, (0, 0, 0, padding)), F.pad(b_EOL, (0, padding))
    low_RL = F.grouped_mm(x_RI, a_ELI.transpose(1, 2), offs=end_E) * lora.scale
    return F.grouped_mm(low_RL, b_EOL.transpose(1, 2), offs=end_E)


# Autograd would keep the unpacked matrices for the backward pass, and add the gradients of a token's pairs in no fixed
# order.


class PackedProduct(Function):
    """A grouped product with a quantized weight, which is unpacked part by part, and again in the backward pass.

    Parts are blocks of the columns of the result, so no sum is divided: rows of the weight in the forward pass, its
    columns in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, x_RI: Tensor, weight: Packed, end_E: Tensor) -> Tensor:
        ctx.weight, ctx.end_E = weight, end_E
        y_RO = x_RI.new_empty(len(x_RI), weight.shape[1])
        for rows, part in weight.row_parts():
            y_RO[:, rows] = F.grouped_mm(x_RI, part.dense(x_RI.dtype).transpose(1, 2), offs=end_E)
        return y_RO

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient_RO = gradients[0].contiguous()
        gradient_RI = gradient_RO.new_empty(len(gradient_RO), ctx.weight.shape[2])
        for columns, part in ctx.weight.column_parts():
            gradient_RI[:, columns] = F.grouped_mm(gradient_RO, part.dense(gradient_RO.dtype), offs=ctx.end_E)
        return gradient_RI, None, None


class Spread(Function):
    """Repeat each token for its pairs, in sorted order."""

    @staticmethod
    def forward(ctx: Any, x_TH: Tensor, pairs: SortedPairs, k: int) -> Tensor:
        ctx.pairs, ctx.k = pairs, k
        return x_TH[pairs.order_R // k]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.pairs.place_R].unflatten(0, (-1, ctx.k)).sum(1), None, None


class Collect(Function):
    """Sum the pairs of each token."""

    @staticmethod
    def forward(ctx: Any, y_RH: Tensor, pairs: SortedPairs, k: int) -> Tensor:
        ctx.pairs, ctx.k = pairs, k
        return y_RH[pairs.place_R].unflatten(0, (-1, k)).sum(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.pairs.order_R // ctx.k], None, None
