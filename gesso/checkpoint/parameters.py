"""The parameters of the model: their names in a checkpoint, their shapes, and how weights take their places."""

import re
from typing import TYPE_CHECKING

from gesso.model.config import Config

if TYPE_CHECKING:  # importing torch takes a second, too long to report a bad path
    from gesso.checkpoint.quantize.packed import Weight
    from gesso.model.transformer import DiffusionGemma

_VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
_RENAMES = (
    (r"^lm_head$", "lm_head.weight"),
    (r"\.layer_scalars\.(\d+)$", r".layers.\1.layer_scalar"),
    (r"^vision\.tower\.", _VISION[0]),
    (r"^vision\.embedder\.", _VISION[1]),
    (r"^encoder\.", "model.encoder.language_model."),
    (r"^(decoder|self_conditioning)\.", r"model.\1."),
    (r"^model\.self_conditioning\.", "model.decoder.self_conditioning."),
)


def checkpoint_name(name: str) -> str:
    """Return the checkpoint's name for a parameter of the model."""
    for pattern, replacement in _RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def is_vision(name: str) -> bool:
    """Return whether a tensor of a checkpoint belongs to the vision tower or to its projection."""
    return name.startswith(_VISION)


def parameters(config: Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of the text model by its name in a checkpoint, in the order of the model."""
    model = empty_model(config)
    return {checkpoint_name(name): tuple(parameter.shape) for name, parameter in model.named_parameters()}


def empty_model(config: Config) -> "DiffusionGemma":
    """Return the text model without weights: names and shapes on the meta device."""
    import torch

    from gesso.model.transformer import DiffusionGemma

    with torch.device("meta"):
        return DiffusionGemma(config)


def assign(model: "DiffusionGemma", name: str, weight: "Weight") -> None:
    """Replace the parameter of this name by a weight, which moves to host memory if it is a streamed expert."""
    from torch import nn

    from gesso.checkpoint.quantize.packed import Packed
    from gesso.checkpoint.streamed import streamed

    if (held := streamed(model)) is not None and name in held.places:
        weight = held.take(name, weight)

    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(weight, Packed):
        delattr(module, leaf)  # torch rejects a submodule with the name of a parameter
        module.add_module(leaf, weight)
    else:
        module.register_parameter(leaf, nn.Parameter(weight, requires_grad=False))
