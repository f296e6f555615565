"""LoRA (arXiv 2106.09685): train two thin matrices per weight instead of the weight.

A weight W [O, I] stays as it is. An adapter has a matrix A [L, I] and a matrix B [O, L] for it. Their product is the
change of the weight, with a rank L of 8 or 16 instead of thousands of inputs and outputs:

    y = x·Wᵀ + (alpha / rank) · (x·Aᵀ)·Bᵀ

`Lora` has the two matrices, `AdaptedLinear` and `AdaptedExperts` apply them, and `Adapters` holds several for one
weight by name, of which at most one is active. `sites.py` puts these modules in the place of the plain ones; the model
knows nothing of them.

The output is never computed through the sum W + B·A. At the 26B shape that sum is 1.5 GB in bfloat16 for the experts of
one layer; autograd would keep all thirty for the backward pass (46 GB) and make gradients of that size only to project
them onto A and B. The two thin products keep `rank` numbers per token instead.

T tokens, R tokens of one expert, H hidden, I inputs (or expert width), O outputs, E experts, L rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso.checkpoint.quantize.packed import Weight
from gesso.model.experts import Expert, Experts
from gesso.model.modules import Linear

PREFIX = "lora_"  # of the modules in `Adapters`: a module cannot have a child called "train" or "float"


class Lora(nn.Module):
    """The change of one weight: A [L, I] and B [O, L], or for experts A [E, L, I] and B [E, O, L].

    Both are float32 whatever the model's dtype: in bfloat16 a small step of the optimizer rounds to nothing. The
    products are computed in the working dtype.
    """

    def __init__(self, weight: Weight, rank: int, alpha: float) -> None:
        super().__init__()
        self.rank = rank
        self.alpha = alpha
        *experts, outputs, inputs = weight.shape
        zeros = partial(torch.zeros, device=weight.device, dtype=torch.float32)
        self.A = nn.Parameter(zeros((*experts, rank, inputs)))
        self.B = nn.Parameter(zeros((*experts, outputs, rank)))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class Adapters(nn.Module):
    """The adapters of one weight, by name; at most one is active. The weight `w` of a module has `w_adapters`."""

    def __init__(self) -> None:
        super().__init__()
        self.active: str | None = None

    def put(self, name: str, lora: Lora) -> None:
        self.add_module(PREFIX + name, lora)

    def get(self, name: str | None) -> Lora | None:
        lora = None if name is None else self._modules.get(PREFIX + name)
        assert lora is None or isinstance(lora, Lora)
        return lora

    def drop(self, name: str) -> None:
        self._modules.pop(PREFIX + name, None)
        if self.active == name:
            self.active = None

    def names(self) -> list[str]:
        return [name.removeprefix(PREFIX) for name, _ in self.named_children()]

    @property
    def active_lora(self) -> Lora | None:
        return self.get(self.active)


# --- a linear map -------------------------------------------------------------------------------------------------


class AdaptedLinear(Linear):
    """A linear map with the weight of another one, plus the change of its active adapter."""

    def __init__(self, base: Linear) -> None:
        nn.Module.__init__(self)
        self.weight = base.weight
        self.weight_adapters = Adapters()

    def forward(self, x_TI: Tensor) -> Tensor:
        y_TO = F.linear(x_TI, self.weight)
        lora = self.weight_adapters.active_lora
        if lora is None:
            return y_TO
        low_TL = F.linear(x_TI, lora.A.to(x_TI.dtype))  # [T, I] -> [T, L]
        return y_TO.addmm_(low_TL, lora.B.to(y_TO.dtype).t(), alpha=lora.scale)  # [T, L] -> [T, O], added to y


# --- experts: one A and one B for each ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExpertChange:
    """The change of one matrix of one expert."""

    a_LI: Tensor
    b_OL: Tensor
    scale: float

    def of(self, x_RI: Tensor) -> Tensor:
        low_RL = F.linear(x_RI, self.a_LI.to(x_RI.dtype)) * self.scale  # [R, I] -> [R, L]
        return F.linear(low_RL, self.b_OL.to(x_RI.dtype))  # [R, L] -> [R, O]


@dataclass(frozen=True, kw_only=True)
class AdaptedExpert(Expert):
    gate_up_change: ExpertChange | None
    down_change: ExpertChange | None

    def first_product(self, x_RH: Tensor) -> Tensor:
        y_RO = super().first_product(x_RH)
        return y_RO if self.gate_up_change is None else y_RO + self.gate_up_change.of(x_RH)

    def second_product(self, h_RI: Tensor) -> Tensor:
        y_RH = super().second_product(h_RI)
        return y_RH if self.down_change is None else y_RH + self.down_change.of(h_RI)


class AdaptedExperts(Experts):
    """Experts with the weights of others, and with their adapters if they have any."""

    def __init__(self, base: Experts) -> None:
        nn.Module.__init__(self)
        self.gate_up_proj = base.gate_up_proj
        self.down_proj = base.down_proj
        self.gate_up_proj_adapters = Adapters()
        self.down_proj_adapters = Adapters()
        if isinstance(base, AdaptedExperts):
            self.gate_up_proj_adapters = base.gate_up_proj_adapters
            self.down_proj_adapters = base.down_proj_adapters

    def lora(self, name: str) -> Lora | None:
        """Return the active adapter of a weight, "gate_up_proj" or "down_proj"."""
        adapters = getattr(self, f"{name}_adapters")
        assert isinstance(adapters, Adapters)
        return adapters.active_lora

    def experts(self) -> Sequence[Expert]:
        plain = super().experts()
        gate_up_changes = _changes(self.lora("gate_up_proj"), len(plain))
        down_changes = _changes(self.lora("down_proj"), len(plain))
        return [
            AdaptedExpert(
                gate_up_OH=expert.gate_up_OH,
                down_HI=expert.down_HI,
                gate_up_change=gate_up_change,
                down_change=down_change,
            )
            for expert, gate_up_change, down_change in zip(plain, gate_up_changes, down_changes, strict=True)
        ]

    # In a model with few experts all of them run at once: see `gesso/model/few_experts.py`.

    def first_products(self, x_TH: Tensor) -> Tensor:
        return with_first_factors(super().first_products(x_TH), x_TH, self.lora("gate_up_proj"))

    def sum_of_second_products(self, h_TEI: Tensor) -> Tensor:
        return with_second_factors(super().sum_of_second_products(h_TEI), h_TEI, self.lora("down_proj"))


def _changes(lora: Lora | None, experts: int) -> Sequence[ExpertChange | None]:
    """Return the change of each expert."""
    if lora is None:
        return [None] * experts
    factors = zip(lora.A.unbind(), lora.B.unbind(), strict=True)
    return [ExpertChange(a_LI=a_LI, b_OL=b_OL, scale=lora.scale) for a_LI, b_OL in factors]


def with_first_factors(y_TEO: Tensor, x_TH: Tensor, lora: Lora | None) -> Tensor:
    """Add the change of the first products of all experts."""
    if lora is None:
        return y_TEO
    low_TEL = F.linear(x_TH, lora.A.to(x_TH.dtype).flatten(0, 1)).unflatten(1, (len(lora.A), -1)) * lora.scale
    return y_TEO + torch.einsum("tel,eol->teo", low_TEL, lora.B.to(x_TH.dtype))


def with_second_factors(y_TO: Tensor, x_TEI: Tensor, lora: Lora | None) -> Tensor:
    """Add the change of the second products, summed over the experts."""
    if lora is None:
        return y_TO
    low_TEL = torch.einsum("tei,eli->tel", x_TEI, lora.A.to(x_TEI.dtype)) * lora.scale
    return y_TO + F.linear(low_TEL.flatten(1), lora.B.to(x_TEI.dtype).transpose(0, 1).flatten(1))
