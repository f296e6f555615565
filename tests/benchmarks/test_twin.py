"""The GGUF file that llama.cpp is measured with."""

import sys

import gguf
import pytest

from benchmarks import llama_cpp, peers
from benchmarks.twin import write_twin
from gesso.checkpoint.random_weights import config_of
from gesso.errors import InputError

SMALL = {
    "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "hidden_size": 64,
    "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 8, "top_k_experts": 2, "vocab_size": 128,
    "num_attention_heads": 2, "num_key_value_heads": 2, "num_global_key_value_heads": 1, "head_dim": 32,
    "global_head_dim": 64,
}  # fmt: skip


@pytest.fixture
def config():
    return config_of("26b-a4b", **SMALL)


def test_twin_has_every_tensor_of_the_layers_in_four_bits(tmp_path, config):
    write_twin(tmp_path / "twin.gguf", config)
    file = gguf.GGUFReader(tmp_path / "twin.gguf")
    assert file.get_field("general.architecture").contents() == "gemma4"
    assert file.get_field("gemma4.expert_used_count").contents() == 2
    assert file.get_field("gemma4.vocab_size").contents() == 128
    types = {tensor.name: tensor.tensor_type.name for tensor in file.tensors}
    assert (
        types["token_embd.weight"] == types["blk.1.ffn_gate_up_exps.weight"] == types["blk.0.attn_q.weight"] == "Q4_0"
    )
    assert types["blk.0.ffn_gate_inp.weight"] == types["output_norm.weight"] == types["rope_freqs.weight"] == "F32"
    assert not any("self_cond" in name or "enc_" in name for name in types)
    experts = next(tensor for tensor in file.tensors if tensor.name == "blk.1.ffn_down_exps.weight")
    assert tuple(experts.shape) == (32, 64, 8)


def test_cut_keeps_the_last_layers(config):
    cut = peers._cut(config, 1)
    assert [layer.sliding for layer in cut.layers] == [False]
    assert cut.raw["text_config"]["layer_types"] == ["full_attention"]


def test_missing_llama_cpp_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(InputError, match="pip install llama-cpp-python"):
        llama_cpp.check_installed()
