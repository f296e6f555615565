"""Checkpoints of NVIDIA's ModelOpt are read as the library itself dequantizes them.

The fixtures and their digests are made by the library: `fixtures/make_modelopt.py`.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gesso.checkpoint import modelopt
from gesso.checkpoint.load import load
from gesso.checkpoint.parameters import parameters
from gesso.checkpoint.source import open_source
from gesso.checkpoint.write import save
from gesso.errors import CheckpointError, InputError
from gesso.model.config import Config
from tests.checkpoint.fixtures.source import digest
from tests.checkpoint.reading import dense, inventory, linears, logits, model_of, weights

FIXTURES = Path(__file__).parent / "fixtures"
EXPERT = "model.decoder.layers.1.experts.1.up_proj."


def read(directory, **settings):
    raw = json.loads((directory / "config.json").read_text())
    raw["quantization_config"] |= settings
    config, found = Config.from_dict(raw), inventory(directory)
    return config, modelopt.recipes(config, found), found.report()


@pytest.fixture(params=["modelopt-nvfp4", "modelopt-fp8"])
def fixture(request):
    return FIXTURES / request.param


def test_weights_equal_the_dequantized_weights_of_the_library(fixture):
    config, recipes, problems = read(fixture)
    assert problems == []
    assert recipes.keys() == parameters(config).keys()
    found = {}
    for name, weight in weights(recipes).items():
        assert tuple(weight.shape) == recipes[name].shape == parameters(config)[name]
        found |= {linear: digest(values) for linear, values in linears(name, dense(weight)).items()}
    assert found == json.loads((fixture / "digests.json").read_text())


def test_logits_equal_those_of_the_unpacked_weights(fixture):
    config, recipes, _ = read(fixture)
    found = weights(recipes)
    plain = {name: dense(weight) for name, weight in found.items()}
    expected = logits(model_of(config, plain))
    assert torch.equal(logits(model_of(config, found)), expected)
    assert torch.equal(logits(load(open_source(fixture), torch.device("cpu"), torch.float32)), expected)


def test_a_model_with_these_formats_cannot_be_saved(fixture, tmp_path):
    model = load(open_source(fixture), torch.device("cpu"), torch.float32)
    with pytest.raises(InputError, match="modelopt; load the checkpoint"):
        save(model, tmp_path / "saved", source=fixture)
    assert not (tmp_path / "saved").exists()


def test_unpacking_while_loading_gives_the_same_logits(fixture):
    source = open_source(fixture)
    packed, dense = (load(source, torch.device("cpu"), torch.float32, unpack=each) for each in (False, True))
    assert torch.equal(logits(packed), logits(dense))
    assert not list(dense.buffers()) and list(packed.buffers())


def test_experts_become_nvfp4_with_the_stated_error():
    _, recipes, _ = read(FIXTURES / "modelopt-nvfp4")
    experts = {name: recipe for name, recipe in recipes.items() if len(recipe.shape) == 3}
    for name, weight in weights(experts).items():
        native, exact = recipes[name].repack(weight), dense(weight)
        assert native.format == recipes[name].native == "nvfp4"
        assert native.weight_global_scale.shape == (2, 2 if "gate_up" in name else 1)
        assert ((dense(native) - exact).abs() <= exact.abs() * 2**-21).all()


def test_a_matrix_of_zeros_has_finite_scales(tmp_path):
    directory = copied("modelopt-nvfp4", tmp_path, lambda t: t.update({f"{EXPERT}weight_scale_2": torch.zeros(())}))
    _, recipes, _ = read(directory)
    name = "model.decoder.layers.1.experts.gate_up_proj"
    native = recipes[name].repack(weights({name: recipes[name]})[name])
    assert native.weight_global_scale.isfinite().all()
    assert (dense(native)[1, 32:].abs() < 1e-30).all()


def test_fp8_is_a_format_of_the_kernels():
    _, recipes, _ = read(FIXTURES / "modelopt-fp8")
    quantized = {name for name, recipe in recipes.items() if recipe.format == "fp8"}
    assert {name for name in quantized if recipes[name].native != "fp8" or recipes[name].repack} == set()
    assert "model.decoder.layers.0.experts.gate_up_proj" in quantized


@pytest.mark.parametrize("shape", [(32,), (32, 1)])
def test_one_fp8_scale_per_row_is_read(tmp_path, shape):
    name, scale = f"{EXPERT}weight", torch.rand(32)
    directory = copied("modelopt-fp8", tmp_path, lambda t: t.update({f"{name}_scale": scale.reshape(shape)}))
    _, recipes, problems = read(directory, quant_algo="FP8_PER_CHANNEL_PER_TOKEN")
    assert problems == []
    parameter = "model.decoder.layers.1.experts.gate_up_proj"
    found = dense(weights({parameter: recipes[parameter]})[parameter])[1, 32:]
    assert torch.equal(found, load_file(directory / "model.safetensors")[name].float() * scale[:, None])


def copied(fixture, tmp_path, act):
    """Copy a fixture and change its tensors."""
    shutil.copytree(FIXTURES / fixture, tmp_path / "copy")
    tensors = load_file(tmp_path / "copy" / "model.safetensors")
    act(tensors)
    save_file(tensors, tmp_path / "copy" / "model.safetensors")
    return tmp_path / "copy"


@pytest.mark.parametrize("key", ["weight", "weight_scale", "weight_scale_2"])
def test_missing_and_wrong_tensors_are_named(tmp_path, key):
    name = EXPERT + key
    _, _, problems = read(copied("modelopt-nvfp4", tmp_path, lambda tensors: tensors.pop(name)))
    assert problems == [f"missing tensors: {name}"]
    wrong = torch.zeros(3, 3, dtype=torch.int16)
    _, _, problems = read(copied("modelopt-nvfp4", tmp_path / "wrong", lambda t: t.update({name: wrong})))
    assert all(f"tensor {name} " in problem for problem in problems)
    assert problems


def test_a_surplus_tensor_is_named(tmp_path):
    name = f"{EXPERT}pre_quant_scale"  # of AWQ: without it, the weights would be wrong
    _, _, problems = read(copied("modelopt-nvfp4", tmp_path, lambda t: t.update({name: torch.ones(64)})))
    assert problems == [f"surplus tensors that this configuration does not have: {name}"]


def test_a_configuration_that_contradicts_the_tensors_is_rejected(fixture):
    other = "FP8" if "nvfp4" in fixture.name else "NVFP4"
    _, _, problems = read(fixture, quant_algo=other)
    assert problems[0].startswith("tensor model.decoder.layers.0.")
    assert f"quant_algo of the config is {other}" in problems[0]
    assert read(fixture, quant_algo="MIXED_PRECISION")[2] == []
    for unknown in ("NVFP4_AWQ", None, ["FP8"]):
        with pytest.raises(CheckpointError, match="quant_algo"):
            read(fixture, quant_algo=unknown)
