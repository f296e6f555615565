"""Compare the list of vision tensors with the tower that `transformers` builds and saves."""

import json
import random
import subprocess
import sys

import pytest

from gesso.checkpoint.parameters import is_vision
from gesso.checkpoint.vision import is_buffer, vision_tensors
from gesso.errors import CheckpointError
from gesso.model.config import Config

TEXT = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 16,
    "moe_intermediate_size": 8,
    "num_experts": 2,
    "top_k_experts": 1,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "global_head_dim": 16,
}
SMALL = {
    "model_type": "gemma4_vision",
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "position_embedding_size": 16,
}


def random_vision(seed: int) -> dict:
    """Return a random vision config in which some optional fields are left out."""
    draw = random.Random(seed)
    kv_heads = draw.choice([1, 2, 3])
    fields = {
        "hidden_size": draw.choice([16, 40, 72]),
        "intermediate_size": draw.choice([24, 56]),
        "num_hidden_layers": draw.choice([1, 2, 5]),
        "head_dim": draw.choice([4, 8, 12]),
        "patch_size": draw.choice([2, 4]),
        "position_embedding_size": draw.choice([6, 10]),
        "attention_bias": draw.choice([True, False]),
        "pooling_kernel_size": draw.choice([2, 3]),
    }
    kept = {name: value for name, value in fields.items() if draw.random() < 0.8}
    return kept | {
        "model_type": "gemma4_vision",
        "num_attention_heads": kv_heads * draw.choice([1, 2]),
        "num_key_value_heads": kv_heads,
        "standardize": bool(seed & 1),
        "use_clipped_linears": bool(seed & 2),
    }


def raw_config(**outer) -> dict:
    return {"model_type": "diffusion_gemma", "text_config": TEXT, **outer}


def reference_model(raw: dict, device: str):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.DiffusionGemmaConfig.from_dict(raw)
    with torch.device(device):
        return transformers.DiffusionGemmaForBlockDiffusion(config)


def reference_tensors(raw: dict) -> dict[str, tuple[int, ...]]:
    state = reference_model(raw, "meta").state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items() if "vision" in name}


@pytest.mark.parametrize("seed", range(12))
def test_vision_tensors_equal_reference_for_random_configs(seed):
    raw = raw_config(vision_config=random_vision(seed))
    assert vision_tensors(Config.from_dict(raw)) == reference_tensors(raw)


@pytest.mark.parametrize("outer", [{}, {"vision_config": None}, {"vision_config": {}}], ids=["absent", "null", "empty"])
def test_vision_tensors_without_vision_config_are_the_default(outer):
    raw = raw_config(**outer)
    assert vision_tensors(Config.from_dict(raw)) == reference_tensors(raw)


@pytest.mark.parametrize("extras", [False, True])
def test_vision_tensors_equal_a_saved_file(extras, tmp_path):
    safetensors = pytest.importorskip("safetensors")
    raw = raw_config(vision_config=SMALL | {"standardize": extras, "use_clipped_linears": extras})
    reference_model(raw, "cpu").save_pretrained(tmp_path)
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    config = Config.from_dict(json.loads((tmp_path / "config.json").read_text()))
    tensors = vision_tensors(config)
    assert {name: saved.get(name) for name in tensors} == tensors
    assert {name for name in saved if is_vision(name)} == set(tensors)
    assert any(not is_vision(name) for name in saved)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("clipped", [False, True])
def test_vision_buffers_are_not_parameters_of_the_reference(standardize, clipped):
    raw = raw_config(vision_config=SMALL | {"standardize": standardize, "use_clipped_linears": clipped})
    tensors = vision_tensors(Config.from_dict(raw))
    parameters = {name for name, _ in reference_model(raw, "meta").named_parameters() if "vision" in name}
    assert {name for name in tensors if not is_buffer(name)} == parameters
    assert bool(set(tensors) - parameters) == (standardize or clipped)


def test_text_tensors_are_not_vision_tensors():
    for name in ("model.decoder.embed_tokens.weight", "model.encoder.language_model.layers.0.layer_scalar",
                 "model.decoder.self_conditioning.pre_norm.weight", "lm_head.weight"):  # fmt: skip
        assert not is_vision(name)
        assert not is_buffer(name)


@pytest.mark.parametrize(
    ("vision", "named"),
    [({"head_dim": "72"}, "head_dim"), ({"patch_size": 0}, "patch_size"), ({"hidden_size": None}, "hidden_size"),
     ([1], "vision_config")],
)  # fmt: skip
def test_malformed_vision_config_is_rejected_by_field(vision, named):
    with pytest.raises(CheckpointError, match=named):
        vision_tensors(Config.from_dict(raw_config(vision_config=vision)))


def test_importing_vision_does_not_import_torch():
    subprocess.run(
        [sys.executable, "-c", "import sys, gesso.checkpoint.vision; assert 'torch' not in sys.modules"], check=True
    )
