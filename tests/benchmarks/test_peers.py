"""Other software beside a model of ours, at small sizes."""

import pytest

from benchmarks import peers
from gesso.checkpoint import random_weights
from gesso.errors import InputError
from tests.bench.tiny_shape import TINY


def test_some_layers_of_transformers_stand_for_a_large_model_on_a_cpu(capsys, any_model_is_large, monkeypatch):
    monkeypatch.setitem(random_weights.SHAPES, "26b-a4b", TINY | {"moe_intermediate_size": 32})
    monkeypatch.setattr(peers, "CUTS", (1, 2))  # of the two layers of this model
    small = ("-m", "random:26b-a4b", "--quantize", "int4", "--device", "cpu", "--prompt", "9", "--new", "5")
    peers.main(["transformers", *small])
    shown = " ".join(capsys.readouterr().out.split())
    assert "extrapolated from 1 and 2 of 2 layers" in shown and "times as fast" in shown


def test_transformers_is_measured_at_the_shape_of_a_small_model(monkeypatch):
    monkeypatch.setitem(random_weights.SHAPES, "mini", TINY)
    ours = {"prompt": 9, "batches": [{"ms_per_step": 1.0}]}
    found = peers.measure("transformers", "random:mini", ours, "cpu", None)
    assert found["times_the_peer"] == pytest.approx(found["peer_ms_per_step"]) and found["peer_ms_per_step"] > 0


def test_llama_cpp_is_for_large_models():
    with pytest.raises(InputError, match="large models on a CPU"):
        peers.measure("llama.cpp", "random:mini", {"batches": []}, "cpu", None)
