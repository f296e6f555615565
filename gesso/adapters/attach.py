"""Attach adapters to a model, switch between them, remove them, and merge one into the weights.

O outputs, I inputs, L rank.
"""

import copy
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gesso.adapters.lora import (
    Adapters,
    Lora,
    adaptable_weights,
    adapter_sites,
    attached,
    make_adaptable,
    switch,
    weight_of,
)
from gesso.checkpoint.parameters import checkpoint_name
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.streamed import check_resident
from gesso.checks import check_adapter_name, shown
from gesso.errors import InputError
from gesso.model.transformer import DiffusionGemma

MAX_RANK = 2**16
MAX_ALPHA = 1e9
# Groups of weights, as patterns of parameter names.
TARGETS = {
    "attention": r".*\.self_attn\.[qkvo]_proj\.weight",
    "mlp": r".*\.mlp\.(gate|up|down)_proj\.weight",
    "self_conditioning": r"self_conditioning\.(gate|up|down)_proj\.weight",
    "router": r".*\.router\.proj\.weight",
    "experts": r".*\.experts\.(gate_up|down)_proj",
}


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """A new adapter. In a recipe, `from = "DIR"` in place of these settings continues an adapter with its own."""

    rank: int = 8
    alpha: float = 16.0  # the change is scaled by alpha / rank
    # Without the router: a change of it sends tokens to other experts, and a small data set trains few of those.
    targets: tuple[str, ...] = ("attention", "mlp")  # of attention, mlp, self_conditioning, router and experts

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 0 < self.rank <= MAX_RANK:
            raise InputError(
                f"the rank of an adapter must be a positive integer up to {MAX_RANK:,}, got {shown(self.rank)}"
            )
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 < self.alpha <= MAX_ALPHA:
            raise InputError(
                f"the alpha of an adapter must be a positive number up to {MAX_ALPHA:g}, got {shown(self.alpha)}"
            )
        if isinstance(self.targets, str) or not self.targets:
            raise InputError(f"targets must be a tuple of one or more of {', '.join(TARGETS)}, got {self.targets!r}")
        if unknown := [target for target in self.targets if target not in TARGETS]:
            raise InputError(f"unknown adapter targets {unknown}; known are {', '.join(TARGETS)}")


def add(model: DiffusionGemma, settings: LoraSettings, name: str = "default", seed: int = 0) -> None:
    """Add a new adapter, active and the only trainable part. B is zero, so the model is unchanged at first."""
    check_new(model, name)
    make_adaptable(model)
    generator = torch.Generator().manual_seed(seed)
    sites = adapter_sites(model)
    targets = [path for path in sites if groups_of([path], settings.targets)]
    for weight, paths in sites_by_weight(model, targets):
        lora = Lora(weight, settings.rank, settings.alpha)
        bound = weight.shape[-1] ** -0.5  # as in `peft`: Kaiming uniform with a = sqrt(5)
        noise = torch.rand(lora.A.shape, generator=generator)
        lora.A.data.copy_((2 * noise - 1) * bound)
        for path in paths:
            sites[path].put(name, lora)
    activate(model, name)
    train_only(model, name)


def sites_by_weight(model: DiffusionGemma, paths: Iterable[str]) -> list[tuple[Tensor | Packed, list[str]]]:
    """Return each weight once, with those of the paths that lead to it: encoder and decoder share most weights."""
    weights: dict[int, Tensor | Packed] = {}
    paths_of: dict[int, list[str]] = {}
    for path in paths:
        weight = weight_of(model, path)
        weights[id(weight)] = weight
        paths_of.setdefault(id(weight), []).append(path)
    return [(weights[key], paths_of[key]) for key in weights]


def factor_values(model: DiffusionGemma, settings: LoraSettings) -> int:
    """Return how many values the factors of a new adapter have. The model may be one without weights."""
    targets = {path: weight for path, weight in adaptable_weights(model).items() if groups_of([path], settings.targets)}
    count = 0
    for weight in {id(weight): weight for weight in targets.values()}.values():  # shared ones have one adapter
        *experts, outputs, inputs = weight.shape
        count += math.prod(experts) * settings.rank * (outputs + inputs)
    return count


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
        paths_of_changes = [paths for _, paths in sites_by_weight(model, stored.factors)]
    else:
        paths_of_changes = [[path] for path in stored.factors]
    loras = [_frozen_lora(model, stored, path=paths[0]) for paths in paths_of_changes]

    if not stored.is_tied:
        split_encoder(model)
    sites = adapter_sites(model)
    for lora, paths in zip(loras, paths_of_changes, strict=True):
        for path in paths:
            sites[path].put(name, lora)


def _frozen_lora(model: DiffusionGemma, stored: StoredAdapter, path: str) -> Lora:
    lora = Lora(weight_of(model, path), stored.settings.rank, stored.settings.alpha).requires_grad_(False)
    a, b = stored.factors[path]
    lora.A.data.copy_(a)
    lora.B.data.copy_(b)
    return lora


def remove(model: DiffusionGemma, name: str) -> None:
    """Remove an adapter and free its memory. If it was active, the base model becomes active.

    An encoder that was split for it (`split_encoder`) stays split, since other adapters may depend on that.
    """
    check_known(model, name)
    for site in set(adapter_sites(model).values()):
        site.drop(name)


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


@torch.no_grad()
def merge(model: DiffusionGemma, name: str = "default") -> None:
    """Add an adapter to the base weights and remove it, which leaves a plain model."""
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
    sites = adapter_sites(model)
    changes = [(paths[0], _change(sites, name, paths)) for _, paths in sites_by_weight(model, sites)]
    for path, lora in changes:
        if lora is not None:
            fold(model.get_parameter(path).detach(), lora.A.detach(), lora.B.detach(), lora.scale)
    remove(model, name)
    if model.config.tie_word_embeddings:
        model.encoder.layers = model.decoder.layers  # undo `split_encoder`


def _change(sites: Mapping[str, Adapters], name: str, paths: Sequence[str]) -> Lora | None:
    """Return the change that an adapter makes to the one weight at these paths."""
    loras = [sites[path].get(name) for path in paths]
    factors = {None if lora is None else id(lora.A) for lora in loras}
    if len(factors) > 1:
        raise InputError(
            f"adapter {name!r} changes {' and '.join(map(checkpoint_name, paths))} differently, but they are one "
            "weight: it cannot be merged. Use it unmerged, or train one with gesso, which changes both alike"
        )
    return loras[0]


def fold(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
    """Add s·B·A to a weight in place, in float32, expert by expert: a layer's experts at once would need 2 GB more."""
    matrices = (tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (weight, a, b))
    for w_OI, a_LI, b_OL in zip(*matrices, strict=True):
        w_OI.copy_(w_OI.float() + scale * (b_OL.float() @ a_LI.float()))


def split_encoder(model: DiffusionGemma) -> None:
    """Give the encoder its own layers over the same weights, so that it can have other adapters than the decoder.

    Modules are copied, weights are not. Text and canvases then need separate passes.
    """
    if model.is_tied:
        packed_weights = (module for module in model.modules() if isinstance(module, Packed))
        # `deepcopy` takes the objects in this dictionary, by their id, as copied already.
        weights: dict[int, Any] = {id(weight): weight for weight in (*model.parameters(), *packed_weights)}
        model.encoder.layers = copy.deepcopy(model.decoder.layers, memo=weights)


def train_only(model: DiffusionGemma, name: str) -> None:
    model.requires_grad_(False)
    for site in adapter_sites(model).values():
        if (lora := site.get(name)) is not None:
            lora.requires_grad_(True)


def check_new(model: DiffusionGemma, name: str) -> None:
    check_adapter_name(name)
    if name in attached(model):
        raise InputError(f"the model already has an adapter called {name!r}; use another name")


def check_known(model: DiffusionGemma, name: str) -> None:
    names = attached(model)
    if name not in names:
        raise InputError(f"the model has no adapter called {name!r}; it has {', '.join(names) or 'none'}")


def groups_of(paths: Iterable[str], groups: Iterable[str] = TARGETS) -> tuple[str, ...]:
    """Return the target groups to which some of these parameters belong."""
    paths = list(paths)
    return tuple(group for group in groups if any(re.fullmatch(TARGETS[group], path) for path in paths))
