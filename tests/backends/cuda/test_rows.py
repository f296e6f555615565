"""Row kernels against plain operations, on small shapes: in Triton's interpreter, or on a GPU."""

import pytest
import torch

from gesso.model.experts import route
from gesso.model.modules import rms_norm
from gesso.model.rope import inverse_frequencies, rotation

kernel = pytest.importorskip("gesso.backends.cuda.kernels.rows")
from gesso.backends.cuda import reference  # noqa: E402
from gesso.backends.cuda.activations import ExpertOutputs, Interleaved, NextNorm, SplitK  # noqa: E402
from gesso.backends.cuda.kernels.experts_four_bit import depth  # noqa: E402
from gesso.backends.cuda.kernels.four_bit import FOUR_BIT, interleaved  # noqa: E402
from gesso.backends.cuda.kernels.linear import quantize_rows  # noqa: E402

EPS = 1e-6
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("shape", [(5, 40), (3, 4, 16)])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_kernel_matches_plain_norm(shape, weighted):
    x, weight = draw(*shape), draw(shape[-1], seed=1) if weighted else None
    torch.testing.assert_close(kernel.rms_norm(x, weight, EPS), rms_norm(x, weight, EPS))


def test_heads_kernel_matches_reference():
    q, k, v = draw(6, 4, 32), draw(6, 2, 32, seed=1), draw(6, 2, 32, seed=2)
    q_weight, k_weight = draw(32, seed=3), draw(32, seed=4)
    frequencies = inverse_frequencies(32, 1e4, 0.5, True).to(DEVICE)
    angles = rotation(torch.arange(6, device=DEVICE) + 7, frequencies, torch.float32)
    found = kernel.heads(q, k, v, q_weight, k_weight, angles, EPS)
    expected = reference.heads(q, k, v, q_weight, k_weight, angles, EPS)
    for found_each, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(found_each, plain)


def test_add_norms_kernel_matches_reference():
    x, y = draw(7, 24), draw(7, 24, seed=1)
    weight, first, second, scale = (draw(24, seed=2 + i) for i in range(4))
    given = x, y, weight, [NextNorm(first, None), NextNorm(second, None)], scale, 24**-0.5, EPS
    (total, normed), (expected, plain) = kernel.add_norms(*given), reference.add_norms(*given)
    torch.testing.assert_close(total, expected)
    assert len(normed) == len(plain) == 3
    for found_each, other in zip(normed, plain, strict=True):
        torch.testing.assert_close(found_each, other)


def test_add_norms_kernel_reduces_split_k_partials():
    x, sums = draw(7, 24), draw(3, 7, 24, seed=1)
    weight, first, second, scale = (draw(24, seed=2 + i) for i in range(4))
    then = weight, [NextNorm(first, None), NextNorm(second, None)], scale, 24**-0.5, EPS
    total, normed = kernel.add_norms(x, SplitK(sums), *then)
    whole, expected = kernel.add_norms(x, sums[0] + sums[1] + sums[2], *then)
    assert torch.equal(total, whole)
    for found_each, other in zip(normed, expected, strict=True):
        assert torch.equal(found_each, other)


def test_fp8_norm_is_the_norm_quantized_to_fp8():
    """Not rounded from more digits: an input with an adapter is rounded in two steps, and must get the same numbers."""
    x, y = draw(7, 48).bfloat16(), draw(7, 48, seed=1).bfloat16()
    weight, first, second, scale = (draw(48, seed=2 + i).bfloat16() for i in range(4))
    (low, scales, dtype) = kernel.norm_for(x, weight, EPS, "fp8")
    expected = quantize_rows(kernel.rms_norm(x, weight, EPS))
    assert dtype == torch.bfloat16 and torch.equal(low.float(), expected[0].float())
    assert torch.equal(scales, expected[1])

    given = weight, scale, 48**-0.5, EPS
    total, wide = kernel.add_norms(x, y, given[0], [NextNorm(first, None), NextNorm(second, None)], *given[1:])
    same, (one, (low, scales, _), routed) = kernel.add_norms(
        x, y, given[0], [NextNorm(first, None), NextNorm(second, "fp8")], *given[1:]
    )
    assert torch.equal(total, same) and torch.equal(wide[0], one) and torch.equal(wide[2], routed)
    expected = quantize_rows(wide[1])
    assert torch.equal(low.float(), expected[0].float()) and torch.equal(scales, expected[1])


@pytest.mark.parametrize("format", FOUR_BIT)
def test_norm_for_four_bit_weights_is_interleaved(format):
    x, y = draw(5, 256), draw(5, 256, seed=1)
    weight, first, second, scale = (draw(256, seed=2 + i) for i in range(4))
    _, (_, wide, _) = kernel.add_norms(x, y, weight, [NextNorm(first, None), NextNorm(second, None)], scale, 1.0, EPS)
    _, (_, found, _) = kernel.add_norms(
        x, y, weight, [NextNorm(first, None), NextNorm(second, format)], scale, 1.0, EPS
    )
    assert isinstance(found, Interleaved) and torch.equal(found.interleaved_TI, interleaved(wide, depth("up", format)))
    assert not torch.equal(found.interleaved_TI, wide)


@pytest.mark.parametrize("tokens, experts, k", [(5, 16, 3), (40, 20, 8), (1, 128, 8)])
def test_route_kernel_matches_plain_route(tokens, experts, k):
    x_TH, weight_EH, scale_E = draw(tokens, 100), draw(experts, 100, seed=1) * 0.1, draw(experts, seed=2).abs()
    index_TK, weight_TK = kernel.route(x_TH, weight_EH, scale_E, k)
    expected, expected_TK = route(x_TH @ weight_EH.T, scale_E, k)
    assert torch.equal(index_TK.long(), expected), "experts must be in the order of their scores"
    torch.testing.assert_close(weight_TK, expected_TK)


def test_route_kernel_breaks_ties_by_the_lowest_index():
    index_TK, weight_TK = kernel.route(*(torch.ones(size, device=DEVICE) for size in ((2, 16), (16, 16), 16)), 4)
    assert index_TK.tolist() == [[0, 1, 2, 3]] * 2 and (weight_TK == 0.25).all()


def test_join_kernel_matches_reference():
    x, dense, sparse = (draw(6, 48, seed=i) for i in range(3))
    weights, scalar_T1 = [draw(48, seed=3 + i) for i in range(3)], draw(6, 1, seed=9)
    given = x, dense, sparse, weights, scalar_T1, EPS, NextNorm(draw(48, seed=10), None)
    for found_each, plain in zip(kernel.join(*given), reference.join(*given), strict=True):
        torch.testing.assert_close(found_each, plain)


def test_join_kernel_returns_the_norm_of_its_output():
    x, dense, sparse = (draw(6, 48, seed=i).bfloat16() for i in range(3))
    weights, scalar_T1 = [draw(48, seed=3 + i).bfloat16() for i in range(3)], draw(6, 1, seed=9).bfloat16()
    given, then_H = (x, dense, sparse, weights, scalar_T1, EPS), draw(48, seed=10).bfloat16()
    alone, _ = kernel.join(*given, NextNorm(then_H, None))
    for format in (None, "fp8"):
        out, normed = kernel.join(*given, NextNorm(then_H, format))
        expected = kernel.norm_for(alone, then_H, EPS, format)
        assert torch.equal(out, alone) and type(normed) is type(expected)
        for a, b in zip(normed, expected, strict=True):
            assert torch.equal(a.float(), b.float()) if isinstance(a, torch.Tensor) else a == b
    plain, normed = reference.join(*given, NextNorm(then_H, None))
    assert torch.equal(normed, rms_norm(plain, then_H, EPS))


def test_join_kernel_weights_and_sums_expert_outputs():
    x, dense, outputs = draw(6, 48), draw(6, 48, seed=1), draw(18, 48, seed=2)
    weight_TK = draw(6, 3, seed=3).abs()
    weights, scalar_T1 = [draw(48, seed=4 + i) for i in range(3)], draw(6, 1, seed=9)
    summed = (outputs.unflatten(0, (6, 3)) * weight_TK[..., None]).sum(1)
    rest = weights, scalar_T1, EPS, NextNorm(draw(48, seed=10), None)
    found, _ = kernel.join(x, dense, ExpertOutputs(outputs, weight_TK), *rest)
    torch.testing.assert_close(found, reference.join(x, dense, summed, *rest)[0])
