"""Low-rank adapters (LoRA, arXiv 2106.09685): a weight W acts as W + (alpha / rank)·B·A, and W itself stays as it is.

`make_adaptable` replaces the model's linear maps and experts by versions with adapters; the model knows nothing of
them. Experts have one A and one B per expert.

The output is computed as x·Wᵀ + s·(x·Aᵀ)·Bᵀ, never through the sum W + s·B·A. At the 26B shape that sum is 1.5 GB in
bfloat16 for the experts of one layer; autograd would keep all thirty for the backward pass (46 GB) and make gradients
of that size only to project them onto the factors. The two thin products keep `rank` numbers per token instead.

Factors are float32 whatever the model's dtype: in bfloat16 a small step of the optimizer rounds to nothing. The
products are computed in the working dtype.

T tokens, R tokens of one expert, H hidden, I inputs (or expert width), O outputs, E experts, L rank.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.model.experts import Experts, Product
from gesso.model.modules import Linear


class Lora(nn.Module):
    """The two factors of one weight's change: A [L, I] and B [O, L], or for experts A [E, L, I] and B [E, O, L]."""

    def __init__(self, weight: Weight, rank: int, alpha: float) -> None:
        super().__init__()
        self.rank, self.alpha = rank, alpha
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
        self.add_module(_PREFIX + name, lora)  # prefixed: a module cannot have a child called "train" or "float"

    def get(self, name: str | None) -> Lora | None:
        lora = None if name is None else self._modules.get(_PREFIX + name)
        assert lora is None or isinstance(lora, Lora)
        return lora

    def drop(self, name: str) -> None:
        self._modules.pop(_PREFIX + name, None)
        self.active = None if self.active == name else self.active

    def names(self) -> list[str]:
        return [name.removeprefix(_PREFIX) for name, _ in self.named_children()]

    @property
    def acting(self) -> Lora | None:
        return self.get(self.active)


_PREFIX = "lora_"


class AdaptedLinear(Linear):
    def __init__(self, base: Linear) -> None:
        nn.Module.__init__(self)
        self.weight = base.weight
        self.weight_adapters = Adapters()

    def forward(self, x_TI: Tensor) -> Tensor:
        y_TO = F.linear(x_TI, self.weight)
        if (lora := self.weight_adapters.acting) is None:
            return y_TO
        low_TL = F.linear(x_TI, lora.A.to(x_TI.dtype))
        return y_TO.addmm_(low_TL, lora.B.to(y_TO.dtype).t(), alpha=lora.scale)


class AdaptedExperts(Experts):
    """Experts with the weights of others, and with their adapters if they have any."""

    def __init__(self, base: Experts) -> None:
        nn.Module.__init__(self)
        self.gate_up_proj, self.down_proj = base.gate_up_proj, base.down_proj
        self.gate_up_proj_adapters, self.down_proj_adapters = Adapters(), Adapters()
        if isinstance(base, AdaptedExperts):
            self.gate_up_proj_adapters = base.gate_up_proj_adapters
            self.down_proj_adapters = base.down_proj_adapters

    def lora(self, name: str) -> Lora | None:
        adapters = getattr(self, f"{name}_adapters")
        assert isinstance(adapters, Adapters)
        return adapters.acting

    def products_by_expert(self, name: str) -> list[Product]:
        products = super().products_by_expert(name)
        lora = self.lora(name)
        if lora is None:
            return products
        factors = zip(products, lora.A.unbind(), lora.B.unbind(), strict=True)
        return [
            partial(_with_factors, product=product, a_LI=a_LI, b_OL=b_OL, scale=lora.scale)
            for product, a_LI, b_OL in factors
        ]

    def first_products(self, x_TH: Tensor) -> Tensor:
        return with_first_factors(super().first_products(x_TH), x_TH, self.lora("gate_up_proj"))

    def sum_of_second_products(self, h_TEI: Tensor) -> Tensor:
        return with_second_factors(super().sum_of_second_products(h_TEI), h_TEI, self.lora("down_proj"))


def _with_factors(x_RI: Tensor, product: Product, a_LI: Tensor, b_OL: Tensor, scale: float) -> Tensor:
    low_RL = F.linear(x_RI, a_LI.to(x_RI.dtype)) * scale
    return product(x_RI) + F.linear(low_RL, b_OL.to(x_RI.dtype))


def with_first_factors(y_TEO: Tensor, x_TH: Tensor, lora: Lora | None) -> Tensor:
    if lora is None:
        return y_TEO
    low_TEL = F.linear(x_TH, lora.A.to(x_TH.dtype).flatten(0, 1)).unflatten(1, (len(lora.A), -1)) * lora.scale
    return y_TEO + torch.einsum("tel,eol->teo", low_TEL, lora.B.to(x_TH.dtype))


def with_second_factors(y_TO: Tensor, x_TEI: Tensor, lora: Lora | None) -> Tensor:
    if lora is None:
        return y_TO
    low_TEL = torch.einsum("tei,eli->tel", x_TEI, lora.A.to(x_TEI.dtype)) * lora.scale
    return y_TO + F.linear(low_TEL.flatten(1), lora.B.to(x_TEI.dtype).transpose(0, 1).flatten(1))


def make_adaptable(model: nn.Module) -> None:
    """Replace every linear map and all experts by versions that can have adapters. Parameters keep their names."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is Linear:
                setattr(parent, name, AdaptedLinear(child))
            elif type(child) is Experts:
                setattr(parent, name, AdaptedExperts(child))


def _adaptable(module: nn.Module) -> tuple[str, ...]:
    """Return the names of a module's weights that can have an adapter.

    By exact type, unless it has adapters: another subclass may store its weight otherwise.
    """
    if type(module) is Linear or isinstance(module, AdaptedLinear):
        return ("weight",)
    if type(module) is Experts or isinstance(module, AdaptedExperts):
        return ("gate_up_proj", "down_proj")
    return ()


def adaptable_weights(model: nn.Module) -> dict[str, Weight]:
    """Return every weight that can have an adapter, by the name of the parameter, whether or not it can have one yet.

    A weight that encoder and decoder share is listed under both names.
    """
    return {
        f"{path}.{name}": getattr(module, name)
        for path, module in model.named_modules(remove_duplicate=False)
        for name in _adaptable(module)
    }


def weight_of(model: nn.Module, path: str) -> Weight:
    """Return the parameter of this name, or the quantized weight in its place."""
    parent, _, leaf = path.rpartition(".")
    weight = getattr(model.get_submodule(parent), leaf)
    assert isinstance(weight, Tensor | Packed)
    return weight


def adapter_sites(model: nn.Module) -> dict[str, Adapters]:
    """Return the adapters of every weight that can have one, by the name of the parameter.

    A weight that encoder and decoder share is listed under both names, as one object.
    """
    return {
        path.removesuffix("_adapters"): module
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Adapters)
    }


def attached(model: nn.Module) -> list[str]:
    """Return the names of the model's adapters, active or not."""
    return sorted({name for module in adapter_sites(model).values() for name in module.names()})


def switch(sites: Iterable[Adapters], name: str | None) -> None:
    """Activate an adapter of a model with these sites, or with None the base model."""
    for site in sites:
        if site.active != name:  # reading is much cheaper than setting an attribute of a module
            site.active = name


@contextmanager
def kept_active(sites: Sequence[Adapters]) -> Iterator[None]:
    """Restore the active adapters at the end, whatever was activated meanwhile."""
    before = [site.active for site in sites]
    try:
        yield
    finally:
        for site, name in zip(sites, before, strict=True):
            switch([site], name)
