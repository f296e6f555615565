"""The model itself on kernels: the same logits as on plain operations, whatever its weights are kept in."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gesso.checkpoint import huggingface as checkpoint
from gesso.checkpoint import random_weights as untrained
from gesso.checkpoint.quantize.formats import pack_all
from gesso.model.config import Config
from gesso.model.init import begin
from gesso.model.transformer import DiffusionGemma
from gesso.ops import fast

pytest.importorskip("triton")

# Many experts, so that they are sorted; widths that the steps of the four-bit kernels go into.
TEXT = {
    "vocab_size": 128, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "global_head_dim": 64, "num_global_key_value_heads": 1, "num_experts": 6,
    "top_k_experts": 2, "moe_intermediate_size": 64, "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def config():
    return untrained.config_of("mini", **TEXT)


def make(config: Config, kept_in: str | None) -> DiffusionGemma:
    model = DiffusionGemma(config)
    begin(model, seed=0)
    if kept_in is not None:
        stored = [(name, tensor.detach()) for name, tensor in model.named_parameters() if name.startswith("decoder")]
        for name, packed in pack_all(kept_in, stored, torch.device("cpu")):
            checkpoint.assign(model, name, packed)
    return model


@torch.no_grad()
def logits(model: DiffusionGemma) -> torch.Tensor:
    ids_BS = torch.arange(10).view(2, 5) * 12
    cache = model.new_cache(2, 64)
    model.encode(ids_BS, cache)
    canvas_BC = torch.arange(6).view(2, 3) * 7
    return model.denoise(canvas_BC, cache, previous_logits=torch.arange(2 * 3 * 128).view(2, 3, 128).sin() * 5)


@pytest.mark.parametrize("kept_in", [None, "fp8", "int4"])  # nvfp4 goes the way of int4
def test_a_model_on_kernels_says_what_it_says_on_plain_operations(monkeypatch, config, kept_in):
    model = make(config, kept_in)
    expected = logits(model)
    ran = []
    monkeypatch.setattr(fast, "kernels", lambda x: True)
    load = fast.load
    monkeypatch.setattr(fast, "load", lambda name: ran.append(name) or load(name))
    found = logits(model)
    assert {"rows", "products", "attention"} <= set(ran)
    error = (found - expected).norm() / expected.norm()
    # For FP8 matrices the tokens are rounded too, which the plain version leaves as they are (and the interpreter
    # rounds badly). At four bits only the experts are not FP8.
    assert error < (1e-4 if kept_in is None else 0.3)
    assert (error > 1e-3) == (kept_in is not None)


def test_kernels_keep_out_of_the_passes_of_a_trainer():
    """Those it learns from, and under autocast those it does not: weights are in float32 there, and tokens are not."""
    x: Any = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16)
    assert not fast.kernels(x)
    with torch.no_grad():
        assert fast.kernels(x)
        torch.set_autocast_enabled("cuda", True)
        try:
            assert not fast.kernels(x)
        finally:
            torch.set_autocast_enabled("cuda", False)
