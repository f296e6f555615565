"""Quantized weights on a GPU: quantized on load, saved, loaded again, and multiplied by kernels."""

import pytest
import torch

import gesso
from gesso.backends.cuda import CudaBackend
from gesso.backends.torch import TorchBackend
from gesso.checkpoint.quantize import convert as command
from gesso.checkpoint.quantize.packed import Packed
from tests.backends.passes import denoise, encode
from tests.gpu.device import DEVICE

pytestmark = pytest.mark.gpu

BRIEF = {"canvas_length": 16, "steps": 4, "max_new_tokens": 32, "seed": 3}
FORMATS = ("fp8", "int4", "nvfp4")


def tensors_of(model):
    """Return every stored tensor of a model by name, packed or not."""
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            found |= {f"{name}/{key}": tensor for key, tensor in module.tensors.items()}
    return found


def assert_same_model(one, other):
    mine, theirs = tensors_of(one.model), tensors_of(other.model)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name].view(torch.uint8), theirs[name].view(torch.uint8)) for name in mine)
    texts = [g.generate("Hello", **BRIEF).tokens for g in (one, one, one, other)]
    assert texts[0] == texts[1] == texts[2] == texts[3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_unquantized_model_loads_bit_identical(packable_directory, tmp_path, dtype):
    g = gesso.load(packable_directory, device=DEVICE, dtype=dtype)
    g.save(tmp_path / "saved")
    assert_same_model(g, gesso.load(tmp_path / "saved", device=DEVICE, dtype=dtype))


@pytest.mark.parametrize("format", FORMATS)
def test_a_saved_quantized_model_loads_bit_identical(packable_directory, tmp_path, format):
    g = gesso.load(packable_directory, device=DEVICE, quantize=format)
    assert any(isinstance(module, Packed) for module in g.model.modules())
    g.save(tmp_path / "saved")
    again = gesso.load(tmp_path / "saved", device=DEVICE)
    assert again.config.quantization == format
    assert_same_model(g, again)


@pytest.mark.parametrize("format", ["fp8", "int4", "nvfp4"])
def test_gesso_quantize_equals_quantize_on_load(packable_directory, tmp_path, format):
    """Except for a few groups with two equally good scales: a GPU adds the errors in another order."""
    command.quantize(packable_directory, tmp_path / "written", format)
    written = tensors_of(gesso.load(tmp_path / "written", device=DEVICE).model)
    packed = tensors_of(gesso.load(packable_directory, device=DEVICE, quantize=format).model)
    assert written.keys() == packed.keys()
    for name in written:
        mine, theirs = (tensors[name].view(torch.uint8) for tensors in (written, packed))
        assert (mine != theirs).float().mean() < 1e-3, name


@pytest.mark.parametrize("format", [None, "fp8", "int4", "nvfp4"])
def test_same_seed_same_text_alone_and_in_a_batch(packable_directory, format):
    g = gesso.load(packable_directory, device=DEVICE, quantize=format)
    alone = [g.generate("Hello", **BRIEF | {"seed": seed}).tokens for seed in range(4)]
    requests = [g.request("Hello", **BRIEF | {"seed": seed}) for seed in range(4)]
    others = [g.request("x" * 40 * i, **BRIEF) for i in range(1, 4)]
    assert [result.tokens for result in g.run([*others, *requests])[3:]] == alone


@pytest.mark.parametrize("format", [None, "fp8", "int4", "nvfp4"])
def test_kernels_match_plain_operations(untrained_directory, record_property, format):
    model = gesso.load(untrained_directory, device=DEVICE, quantize=format).model
    ids_BS = (torch.arange(40, device=DEVICE) * 7 % 384).view(2, 20)

    def logits(backend):
        cache = model.new_cache(2, 64)
        encode(backend, ids_BS, cache)
        return denoise(backend, ids_BS, cache).float()

    found, expected = logits(CudaBackend(model)), logits(TorchBackend(model))
    error = float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).median())
    record_property("median", error)
    # With quantized matrices, kernels also round activations to FP8, unlike the plain version.
    assert error < (0.05 if format is None else 0.3)
