"""Weights that encoder and decoder share: one weight with two names.

In a tied model an adapter makes one change to such a weight, which acts on both. Adapters trained elsewhere may have
two different changes; encoder and decoder then need modules of their own.
"""

import copy
from collections.abc import Iterable
from typing import Any

from gesso.adapters.sites import weight_of
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.model.transformer import DiffusionGemma


def paths_by_weight(model: DiffusionGemma, paths: Iterable[str]) -> list[tuple[Weight, list[str]]]:
    """Return each weight once, with all of the paths that lead to it."""
    weights: dict[int, Weight] = {}
    paths_of: dict[int, list[str]] = {}
    for path in paths:
        weight = weight_of(model, path)
        weights[id(weight)] = weight
        paths_of.setdefault(id(weight), []).append(path)
    return [(weights[key], paths_of[key]) for key in weights]


def split_encoder(model: DiffusionGemma) -> None:
    """Give the encoder its own layers over the same weights, so that it can have other adapters than the decoder.

    Modules are copied, weights are not. Text and canvases then need separate passes.
    """
    if model.is_tied:
        packed_weights = (module for module in model.modules() if isinstance(module, Packed))
        # `deepcopy` takes the objects in this dictionary, by their id, as copied already.
        weights: dict[int, Any] = {id(weight): weight for weight in (*model.parameters(), *packed_weights)}
        model.encoder.layers = copy.deepcopy(model.decoder.layers, memo=weights)
