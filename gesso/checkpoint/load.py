"""Load a checkpoint: fetch, build and place one parameter after another.

Memory peaks at the model plus a few tensors on their way.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from gesso.checkpoint import random_weights, streamed, transfer
from gesso.checkpoint.parameters import assign, checkpoint_name, empty_model
from gesso.checkpoint.quantize.formats import FORMATS, Format, check_known, clear, format_of
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.checkpoint.source import CheckpointSource
from gesso.checkpoint.vision import attach_vision
from gesso.errors import CheckpointError, InputError
from gesso.model.quantization_config import LAYERS
from gesso.model.transformer import DiffusionGemma

MAPPED = ("fp8", "int4", "nvfp4")  # stored formats that a CPU does not convert while it reads them


def load(
    source: CheckpointSource,
    device: torch.device,
    dtype: torch.dtype,
    quantize: str | None = None,
    stream: Sequence[int] = (),
    *,
    unpack: bool = False,
    on_cpu: bool = False,
    convert: Callable[[Packed], Packed] | None = None,
    text_only: bool = False,
) -> DiffusionGemma:
    """Load a model, with its vision tower unless it is `text_only`.

    `dtype` is that of unpacked weights and of products.
    `quantize` packs each matrix on its device as it is read: the same numbers as `gesso quantize`. The experts of the
    layers in `stream` then move to host memory. With `unpack`, stored formats are unpacked instead of kept. With
    `on_cpu`, the formats are those of `format_of` for a CPU, and packed tensors of the file are mapped, not read: the
    system loads their pages when they are used, and shares them between processes. `convert` changes a packed matrix to
    a format that the backend multiplies, before the next one is read.
    """
    config = source.config
    if quantize is not None:
        check_known(quantize, on_cpu)
        if config.quantization not in (None, quantize, quantize + LAYERS):
            raise InputError(
                f"{source.path} is already quantized to {config.quantization}; give the checkpoint it was quantized "
                "from"
            )
    if source.path is None:
        model = random_weights.make(config, device, dtype, quantize, stream, on_cpu=on_cpu)
        if not text_only:
            attach_vision(model, source, device, dtype, on_host=bool(stream))
        return model.eval()
    packs = quantize if config.quantization is None else None
    model = empty_model(config.quantized(packs, on_cpu) if packs else config)

    def format_for(name: str, shape: Sequence[int]) -> Format | None:
        if packs:
            return format_of(name, shape, packs, on_cpu)
        return FORMATS.get(source.recipes[checkpoint_name(name)].native)

    streamed.attach(model, stream, device, dtype, format_for)
    ours = {checkpoint_name(name): name for name, _ in model.named_parameters()}
    for name, weight in _weights(source, device, MAPPED if on_cpu and not unpack else ()):
        if packs and isinstance(weight, Tensor) and (format := format_for(ours[name], weight.shape)):
            weight = format.quantize(name, weight)
            clear(device, weight.shape)
        if isinstance(weight, Packed) and unpack:
            weight = weight.dense(dtype)
        if isinstance(weight, Packed):
            weight = convert(weight) if convert else weight
            weight.dtype = dtype
        else:
            weight = weight.to(dtype)
        assign(model, ours[name], weight)
    if not text_only:
        attach_vision(model, source, device, dtype, on_host=bool(stream))
    return model.eval()


def _weights(source: CheckpointSource, device: torch.device, mapped: Sequence[str]) -> Iterator[tuple[str, Weight]]:
    """Yield every parameter by its name in the checkpoint, in the format that the device runs."""
    for name, recipe, parts in transfer.fetched(source.recipes.items(), device, "loading weights", mapped):
        weight = recipe.build(parts)
        # The built weight has fewer tensors than there are parts, and every check waits for the device.
        if not all(map(_is_finite, weight.tensors.values() if isinstance(weight, Packed) else (weight,))):
            damaged = [part.name for part, tensor in zip(recipe.parts, parts, strict=True) if not _is_finite(tensor)]
            raise CheckpointError(
                f"tensor {(damaged or [name])[0]} in {source.path} contains NaN or infinite values; the file is damaged"
            )
        if device.type == "cuda" and recipe.repack is not None and isinstance(weight, Packed):
            weight = recipe.repack(weight)
            clear(device, weight.shape)
        yield name, weight


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point():
        return True
    if tensor.dtype == torch.float8_e4m3fn:  # no infinity, one NaN per sign, and no aminmax in torch
        return not (tensor.view(torch.uint8) & 0x7F == 0x7F).any()
    return bool(torch.stack(tensor.aminmax()).isfinite().all())
