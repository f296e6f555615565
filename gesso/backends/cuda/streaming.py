"""Copy the experts of streamed layers to the GPU while other layers run.

The streamed layers take the two slots of `gesso/checkpoint/streamed.py` in turn. A pass starts with the copies of the
first two. When the pass is done with a streamed layer, the copy of the next but one starts into its slot:

    copies    | layer 3   | layer 7   | layer 11  | ...
    kernels   | 0, 1, 2   | 3, 4 - 6  | 7, 8 - 10 | ...

Each copy waits for the kernels that read its slot, and the kernels of a layer for its copy. Copies leave the stream of
the pass and join it again, so that a CUDA graph captures them, too. With the tokens of a canvas nearly all experts are
read in every pass, so whole layers are copied. PCIe bounds the pass unless few layers stream.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from gesso.checkpoint.streamed import SLOTS, streamed
from gesso.model.transformer import DiffusionGemma

Wait = Callable[[], None]


class Copies(Protocol):
    """Copies to the device that run beside the other work of a pass."""

    def start(self, target: Tensor, source: Tensor) -> Wait:
        """Queue a copy behind all work queued so far. Later work runs beside it until the returned function is called,
        and after it from then on.
        """
        ...


class GpuCopies:
    """Copies on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self.stream = _copy_stream(device)

    def start(self, target: Tensor, source: Tensor) -> Wait:
        self.stream.wait_stream(torch.cuda.current_stream(target.device))
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
        copied = self.stream.record_event()
        return lambda: torch.cuda.current_stream(target.device).wait_event(copied)


@lru_cache
def _copy_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)


class ExpertStream:
    """The copies of a pass. Without streamed layers there are none."""

    def __init__(self, model: DiffusionGemma, copies: Callable[[torch.device], Copies]) -> None:
        experts = streamed(model)
        self.places = {} if experts is None else {layer: place for place, layer in enumerate(experts.layers)}
        self.buffers = [] if experts is None else list(experts.copies())
        self.copies = None if experts is None else copies(model.device)
        self.waits: dict[int, Wait] = {}

    def begin(self) -> None:
        """Start the first copies of a pass."""
        for place in range(min(SLOTS, len(self.buffers))):
            self._start(place)

    def before(self, layer: int) -> None:
        """Wait for the copy of a layer, if its experts are streamed."""
        if layer in self.places:
            self.waits.pop(self.places[layer])()

    def after(self, layer: int) -> None:
        """Start the next copy into the slot of a layer that has run."""
        if layer in self.places and (place := self.places[layer] + SLOTS) < len(self.buffers):
            self._start(place)

    def _start(self, place: int) -> None:
        assert self.copies is not None
        self.waits[place] = self.copies.start(*self.buffers[place])
