"""Adapters in the kernels of every precision at the width of the 26B-A4B checkpoint: against plain operations, in
captured passes, and mixed in a batch.
"""

from statistics import fmean
from zlib import crc32

import pytest
import torch

from gesso import adapters
from gesso.adapters import LoraSettings
from gesso.adapters.sites import adapter_sites
from gesso.backends.base import Piece
from gesso.backends.cuda import CudaBackend
from gesso.backends.torch import TorchBackend
from tests.backends.passes import CapturesPlainly, Reading
from tests.gpu.device import DEVICE, DRY_RUN
from tests.gpu.real_width import errors
from tests.gpu.test_real_width import packed_model

pytestmark = pytest.mark.gpu

STORED = (None, "fp8", "int4", "nvfp4", ("uint4", "fp8"))
EVERYTHING = ("attention", "mlp", "experts", "router", "self_conditioning")
TARGETS = {"all": EVERYTHING, "usual": ("attention", "mlp", "experts"), "router": ("router", "attention")}
RANKS = {"all": 8, "usual": 16, "router": 33}
DRAWS = 10  # of the factors, in the comparison with float32


def add(model, name: str, like: str | None = None) -> None:
    """Attach an adapter that changes products by about half of their size. `like`: with the rank and targets of it."""
    like = like or name
    adapters.add(model, LoraSettings(rank=RANKS[like], targets=TARGETS[like]), name, seed=len(name))
    generator = torch.Generator().manual_seed(crc32(name.encode()))
    with torch.no_grad():
        for site in dict.fromkeys(adapter_sites(model).values()):
            if (lora := site.get(name)) is not None:
                lora.requires_grad_(False)
                lora.B.copy_(torch.randn(lora.B.shape, generator=generator) * 0.2)
    adapters.activate(model, None)


def hidden(backend, name: str | None) -> list[torch.Tensor]:
    """Return the hidden states of a text and of a canvas after it."""
    cache = backend.model.new_cache(1, 512)
    ids_S, canvas_C = (torch.arange(n, device=DEVICE) * 7 % 500 for n in (40, 32))
    adapters.activate(backend.model, name)
    found = [backend.run([Piece(0, ids_S, causal=True, adapter=name)], cache)[0]]
    soft_CH = torch.sin(torch.arange(32 * len(found[0][0]), device=DEVICE)).view(32, -1).to(backend.model.dtype)
    found += backend.run([Piece(0, canvas_C, causal=False, soft_SH=soft_CH, adapter=name)], cache)
    adapters.activate(backend.model, None)
    return [each.float() for each in found]


@torch.no_grad()
def draw(model, seed: int) -> None:
    """Draw the factors of all attached adapters anew, with the distributions of `add`."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    for site in dict.fromkeys(adapter_sites(model).values()):
        for name in site.names():
            lora = site.get(name)
            bound = lora.A.shape[-1] ** -0.5
            lora.A.uniform_(-bound, bound, generator=generator)
            lora.B.normal_(0, 0.2, generator=generator)


def test_adapters_in_kernels_are_as_close_to_float32_as_plain_operations(record_property):
    model = packed_model(None)
    names = ("all", "usual")
    for name in names:
        add(model, name)

    def drawn(backend):
        """Return the hidden states with each adapter, for every draw of the factors."""
        found = []
        for seed in range(DRAWS):
            draw(model, seed)
            backend.drop_captured()  # and copies of the factors
            found.append({name: hidden(backend, name) for name in names})
        return found

    kernels, plain = (drawn(make(model)) for make in (CudaBackend, TorchBackend))
    exact = drawn(TorchBackend(model.float()))  # last: this converts the model in place
    for name in names:
        apart, allowed = (
            fmean(float(errors(a[name], b[name]).median()) for a, b in zip(found, exact, strict=True))
            for found in (kernels, plain)
        )
        record_property(f"{name}_error", apart)
        record_property(f"{name}_plain_error", allowed)
        record_property(f"{name}_ratio", apart / allowed)
        # Kernels and plain operations round in different places, so the ratio of a single draw says little.
        assert apart < 1.3 * allowed


@pytest.mark.parametrize("stored", [stored for stored in STORED if stored], ids=str)
def test_adapters_in_kernels_match_plain_operations(record_property, stored):
    model = packed_model(stored)
    add(model, "all")
    add(model, "usual")
    fast, plain = CudaBackend(model), TorchBackend(model)
    base = hidden(plain, None)
    for name in ("all", "usual"):
        expected = hidden(plain, name)
        apart, changed = errors(hidden(fast, name), expected).median(), errors(base, expected).median()
        record_property(f"{name}_error", float(apart))
        record_property(f"{name}_change", float(changed))
        # As in test_real_width.py: with FP8 matrices, kernels also round activations.
        assert apart < 0.25 and changed > 0.4


@torch.no_grad()
@pytest.mark.parametrize("stored", STORED, ids=str)
def test_mixed_adapters_in_a_captured_pass_equal_each_alone_to_the_last_bit(stored):
    model = packed_model(stored)
    names = ("all", None, "usual", "router", "usual")
    work = [Reading(row, tuple(range(5 + row, 30 + 9 * row)), name) for row, name in enumerate(names)]
    cache = model.new_cache(len(work), 512)
    for row in range(len(work)):
        cache.reserve(row, 128)

    def scored(backend, chosen):
        found = []
        for _ in range(3):  # uncaptured, captured, replayed
            for item in chosen:
                cache.cut(item.row, 0)
            replayed = backend.replay(chosen, cache)
            while replayed is None:  # a pass is captured when it is needed again
                replayed = backend.replay(chosen, cache)
            found.append(replayed.scored)
        assert all(torch.equal(a, b) for again in found[1:] for a, b in zip(again, found[0], strict=True))
        return found[0]

    def expecting():
        backend = CapturesPlainly(model) if DRY_RUN else CudaBackend(model)
        backend.expect(len(work), 64, 512)
        return backend

    (without,) = scored(expecting(), [work[1]])
    for name in RANKS:
        add(model, name)
    backend = expecting()
    mixed = scored(backend, work)
    assert torch.equal(mixed[1], without), "the base model has the same bits as without adapters"
    for item, together in zip(work, mixed, strict=True):
        assert torch.equal(scored(backend, [item])[0], together)
    assert not torch.equal(mixed[2][:20], mixed[4][:20])
    # Another adapter of the same size, in the slot of one that is removed, needs no new graph.
    for site in set(adapter_sites(model).values()):
        if site.get("usual") is not None:
            site.drop("usual")
    add(model, "later", like="usual")
    graphs = backend.graphs
    backend.adapters_changed()
    later = [Reading(item.row, item.text, "later" if item.adapter == "usual" else item.adapter) for item in work]
    found = scored(backend, later)
    assert backend.graphs is graphs
    assert all(torch.equal(found[i], mixed[i]) for i in (0, 1, 3)) and not torch.equal(found[2], mixed[2])
