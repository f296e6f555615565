"""Experts that stay in host memory because the GPU is too small for them.

The experts of a streamed layer are one buffer of pinned host memory. Two slots of device memory serve all streamed
layers in turn, and the modules of a layer view its slot. The slot holds the layer's weights only while the layer runs:
a backend copies them there in time (`gesso/backends/cuda/streaming.py`).
"""

import mmap
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from gesso.checkpoint.quantize.formats import Format
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.errors import DoesNotFitError, InputError
from gesso.model.transformer import DiffusionGemma

SLOTS = 2  # one is read while the next layer is copied into the other
ALIGNMENT = 256  # bytes; as much as any kernel or copy requires
PAGE = 4096  # bytes
NAME = "streamed_experts"  # of the submodule
RESIDENT = ("weight_global_scale", "weight_shape")  # a few bytes per expert, which stay on the device

Formats = Callable[[str, Sequence[int]], Format | None]


@dataclass(frozen=True)
class BufferPart:
    """The place of one tensor in the buffer of its layer."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def view(self, buffer: Tensor) -> Tensor:
        size = self.dtype.itemsize * torch.Size(self.shape).numel()
        return buffer[self.start : self.start + size].view(self.dtype).view(self.shape)


class StreamedExperts(nn.Module):
    """The experts of some layers: their buffers in host memory and the slots on the device.

    It has neither parameters nor buffers in the sense of `nn.Module`, so that it is not part of a state dict.
    """

    def __init__(
        self, model: DiffusionGemma, layers: Sequence[int], device: torch.device, dtype: torch.dtype, formats: Formats
    ) -> None:
        super().__init__()
        count = len(model.decoder.layers)
        if not model.is_tied:
            raise InputError("experts cannot be streamed: the model has separate weights for encoder and decoder")
        if wrong := [layer for layer in layers if not 0 <= layer < count]:
            raise InputError(f"cannot stream the experts of layer {wrong[0]}: the model has layers 0 to {count - 1}")
        self.layers = tuple(sorted(set(layers)))
        self.parts: dict[str, dict[str, BufferPart]] = {}  # by the name of the parameter
        self.places: dict[str, int] = {}  # index in `layers`, by the name of the parameter
        sizes = []
        for place, layer in enumerate(self.layers):
            end = 0
            for leaf, parameter in model.decoder.layers[layer].get_submodule("experts").named_parameters():
                name = f"decoder.layers.{layer}.experts.{leaf}"
                self.places[name] = place
                self.parts[name], end = _parts(parameter.shape, formats(name, parameter.shape), dtype, end)
            sizes.append(end)
        self.slots = [torch.empty(max(sizes), dtype=torch.uint8, device=device) for _ in range(SLOTS)]
        self.hosts = [_Pinned(size, device) for size in sizes]

    @property
    def nbytes(self) -> int:
        """Bytes in host memory: a pass copies each of them once."""
        return sum(host.bytes.nbytes for host in self.hosts)

    @property
    def slot_bytes(self) -> int:
        return sum(slot.nbytes for slot in self.slots)

    def copies(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield slot and host buffer of each streamed layer, in the order of the layers."""
        for place, host in enumerate(self.hosts):
            yield self.slots[place % SLOTS][: host.bytes.nbytes], host.bytes

    def take(self, name: str, weight: Weight) -> Weight:
        """Move the weight of a streamed layer to host memory, and return the same weight as a view of its slot."""
        place = self.places[name]
        parts = self.parts[name]
        tensors: Mapping[str, Tensor] = weight.tensors if isinstance(weight, Packed) else {"weight": weight}
        for key, tensor in tensors.items():
            if key in RESIDENT:
                continue
            assert (tuple(tensor.shape), tensor.dtype) == (parts[key].shape, parts[key].dtype), (name, key)
            parts[key].view(self.hosts[place].bytes).copy_(tensor)
        slot = self.slots[place % SLOTS]
        views = {key: tensor if key in RESIDENT else parts[key].view(slot) for key, tensor in tensors.items()}
        if isinstance(weight, Packed):
            return Packed(weight.format, weight.shape, views, weight.unpack, weight.dtype)
        return views["weight"]

    def _apply(self, fn: Any, recurse: bool = True) -> NoReturn:
        raise InputError(
            "the model cannot be moved or converted: some of its experts are in host memory and stream to the device "
            "it was loaded for; load it again with other arguments"
        )


def attach(
    model: DiffusionGemma, layers: Sequence[int], device: torch.device, dtype: torch.dtype, formats: Formats
) -> None:
    """Let the experts of these layers stream. Call this before the weights of an empty model are assigned.

    `formats` returns the format that a parameter will have, by its name in the model and its shape.
    """
    if layers:
        model.add_module(NAME, StreamedExperts(model, layers, device, dtype, formats))


def streamed(model: DiffusionGemma) -> StreamedExperts | None:
    """Return the experts of this model that are in host memory."""
    experts = model._modules.get(NAME)
    assert experts is None or isinstance(experts, StreamedExperts)
    return experts


def check_resident(model: DiffusionGemma, purpose: str) -> None:
    """Reject a purpose that reads or writes weights outside of a pass."""
    experts = streamed(model)
    if experts is not None:
        raise InputError(
            f"cannot {purpose}: the experts of {len(experts.layers)} layers are in host memory; load the model on a "
            "device that holds all of it, such as the CPU"
        )


def _parts(
    shape: torch.Size, format: Format | None, dtype: torch.dtype, start: int
) -> tuple[dict[str, BufferPart], int]:
    """Return the places of the tensors of a parameter from `start` on, and the end of the last one."""
    layout = {"weight": (tuple(shape), dtype)} if format is None else format.layout(shape)
    parts = {}
    for key, (part_shape, part_dtype) in layout.items():
        if key in RESIDENT:
            continue
        parts[key] = BufferPart(start, part_shape, part_dtype)
        size = part_dtype.itemsize * torch.Size(part_shape).numel()
        start += -(-size // ALIGNMENT) * ALIGNMENT
    return parts, start


class _Pinned:
    """Host memory that the GPU can copy from while kernels run.

    Registered with CUDA instead of allocated by torch, which rounds pinned memory up to a power of two: 0.54 GB for the
    0.43 GB of a layer of the 26B in int4.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        pages = -(-size // PAGE) * PAGE  # whole pages: two registered buffers must not share one
        # Mapped memory starts at a page. torch finds a tensor pinned if the start of its storage is.
        self.bytes = torch.frombuffer(mmap.mmap(-1, pages), dtype=torch.uint8)[:size]
        if device.type != "cuda":
            return
        runtime: Any = torch.cuda.cudart()
        if failed := int(runtime.cudaHostRegister(self.bytes.data_ptr(), pages, 0)):
            raise DoesNotFitError(
                f"{size:,} bytes of host memory could not be pinned (CUDA error {failed}); free host memory, "
                "choose fewer bits (quantize), or a larger limit (memory), with which fewer experts are in host memory"
            )
        weakref.finalize(self, runtime.cudaHostUnregister, self.bytes.data_ptr()).atexit = False
