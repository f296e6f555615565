"""Parts of training at the shape of the 26B: grouped experts, and kernels that unpack them."""

import pytest
import torch

from gesso.adapters.lora import AdaptedExperts, Lora
from gesso.backends.cuda.kernels.widen import widened
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.model.experts import Experts, route
from gesso.train.experts import GroupedExperts
from tests.gpu.device import DEVICE, DRY_RUN
from tests.gpu.real_width import make_model

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("format", ["fp8", "int4", "uint4", "nvfp4"])
def test_kernels_unpack_experts_as_the_formats_do(format):
    torch.manual_seed(0)
    experts, outputs, inputs = (128, 1408, 2816) if not DRY_RUN else (2, 8, 64)
    packed = FORMATS[format].quantize("experts", torch.randn(experts, outputs, inputs, device=DEVICE))
    found = widened(packed.tensors, format, torch.bfloat16)
    for one, expected in zip(found, packed.unbind(), strict=True):
        rounding = 2**-7 if DRY_RUN or format == "nvfp4" else 0  # NVFP4 divides, which a GPU rounds differently
        torch.testing.assert_close(one, expected.dense(torch.bfloat16), rtol=rounding, atol=0)


@pytest.mark.parametrize("format", [None, "fp8", "int4"])
def test_grouped_experts_equal_plain_ones_in_bfloat16(format):
    layer = make_model(torch.bfloat16).decoder.layers[0]
    base = layer.experts
    assert isinstance(base, Experts)
    count, hidden = len(base.gate_up_proj), base.gate_up_proj.shape[-1]
    for name in ("gate_up_proj", "down_proj"):
        weight = getattr(base, name).detach()
        if format:
            packed = FORMATS[format].quantize(name, weight)
            packed.dtype = torch.bfloat16
            delattr(base, name)
            setattr(base, name, packed)
    plain = AdaptedExperts(base)
    for name in ("gate_up_proj", "down_proj"):
        lora = Lora(getattr(base, name), 16, 32.0)
        for factor in (lora.A, lora.B):
            torch.nn.init.normal_(factor, std=0.02)
        getattr(plain, f"{name}_adapters").put("x", lora)
        getattr(plain, f"{name}_adapters").active = "x"
    x = torch.randn(300, hidden, device=DEVICE, dtype=torch.bfloat16)
    index, weight = route(torch.randn(300, count, device=DEVICE), torch.ones(count, device=DEVICE), layer.router.k)

    def results(module):
        module.zero_grad()
        tokens = x.clone().requires_grad_()
        y = module(tokens, index, weight)
        (y.float() * torch.sin(torch.arange(y.numel(), device=DEVICE)).view_as(y)).sum().backward()
        return [y, tokens.grad, *(p.grad for p in module.parameters() if p.requires_grad)]

    plain.requires_grad_(False)
    for adapters in (plain.gate_up_proj_adapters, plain.down_proj_adapters):
        adapters.requires_grad_(True)
    for found, expected in zip(results(GroupedExperts(plain)), [t.clone() for t in results(plain)], strict=True):
        error = (found.float() - expected.float()).norm() / expected.float().norm()
        assert error < 0.02
