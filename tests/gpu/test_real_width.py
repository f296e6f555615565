"""The kernels of every precision against plain operations, at the width of the 26B-A4B checkpoint."""

import pytest
import torch

from gesso.backends.cuda import CudaBackend
from gesso.backends.torch import TorchBackend
from gesso.checkpoint import huggingface
from gesso.checkpoint.quantize.formats import pack_all
from gesso.checkpoint.quantize.packed import Packed
from tests.gpu.device import DEVICE
from tests.gpu.real_width import errors, make_model, outputs

pytestmark = pytest.mark.gpu


def packed_model(format):
    model = make_model(torch.bfloat16)
    if format is not None:
        stored = [(name, tensor.detach()) for name, tensor in model.named_parameters()]
        for name, weight in pack_all(format, stored, DEVICE):
            if isinstance(weight, Packed):
                weight.dtype = torch.bfloat16
            huggingface.assign(model, name, weight)
    return model


@pytest.mark.parametrize("format", [None, "fp8", "int4", "nvfp4"])
def test_kernels_match_plain_operations(record_property, format):
    model = packed_model(format)
    apart = errors(outputs(CudaBackend(model)), outputs(TorchBackend(model)))
    record_property("median", float(apart.median()))
    record_property("quantile_90", float(apart.quantile(0.9)))
    # With FP8 matrices, kernels also round activations, unlike the plain version: an error of about an eighth over
    # three layers of random weights. A defect gives an error above one.
    assert apart.median() < (0.02 if format is None else 0.2)
