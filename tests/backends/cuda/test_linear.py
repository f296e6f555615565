"""Dense product kernels against plain products, on small shapes, in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

kernel = pytest.importorskip("gesso.backends.cuda.kernels.linear")

from gesso.backends.cuda.kernels import experts  # noqa: E402
from gesso.backends.cuda.kernels.hidden import Hidden  # noqa: E402


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tokens, width, columns", [(40, 64, 96), (1, 48, 7), (65, 32, 31)])
def test_linear_kernel_matches_plain_linear(tokens, width, columns):
    x_TI, weight_OI = draw(tokens, width), draw(columns, width, seed=1)
    torch.testing.assert_close(kernel.linear(x_TI, kernel.Matrix(weight_OI)), F.linear(x_TI, weight_OI))


@pytest.mark.parametrize("tokens, width, columns", [(40, 64, 96), (3, 48, 7)])
def test_gated_kernel_matches_plain_gated_mlp(tokens, width, columns):
    x_TI, gate, up = draw(tokens, width) * 0.3, draw(columns, width, seed=1), draw(columns, width, seed=2)
    expected = F.gelu(F.linear(x_TI, gate), approximate="tanh") * F.linear(x_TI, up)
    found = kernel.gated(x_TI, kernel.Matrix(gate), kernel.Matrix(up))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_linears_kernel_matches_separate_products():
    x_TI, matrices = draw(40, 64), [kernel.Matrix(draw(columns, 64, seed=columns)) for columns in (33, 96, 7)]
    for count in (2, 3):
        for found, matrix in zip(kernel.linears(x_TI, matrices[:count]), matrices, strict=False):
            torch.testing.assert_close(found, F.linear(x_TI, matrix.weight_OI))


def test_linear_kernel_is_batch_invariant():
    x_TI, matrix = draw(100, 96), kernel.Matrix(draw(40, 96, seed=1))
    whole = kernel.linear(x_TI, matrix)
    assert torch.equal(kernel.linear(x_TI[70:71], matrix), whole[70:71])
    assert torch.equal(kernel.linear(x_TI[5:50], matrix), whole[5:50])


def quantized(weight_OI: torch.Tensor):
    scale_O = weight_OI.abs().amax(-1) / 448
    return kernel.Matrix((weight_OI / scale_O[:, None]).to(kernel.FP8), scale_O)


def test_fp8_linear_kernels_match_dequantized_products():
    x, matrix = quantized(draw(20, 64)), quantized(draw(48, 64, seed=1))  # token rows are quantized like weight rows
    dequantized_TI, dequantized_OI = (m.weight_OI.float() * m.scale_O[:, None] for m in (x, matrix))
    found = kernel.linear(x.weight_OI, matrix, x.scale_O, dtype=torch.float32)
    torch.testing.assert_close(found, F.linear(dequantized_TI, dequantized_OI), rtol=1e-3, atol=1e-4)
    both = kernel.gated(x.weight_OI, matrix, matrix, x.scale_O, dtype=torch.float32)
    expected = F.gelu(F.linear(dequantized_TI, dequantized_OI), approximate="tanh") * F.linear(
        dequantized_TI, dequantized_OI
    )
    torch.testing.assert_close(both, expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("tokens, width", [(70, 192), (3, 80)])
def test_fp8_mlp_rounds_between_its_products_by_blocks(tokens, width):
    """The blocks differ in size by far, so that one scale per row would lose the small ones."""
    x, gate, up, down = (
        quantized(draw(*size, seed=i)) for i, size in enumerate(((tokens, 64), (width, 64), (width, 64), (48, width)))
    )
    up.scale_O[64:] /= 1e5
    down.weight_OI[:, :64] = 0
    dequantized = [m.weight_OI.float() * m.scale_O[:, None] for m in (x, gate, up, down)]
    gated_TI = F.gelu(dequantized[0] @ dequantized[1].T, approximate="tanh") * (dequantized[0] @ dequantized[2].T)
    expected = gated_TI @ dequantized[3].T
    low_TI, scale_TB = kernel.gated_low(x.weight_OI, gate, up, x.scale_O)
    matrices = experts.Matrices(down.weight_OI[None], down.scale_O[None])
    found = experts.down_product(Hidden(low_TI, scale_TB, kernel.BLOCK), None, 1, matrices, torch.float32)
    assert (found - expected).norm() < 0.05 * expected.norm()
    alone = kernel.gated_low(x.weight_OI[2:3].clone(), gate, up, x.scale_O[2:3].clone())
    assert torch.equal(alone[0].float(), low_TI[2:3].float()) and torch.equal(alone[1], scale_TB[2:3])


@pytest.mark.parametrize("width", [64, 512, 1024 + 32])  # less than one range, fewer ranges than splits, and more
@pytest.mark.parametrize("rounded", [False, True])
def test_split_k_gives_the_same_bits_reduced_and_unreduced(width, rounded):
    x, matrix = draw(kernel.UNREDUCED_TOKENS + 1, width), kernel.Matrix(draw(24, width, seed=1))
    expected, scale_T = F.linear(x, matrix.weight_OI), None
    if rounded:
        x, matrix = quantized(x), quantized(matrix.weight_OI)
        dequantized_TI, dequantized_OI = (m.weight_OI.float() * m.scale_O[:, None] for m in (x, matrix))
        expected, x, scale_T = F.linear(dequantized_TI, dequantized_OI), x.weight_OI, x.scale_O
    reduced_TO = kernel.split_k(x, matrix, scale_T, torch.float32)
    assert reduced_TO.shape == (len(x), 24)
    sums_PTO = kernel.split_k(x[:20], matrix, None if scale_T is None else scale_T[:20], torch.float32)
    assert sums_PTO.shape == (3, 20, 24)
    first, second, third = sums_PTO
    torch.testing.assert_close(first + second + third, expected[:20], rtol=1e-3, atol=1e-3)
    assert torch.equal(reduced_TO[:20], first + second + third)
