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

from functools import partial

import torch
from torch import nn

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
