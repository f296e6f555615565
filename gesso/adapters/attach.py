"""Add adapters to a model, attach stored ones, switch between them, remove them, and merge one into the weights.

    add(model, LoraSettings(rank=8), "tone")    a new adapter, to be trained
    attach(model, "style", stored)              one that has been read from a file
    activate(model, "style")                    the model answers with it; with None, without any
    merge(model, "style")                       the change becomes part of the weights, and the adapter is gone

A site is a weight that can have adapters. `adapter_sites` returns the adapters at each site by the name of the
parameter. In a tied model encoder and decoder are the same weights, so most weights have two names (`tied.py`).

O outputs, I inputs, L rank.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gesso.adapters.lora import Adapters, Lora
from gesso.adapters.settings import LoraSettings, groups_of
from gesso.adapters.sites import adaptable_weights, adapter_sites, attached, make_adaptable, switch, weight_of
from gesso.adapters.tied import paths_by_weight, split_encoder
from gesso.checkpoint.parameters import checkpoint_name
from gesso.checkpoint.streamed import check_resident
from gesso.checks import check_adapter_name
from gesso.errors import InputError
from gesso.model.transformer import DiffusionGemma

# --- a new adapter ------------------------------------------------------------------------------------------------


def add(model: DiffusionGemma, settings: LoraSettings, name: str = "default", seed: int = 0) -> None:
    """Add a new adapter, active and the only trainable part. B is zero, so the model is unchanged at first."""
    check_new(model, name)
    make_adaptable(model)
    generator = torch.Generator().manual_seed(seed)
    sites = adapter_sites(model)
    targets = [path for path in sites if groups_of([path], settings.targets)]
    for weight, paths in paths_by_weight(model, targets):
        lora = Lora(weight, settings.rank, settings.alpha)
        bound = weight.shape[-1] ** -0.5  # as in `peft`: Kaiming uniform with a = sqrt(5)
        noise = torch.rand(lora.A.shape, generator=generator)
        lora.A.data.copy_((2 * noise - 1) * bound)
        for path in paths:
            sites[path].put(name, lora)
    activate(model, name)
    train_only(model, name)


def train_only(model: DiffusionGemma, name: str) -> None:
    """Freeze all weights except those of one adapter."""
    model.requires_grad_(False)
    for site in adapter_sites(model).values():
        lora = site.get(name)
        if lora is not None:
            lora.requires_grad_(True)


def factor_values(model: DiffusionGemma, settings: LoraSettings) -> int:
    """Return how many values A and B of a new adapter have. The model may be one without weights."""
    targets = [weight for path, weight in adaptable_weights(model).items() if groups_of([path], settings.targets)]
    count = 0
    for weight in {id(weight): weight for weight in targets}.values():  # a shared weight has one adapter
        *experts, outputs, inputs = weight.shape
        count += math.prod(experts) * settings.rank * (outputs + inputs)
    return count


# --- a stored adapter ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StoredAdapter:
    """An adapter that has been read and is not attached: its factors A and B by the name of the parameter."""

    settings: LoraSettings
    factors: Mapping[str, tuple[Tensor, Tensor]]  # in the shapes of `Lora`, float32
    is_tied: bool  # whether every weight with two names has the same change under both


def attach(model: DiffusionGemma, name: str, stored: StoredAdapter) -> None:
    """Attach an adapter, frozen and not active. After an error, such as lack of memory, nothing is attached."""
    check_new(model, name)
    make_adaptable(model)
    if stored.is_tied:  # one change for a weight that encoder and decoder share
        paths_by_change = [paths for _, paths in paths_by_weight(model, stored.factors)]
    else:
        paths_by_change = [[path] for path in stored.factors]
    loras = [_frozen_lora(model, stored, path=paths[0]) for paths in paths_by_change]

    if not stored.is_tied:
        split_encoder(model)
    sites = adapter_sites(model)
    for lora, paths in zip(loras, paths_by_change, strict=True):
        for path in paths:
            sites[path].put(name, lora)


def _frozen_lora(model: DiffusionGemma, stored: StoredAdapter, path: str) -> Lora:
    lora = Lora(weight_of(model, path), stored.settings.rank, stored.settings.alpha).requires_grad_(False)
    a, b = stored.factors[path]
    lora.A.data.copy_(a)
    lora.B.data.copy_(b)
    return lora


# --- switch and remove --------------------------------------------------------------------------------------------


def activate(model: DiffusionGemma, name: str | None) -> None:
    """Activate this adapter and no other, or with None the base model.

    Keys and values in a cache belong to the adapter they were computed with: start from an empty cache.
    """
    if name is not None:
        check_known(model, name)
    switch(adapter_sites(model).values(), name)


def active(model: DiffusionGemma) -> str | None:
    """Return the name of the active adapter, or None for the base model."""
    return next((site.active for site in adapter_sites(model).values() if site.active is not None), None)


def remove(model: DiffusionGemma, name: str) -> None:
    """Remove an adapter and free its memory. If it was active, the base model becomes active.

    An encoder that was split for it (`split_encoder`) stays split, since other adapters may depend on that.
    """
    check_known(model, name)
    for site in set(adapter_sites(model).values()):
        site.drop(name)


# --- merge --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def merge(model: DiffusionGemma, name: str = "default") -> None:
    """Add an adapter to the base weights and remove it, which leaves a plain model."""
    _check_mergeable(model, name)
    sites = adapter_sites(model)
    changes = {paths[0]: _one_change(sites, name, paths) for _, paths in paths_by_weight(model, sites)}
    for path, lora in changes.items():
        if lora is not None:
            fold(model.get_parameter(path).detach(), lora.A.detach(), lora.B.detach(), lora.scale)
    remove(model, name)
    if model.config.tie_word_embeddings:
        model.encoder.layers = model.decoder.layers  # undo `split_encoder`


def fold(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
    """Add s·B·A to a weight in place, in float32, expert by expert: a layer's experts at once would need 2 GB more."""
    matrices = (tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (weight, a, b))
    for w_OI, a_LI, b_OL in zip(*matrices, strict=True):
        w_OI.copy_(w_OI.float() + scale * (b_OL.float() @ a_LI.float()))


def _one_change(sites: Mapping[str, Adapters], name: str, paths: Sequence[str]) -> Lora | None:
    """Return the change that an adapter makes to the one weight at these paths."""
    loras = [sites[path].get(name) for path in paths]
    factors = {None if lora is None else id(lora.A) for lora in loras}
    if len(factors) > 1:
        raise InputError(
            f"adapter {name!r} changes {' and '.join(map(checkpoint_name, paths))} differently, but they are one "
            "weight: it cannot be merged. Use it unmerged, or train one with gesso, which changes both alike"
        )
    return loras[0]


# --- checks -------------------------------------------------------------------------------------------------------


def check_new(model: DiffusionGemma, name: str) -> None:
    check_adapter_name(name)
    if name in attached(model):
        raise InputError(f"the model already has an adapter called {name!r}; use another name")


def check_known(model: DiffusionGemma, name: str) -> None:
    names = attached(model)
    if name not in names:
        raise InputError(f"the model has no adapter called {name!r}; it has {', '.join(names) or 'none'}")


def _check_mergeable(model: DiffusionGemma, name: str) -> None:
    check_known(model, name)
    check_resident(model, f"merge {name!r}")
    if model.config.quantization:
        raise InputError(
            f"cannot merge {name!r} into weights quantized to {model.config.quantization}: rounding would remove "
            "most of it; merge it into the original checkpoint, and quantize the result (gesso quantize)"
        )
    if others := [other for other in attached(model) if other != name]:
        raise InputError(
            f"cannot merge {name!r} while {others} are attached: they belong to the unmerged weights; "
            "load the model with this adapter only"
        )
