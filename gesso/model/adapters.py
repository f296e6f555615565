"""Low-rank adapters (LoRA, arXiv 2106.09685): a weight W acts as W + (alpha / rank)·B·A, and W itself stays as it is.

One mechanism for every matrix, the fused experts included: those have an A and a B for each expert.

The output is computed as x·Wᵀ + s·(x·Aᵀ)·Bᵀ, never through the sum W + s·B·A. At the 26B shape that sum is 1.5 GB in
bfloat16 for the experts of one layer; autograd would keep all thirty for the backward pass (46 GB) and make gradients
of that size only to project them onto the factors. The two thin products keep rank numbers a token instead.

Factors are float32 whatever the model's dtype, for in bfloat16 a small step of the optimiser rounds to nothing. The
products are made in the working dtype.

T tokens of all segments, S tokens of one segment, R rows of one expert, H hidden, I in (or expert width), O out,
E experts, K experts a token, L rank.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso import ops


class Lora(nn.Module):
    """The two factors of one weight's change: A [L, I] and B [O, L], or for experts A [E, L, I] and B [E, O, L]."""

    def __init__(self, weight: ops.Weight, rank: int, alpha: float) -> None:
        super().__init__()
        self.rank, self.alpha = rank, alpha
        *experts, outputs, inputs = weight.shape
        zeros = partial(torch.zeros, device=weight.device, dtype=torch.float32)
        self.A = nn.Parameter(zeros((*experts, rank, inputs)))
        self.B = nn.Parameter(zeros((*experts, outputs, rank)))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def forward(self, x_TI: Tensor, lengths: Sequence[int]) -> Tensor:
        low_TL = ops.linear(x_TI, self.A.to(x_TI.dtype), lengths) * self.scale
        return ops.linear(low_TL, self.B.to(x_TI.dtype), lengths)


class Adapters(nn.Module):
    """The adapters of one weight, by name; at most one of them acts. The weight `w` of a module has `w_adapters`."""

    def __init__(self) -> None:
        super().__init__()
        self.active: str | None = None

    def put(self, name: str, lora: Lora) -> None:
        self.add_module(_PREFIX + name, lora)  # prefixed: a module cannot have a child called "train" or "float"

    def get(self, name: str | None) -> Lora | None:
        lora = None if name is None else self._modules.get(_PREFIX + name)
        assert lora is None or isinstance(lora, Lora)
        return lora

    def drop(self, name: str) -> None:
        delattr(self, _PREFIX + name)
        self.active = None if self.active == name else self.active

    def names(self) -> list[str]:
        return [name.removeprefix(_PREFIX) for name, _ in self.named_children()]

    @property
    def acting(self) -> Lora | None:
        return self.get(self.active)


_PREFIX = "lora_"


def per_expert(weight_EOI: ops.Weight, lora: Lora | None, dtype: torch.dtype) -> list[ops.Rows]:
    """Each expert's matrix, with its change where there is one.

    `unbind`, not indexing: the gradient of `A[e]` is a tensor of zeros as large as all of A but for one slice, made
    anew for every expert; that of `unbind` is put together once.
    """
    if lora is None:
        return ops.matrices(weight_EOI)
    scale = lora.scale

    def apply(x_RI: Tensor, weight_OI: ops.Weight, a_LI: Tensor, b_OL: Tensor) -> Tensor:
        return ops.multiply(x_RI, weight_OI) + F.linear(F.linear(x_RI, a_LI) * scale, b_OL)

    weights: Sequence[ops.Weight] = weight_EOI.unbind()
    factors = zip(weights, lora.A.to(dtype).unbind(), lora.B.to(dtype).unbind(), strict=True)
    return [partial(apply, weight_OI=weight_OI, a_LI=a_LI, b_OL=b_OL) for weight_OI, a_LI, b_OL in factors]


def fan_out(weight: ops.Weight, lora: Lora | None, dtype: torch.dtype) -> ops.Rows:
    """All experts at once: [S, I] to [S, E, O]."""
    weight_EOI = ops.dense(weight, dtype)

    def apply(x_SI: Tensor) -> Tensor:
        y_SEO = F.linear(x_SI, weight_EOI.flatten(0, 1)).unflatten(1, (len(weight_EOI), -1))
        if lora is None:
            return y_SEO
        low_SEL = F.linear(x_SI, lora.A.to(dtype).flatten(0, 1)).unflatten(1, (len(weight_EOI), -1)) * lora.scale
        return y_SEO + torch.einsum("sel,eol->seo", low_SEL, lora.B.to(dtype))

    return apply


def fan_in(weight: ops.Weight, lora: Lora | None, dtype: torch.dtype) -> ops.Rows:
    """All experts at once, and their sum: [S, E, I] to [S, O]."""
    weight_EOI = ops.dense(weight, dtype)

    def apply(x_SEI: Tensor) -> Tensor:
        y_SO = F.linear(x_SEI.flatten(1), weight_EOI.transpose(0, 1).flatten(1))
        if lora is None:
            return y_SO
        low_SEL = torch.einsum("sei,eli->sel", x_SEI, lora.A.to(dtype)) * lora.scale
        return y_SO + F.linear(low_SEL.flatten(1), lora.B.to(dtype).transpose(0, 1).flatten(1))

    return apply


def weight_of(model: nn.Module, path: str) -> ops.Weight:
    """The parameter of this name, or what stands in its place."""
    parent, _, leaf = path.rpartition(".")
    weight = getattr(model.get_submodule(parent), leaf)
    assert isinstance(weight, ops.Weight)
    return weight


def adapter_sites(model: nn.Module) -> dict[str, Adapters]:
    """Every weight that can have an adapter, by its parameter's name.

    A weight that encoder and decoder share stands here under both names, as one object.
    """
    return {
        path.removesuffix("_adapters"): module
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Adapters)
    }


def attached(model: nn.Module) -> list[str]:
    """The names of the adapters a model has, active or not."""
    return sorted({name for module in adapter_sites(model).values() for name in module.names()})
