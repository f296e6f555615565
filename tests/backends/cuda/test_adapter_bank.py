"""The adapters of a model in the CUDA backend: slots, captured passes, and whole passes against the plain model."""

from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton")

from gesso import adapters  # noqa: E402
from gesso.adapters import LoraSettings  # noqa: E402
from gesso.adapters.sites import adapter_sites  # noqa: E402
from gesso.adapters.tied import split_encoder  # noqa: E402
from gesso.backends.base import Piece  # noqa: E402
from gesso.backends.cuda import CudaBackend, network  # noqa: E402
from gesso.backends.cuda.adapters import AdapterBank, Site  # noqa: E402
from gesso.backends.cuda.kernels.segments import Segment  # noqa: E402
from gesso.backends.cuda.pass_sizes import PassSize  # noqa: E402
from gesso.backends.torch import TorchBackend  # noqa: E402
from gesso.checkpoint import random_weights  # noqa: E402
from gesso.errors import InputError  # noqa: E402
from tests.backends.cuda.test_model import TEXT, make, packed_pass  # noqa: E402

SHORT = TEXT | {
    "num_hidden_layers": 1, "layer_types": ["sliding_attention"], "hidden_size": 64, "intermediate_size": 32,
    "moe_intermediate_size": 32, "num_experts": 5,
}  # fmt: skip


def new_model(**changes):
    return make(random_weights.config_of("mini", **SHORT | changes), None)


def add(model, name: str, rank: int = 4, targets=("attention", "mlp", "experts", "router", "self_conditioning")):
    adapters.add(model, LoraSettings(rank=rank, targets=targets), name, seed=len(name))
    generator = torch.Generator().manual_seed(rank)
    for site in set(adapter_sites(model).values()):
        if (lora := site.get(name)) is not None:
            lora.B.data.copy_(torch.randn(lora.B.shape, generator=generator) * 0.1)
    adapters.activate(model, None)


def remove(model, name: str) -> None:
    for site in set(adapter_sites(model).values()):
        if site.get(name) is not None:
            site.drop(name)


def canvases(backend, names) -> list[torch.Tensor]:
    """Return the hidden states of canvases with these adapters, in rows that hold no text."""
    generator = torch.Generator().manual_seed(0)
    pieces = []
    for row, name in enumerate(names):
        soft_SH = torch.randn(3, 64, generator=generator)
        pieces.append(Piece(row, torch.arange(3) * 12 + row, causal=False, soft_SH=soft_SH, adapter=name))
    chosen = [piece for piece in pieces if piece.adapter != "skip"]
    return backend.run(chosen, backend.model.new_cache(len(names), 64))


@torch.no_grad()
def test_mixed_adapters_in_a_batch_equal_each_alone_and_the_plain_model():
    model = new_model()
    expected = canvases(CudaBackend(model), ["skip", None])  # without any adapter
    add(model, "one")
    add(model, "second", rank=20)
    backend = CudaBackend(model)
    assert backend.can_capture
    mixed = canvases(backend, ["one", None, "second"])
    assert torch.equal(mixed[1], expected[0])
    assert torch.equal(mixed[2], canvases(backend, ["skip", "skip", "second"])[0])
    for row, name in ((0, "one"), (2, "second")):
        plain, base = (canvases(TorchBackend(model), ["skip"] * row + [each])[0] for each in (name, None))
        assert (mixed[row] - plain).norm() < 1e-5 * plain.norm() and (base - plain).norm() > 0.1 * plain.norm()


@dataclass
class Reading:
    """A request that reads one text with an adapter, for a captured pass."""

    adapter: str | None
    row = 0
    denoising = None
    texts = ((7, 5, 3),)
    pieces = ((3, "scored"),)


@torch.no_grad()
def test_a_captured_pass_serves_every_adapter_also_one_that_is_attached_later(replace_layer):
    def only_mlp(layer, x_TH, normed, lengths, attend, rotation, scalar_T1, next_norm, adapters, kernels):
        x_TH = x_TH + network.gated_mlp(layer.mlp, x_TH, lengths, adapters, kernels)
        return x_TH, x_TH

    replace_layer(only_mlp)
    model = new_model()
    add(model, "one", targets=("attention", "mlp"))
    backend = CudaBackend(model)
    passes, cache = backend.graphs.backend, model.new_cache(1, 64)
    graph = packed_pass(passes, PassSize(canvases=0, texts=16), cache)

    def replayed(name):
        cache.cut(0, 0)
        return graph.run([Reading(name)], cache).scored[0]

    def alone(name):
        text = torch.tensor(Reading.texts[0])
        return backend.run([Piece(0, text, causal=True, adapter=name)], model.new_cache(1, 64))[0]

    first = replayed("one")
    assert torch.equal(first, alone("one")) and not torch.equal(replayed(None), first)
    remove(model, "one")
    add(model, "other", targets=("mlp",))
    graphs = backend.graphs
    backend.adapters_changed()
    assert backend.graphs is graphs, "captured passes stay valid"
    later = replayed("other")
    assert torch.equal(later, alone("other")) and not torch.equal(later, first)


def test_without_adapters_a_pass_has_no_slots():
    model = new_model()
    backend = CudaBackend(model)
    planned = [Segment(0, 0, 1, True)], model.new_cache(1, 64), [1]
    for _ in range(2):
        assert backend.plan(*planned).slot_T is None and not backend.bank.pairs
        add(model, "one", targets=("attention",))
        graphs = backend.graphs
        backend.adapters_changed()
        assert backend.graphs is not graphs and backend.plan(*planned).slot_T is not None
        assert len(backend.bank.pairs) == 2, "one launch for q, k and v, and one for o"
        remove(model, "one")
        backend.adapters_changed()


def test_a_new_adapter_takes_a_free_slot_and_captured_passes_are_dropped_only_if_tensors_grow():
    model = new_model()
    add(model, "a", targets=("attention",))
    add(model, "b", rank=16, targets=("attention",))
    bank = AdapterBank(model)
    assert (bank.count, bank.rank, bank.slots) == (2, 16, {"a": 0, "b": 1})
    addresses = [tensor.data_ptr() for pair in bank.pairs.values() for tensor in pair]
    remove(model, "a")
    assert not bank.update(model) and bank.slots == {"b": 1}
    add(model, "c", targets=("attention",))
    assert not bank.update(model) and bank.slots == {"b": 1, "c": 0}
    assert addresses == [tensor.data_ptr() for pair in bank.pairs.values() for tensor in pair]
    for change in ({"targets": ("experts",)}, {"rank": 17}, {}):  # other weights, a larger rank, another slot
        remove(model, "c")
        add(model, "c", **change)
        grown = bank.update(model)
        if change:
            assert grown
        else:
            add(model, "d", targets=("attention",))
            assert bank.update(model) and bank.count == 4
    assert bank.rank == 32 and set(bank.slots) == {"b", "c", "d"}


def test_a_reused_slot_keeps_nothing_of_its_former_adapter():
    model = new_model()
    add(model, "a")
    bank = AdapterBank(model)
    remove(model, "a")
    add(model, "a", rank=3, targets=("attention",))
    assert not bank.update(model)
    fresh = AdapterBank(model)
    attention = model.decoder.layers[0].self_attn.q_proj.weight_adapters
    for found, expected in zip(bank.pairs[attention], fresh.pairs[attention], strict=True):
        assert torch.equal(found, expected)
    others = [tensor for key, pair in bank.pairs.items() if key not in fresh.pairs for tensor in pair]
    assert others and not any(tensor.any() for tensor in others)


def test_changed_weights_are_copied_when_captured_passes_are_dropped():
    model = new_model()
    add(model, "a", targets=("mlp",))
    backend = CudaBackend(model)
    key = model.decoder.layers[0].mlp.down_proj.weight_adapters
    before = backend.bank.pairs[key][1].clone()
    key.get("a").B.data.mul_(2)
    backend.adapters_changed()
    assert torch.equal(backend.bank.pairs[key][1], before)
    backend.drop_captured()
    assert torch.equal(backend.bank.pairs[key][1], 2 * before)


def test_an_unknown_adapter_is_rejected_by_name():
    backend = CudaBackend(new_model())
    with pytest.raises(InputError, match="no adapter called 'nobody'; it has none"):
        backend.slot("nobody")


@torch.no_grad()
def test_a_split_encoder_has_adapters_of_its_own():
    model = new_model(num_attention_heads=1)
    backend = CudaBackend(model)
    add(model, "a", targets=("mlp",))
    split_encoder(model)
    encoder, decoder = (stack.layers[0].mlp.down_proj.weight_adapters for stack in (model.encoder, model.decoder))
    encoder.get("a").B = torch.nn.Parameter(-encoder.get("a").B)
    backend.adapters_changed()
    assert not backend.graphs.can_capture
    assert torch.equal(backend.bank.pairs[encoder][1], -backend.bank.pairs[decoder][1])
    text = [Piece(0, torch.tensor((7, 5, 3)), causal=True, adapter="a")]
    found = backend.run(text, model.new_cache(1, 64))[0]
    adapters.activate(model, "a")
    expected = TorchBackend(model).run(text, model.new_cache(1, 64))[0]
    assert (found - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("fails", ["empty", "write"])
def test_after_a_failed_update_the_bank_is_rebuilt_and_no_captured_pass_stays(monkeypatch, fails):
    model = new_model()
    add(model, "one")
    backend = CudaBackend(model)
    graphs, expected = backend.graphs, canvases(backend, ["one"])
    add(model, "second")
    calls = iter([False] * 3 + [True])
    original = getattr(Site, fails)

    def failing(self, *given):
        if next(calls, False):
            raise torch.OutOfMemoryError
        return original(self, *given)

    monkeypatch.setattr(Site, fails, failing)  # as if the memory of the card were full
    with pytest.raises(torch.OutOfMemoryError):
        backend.adapters_changed()
    remove(model, "second")
    backend.adapters_changed()
    assert backend.graphs is not graphs and backend.bank.count == 1
    assert all(map(torch.equal, canvases(backend, ["one"]), expected))


def test_a_merged_adapter_is_not_applied_again():
    model = new_model()
    add(model, "one")
    backend = CudaBackend(model)
    adapters.merge(model, "one")
    with pytest.raises(InputError, match="merged or removed"):
        canvases(backend, ["one"])
