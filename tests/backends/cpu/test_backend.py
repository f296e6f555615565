"""The CPU backend against the plain model with the same packed weights."""

import sys

import pytest
import torch

from gesso import adapters, backends
from gesso.adapters.lora import Lora
from gesso.adapters.sites import adaptable_weights, adapter_sites, make_adaptable
from gesso.backends import cpu
from gesso.backends.base import Backend, Piece
from gesso.backends.torch import TorchBackend
from gesso.checkpoint import random_weights
from gesso.checkpoint.parameters import assign
from gesso.checkpoint.quantize.formats import FORMATS, format_of, is_expert
from gesso.model.init import begin
from gesso.model.transformer import DiffusionGemma
from gesso.train.prepare import prepare

pytest.importorskip("numba")
from gesso.backends.cpu.experts import PackedExperts  # noqa: E402

# Enough experts to be sorted. 160 inputs are a block and a group.
TEXT = {
    "vocab_size": 128, "hidden_size": 160, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "global_head_dim": 64, "num_global_key_value_heads": 1, "num_experts": 6,
    "top_k_experts": 2, "moe_intermediate_size": 64, "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
}  # fmt: skip


def make() -> DiffusionGemma:
    """Return a model with experts in int4 and its other matrices in int8."""
    made = DiffusionGemma(random_weights.config_of("mini", **TEXT))
    begin(made, seed=0)
    for name, tensor in list(made.named_parameters()):
        if format_of(name, tensor.shape, "int4"):
            assign(made, name, FORMATS["int4" if is_expert(name) else "int8"].quantize(name, tensor.detach()))
    return made.requires_grad_(False)


@pytest.fixture
def model() -> DiffusionGemma:
    return make()


def hidden(backend: Backend, lengths: tuple[int, ...] = (1, 5, 30)) -> list[torch.Tensor]:
    """Return the hidden states of texts of these lengths, each followed by a canvas."""
    cache = backend.model.new_cache(len(lengths), 64)
    texts = [Piece(row, torch.arange(length) * 7 % 128, causal=True) for row, length in enumerate(lengths)]
    canvases = [Piece(row, torch.arange(9) * 11 % 128, causal=False) for row in range(len(lengths))]
    return backend.run([*texts, *canvases], cache)


def test_cpu_backend_is_chosen_and_matches_the_plain_model(model):
    plain, fast = TorchBackend(make()), backends.for_model(model)
    assert isinstance(fast, cpu.CpuBackend)
    for found, expected in zip(hidden(fast), hidden(plain), strict=True):
        error = (found - expected).norm() / expected.norm()
        assert 1e-6 < error < 0.03, "rows are rounded to 8 bits, and nothing else differs"
    logits = fast.logits(expected), plain.logits(expected)
    assert (logits[0] - logits[1]).norm() / logits[1].norm() < 0.02


def test_experts_match_the_plain_experts(model):
    plain = make().decoder.layers[0].experts
    cpu.use_kernels(model)
    fast = model.decoder.layers[0].experts
    assert isinstance(fast, PackedExperts)
    for tokens in (1, 3, 50):
        x_TH, weight_TK = torch.randn(tokens, 160), torch.rand(tokens, 2)
        index_TK = torch.rand(tokens, 6).topk(2).indices
        with torch.no_grad():
            found, expected = (each(x_TH, index_TK, weight_TK) for each in (fast, plain))
        assert 1e-6 < (found - expected).norm() / expected.norm() < 0.03


def test_a_piece_has_the_same_bits_in_any_batch(model):
    backend = cpu.CpuBackend(model)
    together = hidden(backend, (1, 5, 30))
    for row, length in enumerate((1, 5, 30)):
        text, canvas = hidden(backend, (length,))
        assert torch.equal(text, together[row]) and torch.equal(canvas, together[3 + row])


def test_training_does_not_use_the_kernels(model):
    expected = hidden_with_gradients(model)
    cpu.use_kernels(model)
    assert torch.equal(hidden_with_gradients(model), expected)
    prepare(model)
    assert not any(isinstance(module, PackedExperts) for module in model.modules())


def hidden_with_gradients(model: DiffusionGemma) -> torch.Tensor:
    with torch.enable_grad():
        return model.encode_segment(torch.arange(20), model.new_cache(1, 32), 0)


def test_adapters_can_be_attached_to_a_model_with_kernels(model):
    plain, backend = make(), cpu.CpuBackend(model)
    assert adaptable_weights(model).keys() == adaptable_weights(plain).keys()
    outputs = []
    for each in (TorchBackend(plain), backend):
        make_adaptable(each.model)
        torch.manual_seed(0)
        for site, weight in zip(
            adapter_sites(each.model).values(), adaptable_weights(each.model).values(), strict=True
        ):
            lora = Lora(weight, rank=2, alpha=2.0)
            torch.nn.init.normal_(lora.A, std=0.1)
            torch.nn.init.normal_(lora.B, std=0.1)
            site.put("style", lora)
        each.adapters_changed()
        piece = Piece(0, torch.arange(12), causal=True, adapter="style")
        outputs.append(each.run([piece], each.model.new_cache(1, 32))[0])
    assert adapters.attached(model) == ["style"]
    base = hidden(backend, (12,))[0]
    assert (outputs[1] - outputs[0]).norm() / outputs[0].norm() < 0.03 < (outputs[1] - base).norm() / base.norm()


def test_a_model_that_has_moved_does_not_use_pointers_to_its_old_weights(model):
    cpu.use_kernels(model)
    model.to(torch.float64)
    assert model.decoder.layers[0].mlp.up_proj.weight.product is None
    assert model.encode_segment(torch.arange(3), model.new_cache(1, 8), 0).dtype == torch.float64


def test_without_numba_or_packed_weights_the_plain_model_runs(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    cpu.is_installed.cache_clear()
    assert type(backends.for_model(model)) is TorchBackend
    monkeypatch.undo()
    cpu.is_installed.cache_clear()
    assert type(backends.for_model(model)) is cpu.CpuBackend
    assert type(backends.for_model(DiffusionGemma(random_weights.config_of("mini", **TEXT)))) is TorchBackend
