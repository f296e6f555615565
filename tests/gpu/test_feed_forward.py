"""The fused feed-forward against separate launches, at the width of the 26B-A4B checkpoint."""

import pytest
import torch

from tests.gpu.device import DEVICE, DRY_RUN

feed_forward = pytest.importorskip("gesso.backends.cuda.kernels.feed_forward")

from gesso.backends.cuda.activations import Fp8Rows  # noqa: E402
from gesso.backends.cuda.kernels import mixture  # noqa: E402
from gesso.backends.cuda.kernels.experts import Matrices, down_product  # noqa: E402
from gesso.backends.cuda.kernels.feed_forward_parts import FeedForward  # noqa: E402
from gesso.backends.cuda.kernels.hidden import Hidden  # noqa: E402
from gesso.backends.cuda.kernels.linear import BLOCK, FP8, Matrix, gated_low, quantize_rows  # noqa: E402

HIDDEN, WIDTH, DENSE, EXPERTS, K = 2816, 704, 2112, 128, 8

HAS_GPU = torch.cuda.is_available() and not DRY_RUN
pytestmark = pytest.mark.skipif(
    not HAS_GPU or not feed_forward._has_kernel(torch.device("cuda", 0)), reason="needs a Hopper GPU"
)


def draw(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random FP8 weights, and scales per output channel."""
    weight = torch.empty(shape, dtype=FP8, device=DEVICE)
    for part in weight if len(shape) == 3 else [weight]:
        part.copy_((torch.randn(part.shape, device=DEVICE) * 40).clamp(-448, 448))
    return weight, (torch.rand(shape[:-1], device=DEVICE) + 0.5) * shape[-1] ** -0.5 / 40


@pytest.fixture(scope="module")
def weights() -> FeedForward:
    torch.manual_seed(0)
    experts = Matrices(*draw(EXPERTS, 2 * WIDTH, HIDDEN)), Matrices(*draw(EXPERTS, HIDDEN, WIDTH))
    return FeedForward(
        *experts, *(Matrix(*draw(*size)) for size in ((DENSE, HIDDEN), (DENSE, HIDDEN), (HIDDEN, DENSE)))
    )


def rows(tokens: int) -> Fp8Rows:
    return Fp8Rows(*quantize_rows(torch.randn(tokens, HIDDEN, device=DEVICE).bfloat16()), torch.bfloat16)


def separate(x: Fp8Rows, dense_x: Fp8Rows, index_TK: torch.Tensor, weights: FeedForward) -> tuple[torch.Tensor, ...]:
    gate, up, down = weights.dense
    h = Hidden(*gated_low(dense_x.low_TI, gate, up, dense_x.scale_T), BLOCK)
    dense_TH = down_product(h, None, 1, Matrices(down.weight_OI[None], down.scale_O[None]), torch.bfloat16)
    return dense_TH, mixture.outputs(x.low_TI, x.scale_T, index_TK, weights.gate_up, weights.down, torch.bfloat16)


@pytest.mark.parametrize("tokens, popular", [(256, 0.0), (512, 2.0), (100, 0.0), (1, 0.0)])
def test_fused_feed_forward_has_the_bits_of_separate_launches(weights, tokens, popular):
    torch.manual_seed(tokens)
    x, dense_x = rows(tokens), rows(tokens)
    score_TE = torch.randn(tokens, EXPERTS, device=DEVICE) + popular * torch.randn(EXPERTS, device=DEVICE)
    index_TK = score_TE.topk(K).indices.int().contiguous()
    assert feed_forward.applies(x, weights)
    expected = separate(x, dense_x, index_TK, weights)
    for _ in range(3):
        found = feed_forward.feed_forward(x, dense_x, index_TK, weights)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
