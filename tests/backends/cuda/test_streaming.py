"""Streamed experts: the order of copies and kernels, and the same bits as with all experts on the device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gesso import adapters
from gesso.checkpoint import random_weights, write
from gesso.checkpoint.streamed import ALIGNMENT, PAGE, RESIDENT, SLOTS, streamed
from gesso.errors import InputError
from gesso.model.transformer import DiffusionGemma

pytest.importorskip("triton")
from gesso.backends import Backend, for_model  # noqa: E402
from gesso.backends.base import Piece  # noqa: E402
from gesso.backends.cuda import (  # noqa: E402
    CudaBackend,
    CudaPasses,  # noqa: E402
)
from gesso.backends.cuda.pass_adapters import active  # noqa: E402
from gesso.backends.cuda.pass_sizes import PassSize  # noqa: E402
from gesso.backends.cuda.streaming import ExpertStream  # noqa: E402
from tests.backends.cuda.test_model import TEXT, Reading, packed_pass  # noqa: E402

CPU = torch.device("cpu")
LAYERS = {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
STREAMED = (0, 2, 3, 5)  # adjacent layers, resident ones between, the first and the last
GARBAGE = 0x7F  # as bfloat16 or float32 a huge number, as FP8 NaN


class LateCopies:
    """Copies that run as late as on a GPU: a target is garbage from the start of its copy until something waits for it.

    A copy that starts too early, or that nothing waits for, gives other numbers.
    """

    def __init__(self, device: torch.device) -> None:
        self.unfinished: list[Tensor] = []

    def start(self, target: Tensor, source: Tensor) -> Callable[[], None]:
        def finish() -> None:
            target.copy_(source)
            self.unfinished = [each for each in self.unfinished if each is not target]
            self.scramble()

        self.unfinished.append(target)
        self.scramble()
        return finish

    def scramble(self) -> None:
        for target in self.unfinished:
            target.fill_(GARBAGE)


class LatePasses(CudaPasses):
    copies = LateCopies


class LateBackend(CudaBackend):
    copies, passes = LateCopies, LatePasses


def make(format: str | None, layers: tuple[int, ...], **changes: object) -> DiffusionGemma:
    config = random_weights.config_of("mini", **TEXT | LAYERS | changes)
    return random_weights.make(config, CPU, torch.float32, format, layers)


@torch.no_grad()
def hidden(backend: Backend, adapter: str | None = None) -> Tensor:
    piece = Piece(0, torch.tensor([7, 5, 3]), causal=True, adapter=adapter)
    return backend.run([piece], backend.model.new_cache(1, 64))[0]


@pytest.fixture
def only_experts(replace_layer: Callable[[Callable[..., Any]], None]) -> None:
    """Reduce a layer to its experts, run by the plain module."""

    def run_layer(layer, x_TH, normed, lengths, attend, rotation, scalar_T1, next_norm, adapters, kernels):
        index_TK, weight_TK, _ = layer.router(x_TH)
        with active(layer, adapters.names[0]):
            x_TH = x_TH + layer.experts(x_TH, index_TK, weight_TK)
        return x_TH, x_TH

    replace_layer(run_layer)


# --- the same numbers -------------------------------------------------------------------------------------------------


def test_streamed_experts_give_the_bits_of_resident_ones_in_the_kernels():
    changes = {"num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 3}
    expected, found = (hidden(LateBackend(make("int4", layers, **changes))) for layers in ((), (0, 1, 2)))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("format", [None, "fp8", "int4", "nvfp4"])
def test_streamed_experts_give_the_bits_of_resident_ones_in_every_format(format, only_experts):
    expected = hidden(LateBackend(make(format, ())))
    backend = LateBackend(make(format, STREAMED))
    for _ in range(2):  # a second pass begins with the last layers in the slots
        assert torch.equal(hidden(backend), expected)


@torch.no_grad()
def test_a_captured_pass_copies_the_experts_itself(only_experts):
    passes = LateBackend(make(None, STREAMED)).graphs.backend
    work = [Reading(0, (7, 5, 3))]
    results = []
    for each in (passes, CudaBackend(make(None, ())).graphs.backend):
        cache = each.model.new_cache(1, 64)
        results.append(packed_pass(each, PassSize(canvases=0, texts=16), cache).run(work, cache).scored[0])
    assert torch.equal(*results)


def test_adapters_of_streamed_experts_stay_on_the_device(only_experts):
    found = []
    for layers in ((), STREAMED):
        model = make(None, layers)
        adapters.add(model, adapters.LoraSettings(rank=2, targets=("experts",)))
        for name, parameter in model.named_parameters():
            if name.endswith(".B"):
                parameter.data.fill_(0.1)
        backend = LateBackend(model)
        assert all(tensor.device == CPU for pair in backend.bank.pairs.values() for tensor in pair)
        found.append(hidden(backend, "default"))
        assert not torch.equal(found[-1], hidden(backend))
    assert torch.equal(*found)


# --- order ------------------------------------------------------------------------------------------------------------


class Recorder:
    """Copies that record their order."""

    def __init__(self, events: list[tuple[str, int]], hosts: list[Tensor]) -> None:
        self.events, self.hosts = events, [host.data_ptr() for host in hosts]

    def start(self, target: Tensor, source: Tensor) -> Callable[[], None]:
        place = self.hosts.index(source.data_ptr())
        self.events.append(("copy", place))
        return lambda: self.events.append(("wait", place))


@pytest.mark.parametrize("layers", [(4,), (1, 4), STREAMED, tuple(range(6))])
def test_a_copy_starts_after_its_slot_was_read_and_ends_before_it_is_read_again(layers):
    model = make(None, layers)
    held, events = streamed(model), []
    stream = ExpertStream(model, lambda _: Recorder(events, [host for _, host in held.copies()]))
    stream.begin()
    for layer in range(6):
        stream.before(layer)
        if layer in layers:
            events.append(("run", layers.index(layer)))
        stream.after(layer)
    for place in range(len(layers)):
        copy, wait, run = (events.index((name, place)) for name in ("copy", "wait", "run"))
        assert copy < wait < run
        if place >= SLOTS:
            assert events.index(("run", place - SLOTS)) < copy
        if place >= 1:  # it is under way while the layer before runs
            assert copy < events.index(("run", place - 1)) or place < SLOTS
    assert len(events) == 3 * len(layers), "each layer is copied once"


def test_a_pass_with_streamed_experts_is_never_divided():
    class Mixed(Reading):
        pieces = [(3, "text"), (3, "canvas")]

    backend = LateBackend(make(None, STREAMED))
    backend.graphs.can_capture = True
    assert not backend.divides([Mixed(0, (7, 5, 3))])


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", [None, "fp8", "int4", "nvfp4"])
def test_streamed_layers_share_two_aligned_slots(format):
    model = make(format, STREAMED)
    held = streamed(model)
    sizes = [host.nbytes for _, host in held.copies()]
    assert held.nbytes == sum(sizes) and held.slot_bytes == SLOTS * max(sizes)
    assert not any(host.data_ptr() % PAGE for _, host in held.copies())
    ends = [(slot.data_ptr(), slot.data_ptr() + slot.nbytes) for slot in held.slots]
    for place, layer in enumerate(STREAMED):
        experts = model.decoder.layers[layer].experts
        named = [*experts.named_parameters(), *experts.named_buffers()]
        tensors = [tensor for name, tensor in named if name.rpartition(".")[2] not in RESIDENT]
        assert sum(tensor.nbytes for tensor in tensors) <= sizes[place]
        for tensor in tensors:
            start, end = ends[place % SLOTS]
            assert start <= tensor.data_ptr() < tensor.data_ptr() + tensor.nbytes <= end
            assert (tensor.data_ptr() - start) % ALIGNMENT == 0


def test_uses_that_would_read_a_slot_outside_of_a_pass_are_rejected(tmp_path):
    model = make(None, STREAMED)
    adapters.add(model, adapters.LoraSettings(rank=2, targets=("attention",)))
    for use in (
        lambda: write.save(model, tmp_path / "saved"),
        lambda: adapters.merge(model),
        lambda: for_model(model),  # the plain model, because this is no GPU
    ):
        with pytest.raises(InputError, match="experts of 4 layers are in host memory"):
            use()
    with pytest.raises(InputError, match="cannot be moved"):
        model.to(torch.bfloat16)
    with pytest.raises(InputError, match="cannot stream the experts of layer 6"):
        make(None, (6,))
