"""Checkpoints of MLX are read as the library itself dequantizes them.

The fixtures and their digests are made by mlx-vlm: `fixtures/make_mlx.py`.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gesso.checkpoint import mlx
from gesso.checkpoint.load import load
from gesso.checkpoint.parameters import parameters
from gesso.checkpoint.source import open_source
from gesso.errors import CheckpointError
from gesso.model.config import Config
from tests.checkpoint.fixtures.source import digest
from tests.checkpoint.reading import dense, inventory, logits, model_of, weights

FIXTURES = Path(__file__).parent / "fixtures"
UP = "model.decoder.layers.0.experts.gate_up_proj"


def read(directory, change=None):
    raw = json.loads((directory / "config.json").read_text())
    if change:
        change(raw["quantization"])
    config, found = Config.from_dict(raw), inventory(directory)
    return config, mlx.recipes(config, found), found.report()


@pytest.fixture(params=["mlx-4bit", "mlx-modes"])
def fixture(request):
    return FIXTURES / request.param


def test_weights_equal_the_dequantized_weights_of_the_library(fixture):
    config, recipes, problems = read(fixture)
    assert problems == []
    assert recipes.keys() == parameters(config).keys()
    found = {}
    for name, weight in weights(recipes).items():
        assert tuple(weight.shape) == recipes[name].shape == parameters(config)[name]
        found[f"{name}.weight" if len(weight.shape) == 3 else name] = digest(dense(weight))
    assert found == json.loads((fixture / "digests.json").read_text())


def test_logits_equal_those_of_the_unpacked_weights(fixture):
    config, recipes, _ = read(fixture)
    found = weights(recipes)
    plain = {name: dense(weight) for name, weight in found.items()}
    expected = logits(model_of(config, plain))
    assert torch.equal(logits(model_of(config, found)), expected)
    assert torch.equal(logits(load(open_source(fixture), torch.device("cpu"), torch.float32)), expected)


def test_fixtures_have_every_mode():
    formats = {recipe.format for name in ("mlx-4bit", "mlx-modes") for recipe in read(FIXTURES / name)[1].values()}
    assert formats >= {"mlx-2bit-g128", "mlx-3bit-g32", "mlx-4bit-g64", "mlx-5bit-g64", "mlx-6bit-g128", "mlx-8bit-g32",
                       "mlx-8bit-g64", "mlx-mxfp4", "mlx-mxfp8", "mlx-nvfp4", "nvfp4", "BF16"}  # fmt: skip


def test_formats_of_the_kernels_and_their_errors(fixture):
    """Experts with affine codes of four bits or fewer, mxfp4 and nvfp4 are exact; the rest has the error of FP8."""
    _, recipes, _ = read(fixture)
    for name, weight in weights(recipes).items():
        recipe, experts = recipes[name], len(recipes[name].shape) == 3
        if recipe.repack is None:
            assert recipe.native == recipe.format
            continue
        native, exact = recipe.repack(weight), dense(weight)
        error = (dense(native) - exact).abs()
        if ".router." in name:
            assert (recipe.native, error.max()) == ("BF16", 0)
            continue
        assert native.format == recipe.native
        if recipe.format in ("mlx-mxfp4", "mlx-mxfp8"):
            assert recipe.native == ("nvfp4" if experts and recipe.format == "mlx-mxfp4" else "fp8")
            small = exact.abs().amax(-1, keepdim=True) * 2**-17
            assert (error <= (small if recipe.format == "mlx-mxfp8" else 0)).all()
        elif experts and recipe.format in ("mlx-3bit-g32", "mlx-4bit-g64"):
            assert (recipe.native, error.max()) == ("uint4", 0)
        else:
            assert recipe.native == "fp8"
            assert (error <= exact.abs() / 16 + exact.abs().amax(-1, keepdim=True) / 448 * 2**-10).all()


def test_rows_of_every_mode_can_be_looked_up(fixture):
    """A table of embeddings is used by rows and by blocks of rows."""
    found = weights(read(fixture)[1])
    index = torch.tensor([5, 0, 63])
    for weight in (weight for weight in found.values() if hasattr(weight, "rows") and len(weight.shape) == 2):
        if len(weight) > 63:
            assert torch.equal(weight.rows(index), weight.dense()[index])
            assert torch.equal(torch.cat([part.dense() for part in weight.split(50)]), weight.dense())


# --- damage -------------------------------------------------------------------------------------------------------


def copied(fixture, tmp_path, act):
    """Copy a fixture and change its tensors."""
    shutil.copytree(FIXTURES / fixture, tmp_path / "copy")
    tensors = load_file(tmp_path / "copy" / "model.safetensors")
    act(tensors)
    save_file(tensors, tmp_path / "copy" / "model.safetensors")
    return tmp_path / "copy"


@pytest.mark.parametrize("module", [UP, "model.decoder.embed_tokens", "model.decoder.layers.1.router.proj"])
@pytest.mark.parametrize("key", ["weight", "scales", "biases"])
def test_missing_and_wrong_tensors_are_named(tmp_path, module, key):
    name = f"{module}.{key}"
    _, _, problems = read(copied("mlx-4bit", tmp_path, lambda tensors: tensors.pop(name)))
    assert problems == [f"missing tensors: {name}"]
    for i, change in enumerate(
        (lambda t: t[..., 1:].contiguous(), lambda t: t[1:].clone(), lambda t: t.to(torch.int16))
    ):
        _, _, problems = read(copied("mlx-4bit", tmp_path / str(i), lambda t, c=change: t.update({name: c(t[name])})))
        assert len(problems) == 1
        assert module in problems[0]


def test_a_surplus_tensor_is_named(tmp_path):
    name = f"{UP}.bias"
    _, _, problems = read(copied("mlx-4bit", tmp_path, lambda tensors: tensors.update({name: torch.ones(2)})))
    assert problems == [f"surplus tensors that this configuration does not have: {name}"]


@pytest.mark.parametrize(
    "change",
    [
        lambda given: given.update(bits=8),
        lambda given: given.update(group_size=32),
        lambda given: given.update(mode="mxfp4"),
        lambda given: given.update({UP: False}),
        lambda given: given.update({UP: {"group_size": 64, "bits": 2}}),
    ],
)
def test_a_configuration_that_contradicts_the_tensors_is_rejected(change):
    _, _, problems = read(FIXTURES / "mlx-4bit", change)
    assert problems[0].startswith(f"tensor {UP}.weight is affine, 4 bits, groups of 64, but the config says")


@pytest.mark.parametrize(("module", "code"), [(UP, 255), ("model.decoder.layers.0.mlp.down_proj", 127)])
def test_a_scale_that_is_no_number_is_named(tmp_path, module, code):
    def poison(tensors):
        tensors[f"{module}.scales"].view(-1)[3] = code

    _, recipes, _ = read(copied("mlx-modes", tmp_path, poison))
    with pytest.raises(CheckpointError, match=f"tensor {module}.scales contains NaN"):
        weights(recipes)
