"""The sites of a model: the weights that can have adapters, by the name of the parameter.

A weight that encoder and decoder share is listed under both names, as one object.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from gesso.adapters.lora import AdaptedExperts, AdaptedLinear, Adapters
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.model.experts import Experts
from gesso.model.modules import Linear


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
