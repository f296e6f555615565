"""The vision tower of a checkpoint: its tensors, and how it joins the text model.

Quantized checkpoints keep it in full precision, and so does gesso: on a GPU in the dtype of the model, on a CPU in the
stored one. Beside a GPU that is too small for the experts, its matrices stay in host memory.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from gesso.checkpoint.parameters import assign, checkpoint_name, is_vision
from gesso.checkpoint.stored import Inventory, Stored
from gesso.errors import CheckpointError
from gesso.model.config import Config

if TYPE_CHECKING:  # importing torch takes a second, too long to report a bad path
    import torch

    from gesso.checkpoint.source import CheckpointSource
    from gesso.model.transformer import DiffusionGemma
    from gesso.model.vision import Vision

PREFIX = "vision."  # of its parameters in the model
# Calibration, not trained parameters: published counts leave it out, and the bounds of clipping may be infinite.
_CALIBRATION = ("std_bias", "std_scale", "input_min", "input_max", "output_min", "output_max")


def is_buffer(name: str) -> bool:
    return is_vision(name) and name.rpartition(".")[2] in _CALIBRATION


def vision_tensors(config: Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every stored tensor of the tower and of its projection into the text model, by name."""
    weights = empty_vision(config).named_parameters(prefix=PREFIX.rstrip("."))
    return {checkpoint_name(name): tuple(parameter.shape) for name, parameter in weights}


@lru_cache(maxsize=32)  # plans for many cards need the same one
def vision_bytes(config: Config, value_bytes: int) -> int:
    """Return the size of a tower in memory; 0 if the model cannot use it."""
    return value_bytes * sum(map(math.prod, vision_tensors(config).values())) if config.has_image_tokens else 0


def has_vision(source: "CheckpointSource") -> bool:
    """Return whether a checkpoint has a tower that its model can use. One of zeros stands for a missing one."""
    if not source.config.has_image_tokens:
        return False
    if source.path is None:  # random weights
        return True
    from gesso.checkpoint.transfer import DirectReader

    with DirectReader() as reader:
        return any(tensor.any() for part in _stored(source) for tensor in reader.begin((part,))())


def attach_vision(
    model: "DiffusionGemma",
    source: "CheckpointSource",
    device: "torch.device",
    dtype: "torch.dtype",
    on_host: bool = False,
) -> None:
    """Give the model the tower of its checkpoint, if there is one. If it is `on_host`, its matrices stay there."""
    if not has_vision(source):
        return
    import torch

    from gesso.checkpoint import transfer
    from gesso.checkpoint.huggingface import plain
    from gesso.model.init import begin_one

    model.vision = empty_vision(model.config)
    names = {checkpoint_name(name): name for name, _ in model.named_parameters() if name.startswith(PREFIX)}

    def place(name: str, tensor: "torch.Tensor") -> None:
        where = torch.device("cpu") if on_host and tensor.ndim > 1 else device
        assign(model, names[name], tensor.to(where, tensor.dtype if where.type == "cpu" else dtype))

    if source.path is None:
        generator = torch.Generator(device).manual_seed(0)
        for name, shape in vision_tensors(model.config).items():  # in bfloat16, as the published tower
            weight = torch.empty(shape, device=device, dtype=torch.bfloat16)
            begin_one(name, weight, model.config.vision.num_hidden_layers, generator)
            place(name, weight)
        return
    inventory = Inventory({part.name: part for part in _stored(source)})
    recipes = {name: plain(name, shape, inventory) for name, shape in vision_tensors(model.config).items()}
    if problems := inventory.report():
        raise CheckpointError(
            f"the vision tower of {source.path} cannot be loaded; text_only leaves it out:\n  " + "\n  ".join(problems)
        )
    present = ((name, recipe) for name, recipe in recipes.items() if recipe is not None)
    for name, recipe, parts in transfer.fetched(present, device, "loading the vision tower"):
        tensor = cast("torch.Tensor", recipe.build(parts))
        if not is_buffer(name) and not tensor.isfinite().all():
            raise CheckpointError(
                f"tensor {name} in {source.path} contains NaN or infinite values; the file is damaged"
            )
        place(name, tensor)


def _stored(source: "CheckpointSource") -> Iterator[Stored]:
    stored, _ = source.headers
    return (part for name, part in stored.items() if is_vision(name))


def empty_vision(config: Config) -> "Vision":
    """Return the tower without weights: names and shapes on the meta device."""
    import torch

    from gesso.model.vision import Vision

    with torch.device("meta"):
        return Vision(config.vision, config.hidden_size)
