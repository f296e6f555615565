"""Checkpoints in the layouts of other tools on a GPU: repacked weights are within bounds, and the model writes."""

import math

import pytest
import torch

import gesso
from gesso.checkpoint.load import load
from gesso.checkpoint.parameters import checkpoint_name
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.source import open_source
from tests.gpu.device import DEVICE, DRY_RUN, DTYPE
from tools.full_size import layouts

pytestmark = pytest.mark.gpu

# Relative error, by root mean square, of a format of the kernels against the stored values.
BOUNDS = {"fp8": 0.03, "int4": 2**-8, "uint4": 2**-8, "nvfp4": 1e-5, "BF16": 2**-8, "F32": 2**-8}


@pytest.fixture(scope="module", params=["compressed-tensors", "modelopt", "mlx", "gguf"])
def checkpoint(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / ("model.gguf" if request.param == "gguf" else request.param)
    layouts.write(request.param, path, layouts.shape_config(**layouts.SMALL))
    return path


def dense(weight):
    return weight.dense(torch.float32).cpu() if isinstance(weight, Packed) else weight.float().cpu()


def weights(model):
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return found | {name: module for name, module in model.named_modules() if isinstance(module, Packed)}


def test_repacked_weights_are_within_the_bounds_of_their_format(checkpoint):
    source = open_source(checkpoint)
    stored = weights(load(source, torch.device("cpu"), torch.float32))
    native = weights(load(source, DEVICE, getattr(torch, DTYPE)))
    assert stored.keys() == native.keys()
    for name, weight in native.items():
        recipe = source.recipes[checkpoint_name(name)]
        if not DRY_RUN:
            assert (weight.format if isinstance(weight, Packed) else None) == (
                recipe.native if recipe.native in ("fp8", "int4", "uint4", "nvfp4") else None
            ), name
        exact = dense(stored[name])
        error = (dense(weight) - exact).square().sum() / exact.square().sum()
        assert math.sqrt(error) <= BOUNDS[recipe.native], name


def test_model_writes_the_same_text_twice(checkpoint):
    texts = []
    for _ in range(2):
        g = gesso.load(checkpoint, device=str(DEVICE), dtype=DTYPE)
        texts.append(g.generate("def f(x):", max_new_tokens=64, steps=4, seed=3).tokens)
    assert texts[0] == texts[1] and texts[0]
