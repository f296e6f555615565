"""Norm, GELU and rotation take fewer operations on a CPU than torch's own functions, with the same results."""

import pytest
import torch
import torch.nn.functional as F

from gesso.model.modules import gated_gelu, rms_norm
from gesso.model.rope import rotate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_matches_torch(dtype, weighted):
    x = (torch.randn(9, 3, 40) * torch.logspace(-4, 4, 9)[:, None, None]).to(dtype)
    x[0] = 0
    weight = torch.randn(40).to(dtype) if weighted else None
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), F.rms_norm(x, (40,), weight, 1e-6))


def test_rms_norm_has_the_gradient_of_torch_for_zeros_too():
    x = torch.randn(5, 40)
    x[2] = 0
    weight = torch.randn(40)
    gradients = []
    for norm in (lambda x: rms_norm(x, weight, 1e-6), lambda x: F.rms_norm(x, (40,), weight, 1e-6)):
        leaf = x.clone().requires_grad_()
        norm(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)


def test_gated_gelu_is_the_same_with_and_without_gradients():
    gate, up = (torch.randn(6, 4, 88) * 8).chunk(2, -1)  # with gaps between rows, as the gates of experts
    before = gate.clone(), up.clone()
    with torch.no_grad():
        found = gated_gelu(gate, up)
    torch.testing.assert_close(found, gated_gelu(gate, up))
    torch.testing.assert_close(found, F.gelu(gate, approximate="tanh") * up)
    assert torch.equal(gate, before[0]) and torch.equal(up, before[1]), "inputs must not change"


def test_rotation_turns_pairs_by_their_angle():
    x_TND, angles_T1F = torch.randn(7, 3, 16, dtype=torch.float64), torch.rand(7, 1, 8, dtype=torch.float64)
    turn_T1F = torch.polar(torch.ones_like(angles_T1F), angles_T1F)
    turned = torch.view_as_complex(torch.stack(x_TND.chunk(2, -1), -1)) * turn_T1F
    expected_TND = torch.cat([turned.real, turned.imag], -1)
    cos_T1D, sin_T1D = (torch.cat([part, part], -1) for part in (angles_T1F.cos(), angles_T1F.sin()))
    torch.testing.assert_close(rotate(x_TND, cos_T1D, sin_T1D), expected_TND)
    single = rotate(x_TND.float(), cos_T1D.float(), sin_T1D.float())
    torch.testing.assert_close(single, expected_TND.float())
