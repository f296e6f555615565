"""Configuration, generation settings and tokenizer files from the metadata of a GGUF file."""

import json

import numpy as np
import pytest

from gesso import bundled
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.companions import directory_of
from gesso.checkpoint.generation import GenerationDefaults
from gesso.checkpoint.gguf.companions import companions
from gesso.errors import CheckpointError
from tests.checkpoint.gguf import making

A = "diffusion-gemma."


def written(directory, changes=None, tensors=None):
    given = making.tensors(lambda name: "Q8_0") if tensors is None else tensors
    return making.write(directory / "model.gguf", given, changes)


def configured(path):
    files = companions(path)
    return making.config(json.loads(files["config.json"])), files


def save(directory, files):
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    return directory


# --- configuration ------------------------------------------------------------------------------------------------


def test_the_configuration_is_that_of_the_metadata(tmp_path):
    config, files = configured(written(tmp_path))
    assert json.loads(files["config.json"])["quantization_config"] == {"quant_method": "gguf"}
    assert (config.hidden_size, config.intermediate_size, config.moe_intermediate_size) == (256, 256, 64)
    assert (config.num_experts, config.top_k_experts, config.num_attention_heads) == (4, 2, 4)
    assert (config.vocab_size, config.canvas_length, config.sliding_window) == (384, 256, 128)
    assert (config.rms_norm_eps, config.final_logit_softcapping, config.max_position_embeddings) == (1e-6, 30.0, 8192)
    assert [(layer.sliding, layer.head_dim, layer.kv_heads) for layer in config.layers] == [
        (True, 16, 2),
        (False, 32, 1),
    ]
    sliding, full = (layer.rope for layer in config.layers)
    assert (sliding.theta, sliding.proportional) == (1e4, False)
    assert (full.theta, full.proportional, full.fraction) == (1e6, True, 0.25)
    assert config.eos_token_ids == (1, 106) and config.pad_token_id == 0


def test_settings_of_the_diffusion_and_end_tokens_become_generation_defaults(tmp_path):
    config, files = configured(written(tmp_path))
    defaults = GenerationDefaults.from_directory(save(tmp_path / "files", files), config)
    assert (defaults.diffusion.steps, defaults.diffusion.t_min, defaults.diffusion.entropy_bound) == (24, 0.4, 0.1)
    assert defaults.eos_token_ids == (1, 106, 50)


def test_end_tokens_of_another_vocabulary_are_not_added(tmp_path):
    other = json.loads(dict(making.METADATA)["tokenizer.huggingface.json"][1].replace("<turn|>", "<other>"))
    changes = {"tokenizer.huggingface.json": ("string", json.dumps(other))}
    config, files = configured(written(tmp_path, changes))
    assert config.eos_token_ids == (1,)
    assert json.loads(files["generation_config.json"])["eos_token_id"] == [1, 50]


def test_heads_may_be_one_number_or_differ_within_a_kind_of_layer(tmp_path):
    config, _ = configured(written(tmp_path, {A + "attention.head_count_kv": ("uint32", 2)}))
    assert [layer.kv_heads for layer in config.layers] == [2, 2]
    changes = {
        A + "block_count": ("uint32", 3),
        A + "attention.head_count_kv": ("array", [4, 2, 1]),
        A + "attention.sliding_window_pattern": ("array", [True, True, False]),
    }
    config, _ = configured(written(tmp_path, changes))
    assert [(layer.head_dim, layer.kv_heads) for layer in config.layers] == [(16, 4), (16, 2), (32, 1)]


WRONG = {
    "another architecture": ({"general.architecture": ("string", "gemma4")}, "general.architecture is 'gemma4'"),
    "no canvas": ({"diffusion.canvas_length": None}, "diffusion.canvas_length must be an integer"),
    "no layers": ({A + "block_count": ("uint32", 0)}, "block_count must be an integer from 1"),
    "layers as text": ({A + "block_count": ("string", "2")}, "block_count must be an integer"),
    "widths per layer": ({A + "feed_forward_length": ("array", [256, 256])}, "feed_forward_length must be an integer"),
    "no epsilon": ({A + "attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon must be a number"),
    "a short pattern": ({A + "attention.sliding_window_pattern": ("array", [True])}, "one flag for each of 2 layers"),
    "a pattern of numbers": ({A + "attention.sliding_window_pattern": ("uint32", 6)}, "one flag for each of 2 layers"),
    "a window at the end": ({A + "attention.sliding_window_pattern": ("array", [True, True])}, "last layer"),
    "heads of three layers": ({A + "attention.head_count_kv": ("array", [1, 1, 1])}, "one number, or one per layer"),
    "another head for values": ({A + "attention.value_length": ("uint32", 16)}, "attention.value_length is 16"),
    "part of a head rotated": ({A + "rope.dimension_count_swa": ("uint32", 8)}, "rope.dimension_count_swa is 8"),
    "shared layers": ({A + "attention.shared_kv_layers": ("uint32", 4)}, "num_kv_shared_layers is 4"),
    "shared layers as text": (
        {A + "attention.shared_kv_layers": ("string", "4")},
        "shared_kv_layers must be an integer",
    ),
    "steps as text": ({"diffusion.eb_max_steps": ("string", "many")}, "diffusion.eb_max_steps must be a number"),
    "an end token as text": ({"tokenizer.ggml.eos_token_id": ("string", "1")}, "eos_token_id must be an integer"),
    "no tokenizer": ({"tokenizer.huggingface.json": None}, "put the tokenizer.json of the original checkpoint into"),
    "a damaged tokenizer": ({"tokenizer.huggingface.json": ("string", "{")}, "cannot be read as a tokenizer"),
    "a tokenizer of a list": ({"tokenizer.huggingface.json": ("string", "[]")}, "cannot be read as a tokenizer"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_metadata_is_rejected_by_its_key(tmp_path, case):
    changes, message = WRONG[case]
    with pytest.raises(CheckpointError, match=message):
        configured(written(tmp_path, changes))


@pytest.mark.parametrize("factors", [[1] * 4 + [2] * 12, [1e30] * 16, [1e30] * 4 + [1] * 12, [1] * 8, None])
def test_other_rotary_factors_are_rejected(tmp_path, factors):
    given = making.tensors(lambda name: "Q8_0")
    given.pop("rope_freqs.weight")
    if factors:
        given["rope_freqs.weight"] = (np.array(factors, np.float32), "F32")
    with pytest.raises(CheckpointError, match=r"tensor rope_freqs\.weight"):
        companions(written(tmp_path, tensors=given))


# --- tokenizer ----------------------------------------------------------------------------------------------------


def ggml(data, template=None):
    """Return metadata as the converter stores this tokenizer."""
    vocabulary = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    special = {one["content"] for one in data["added_tokens"]}
    printed = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'}
    types = [4 if t in printed else 3 if t in special else 6 if t.startswith("<0x") else 1 for t in vocabulary]
    found = {
        "tokenizer.huggingface.json": None,
        "tokenizer.ggml.model": ("string", "gemma4"),
        "tokenizer.ggml.tokens": ("array", vocabulary),
        "tokenizer.ggml.token_type": ("array", types),
        "tokenizer.ggml.merges": ("array", [" ".join(pair) for pair in data["model"]["merges"]]),
        "tokenizer.ggml.unknown_token_id": ("uint32", 3),
    }
    return found | ({"tokenizer.chat_template": ("string", template)} if template else {})


@pytest.fixture(scope="module")
def learnt():
    return making.gemma_tokenizer()


def test_a_rebuilt_tokenizer_encodes_and_decodes_as_the_original(tmp_path, learnt):
    files = companions(written(tmp_path, ggml(learnt, "{{ messages }}")))
    rebuilt = Tokenizer.from_directory(save(tmp_path / "rebuilt", files))
    original = Tokenizer.from_directory(save(tmp_path / "original", {"tokenizer.json": json.dumps(learnt)}))
    for text in making.TEXTS:
        ids = original.encode(text, bos=False)
        assert rebuilt.encode(text, bos=False) == ids, text
        assert rebuilt.decode(ids, special=True) == original.decode(ids, special=True)
        assert rebuilt.decode(ids) == original.decode(ids), text
    assert rebuilt.special_ids == original.special_ids and rebuilt.vocab_size == original.vocab_size
    assert (rebuilt.bos_id, rebuilt.eos_id, rebuilt.pad_id) == (2, 1, 0)
    assert files["chat_template.jinja"] == "{{ messages }}"
    assert json.loads(files["tokenizer_config.json"])["unk_token"] == "<unk>"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"tokenizer.ggml.model": ("string", "llama")}, "tokenizer.ggml.model is 'llama'"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokenizer.ggml.token_type": ("array", [1, 1])}, "token_type does not have a type for each"),
        ({"tokenizer.ggml.tokens": ("array", ["a", "a"]), "tokenizer.ggml.token_type": ("array", [1, 1])}, "same name"),
        ({"tokenizer.ggml.merges": ("array", ["t h", "xyzzy q"])}, "has 'xyzzy q', which is not a pair of tokens"),
        ({"tokenizer.ggml.merges": ("array", ["t h e"])}, "has 't h e', which is not a pair of tokens"),
    ],
)
def test_an_incomplete_tokenizer_is_rejected_with_the_file_to_add(tmp_path, learnt, changes, message):
    with pytest.raises(CheckpointError, match=message) as error:
        companions(written(tmp_path, ggml(learnt) | changes))
    assert f"put the tokenizer.json of the original checkpoint into {tmp_path}" in str(error.value)


def test_files_beside_a_gguf_file_take_precedence(tmp_path):
    path = written(tmp_path, {"tokenizer.huggingface.json": None})
    source = bundled.directory()
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    config, files = configured(path)
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert files[name] == (source / name).read_text(encoding="utf-8")
    assert config.eos_token_ids == (1, 106)


def test_files_beside_a_link_to_a_gguf_file_count(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = written(tmp_path)
    templates = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.gguf").symlink_to(path)
        (tmp_path / name / "chat_template.jinja").write_text(name)
        templates.add((directory_of(tmp_path / name / "model.gguf") / "chat_template.jinja").read_text())
    assert templates == {"one", "two"}
    assert directory_of(path) == directory_of(path), "unpacked once"
