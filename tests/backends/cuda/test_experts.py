"""The expert kernels against the plain version, on small shapes, in Triton's interpreter."""

import pytest
import torch

from gesso.model.experts import Experts

kernel = pytest.importorskip("gesso.backends.cuda.kernels.experts")
quantize_rows = pytest.importorskip("gesso.backends.cuda.kernels.linear").quantize_rows
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(tokens: int, hidden: int, experts: int, k: int, width: int, dtype=torch.float32, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    x_TH = torch.randn(tokens, hidden, generator=g)
    index_TK = torch.rand(tokens, experts, generator=g).topk(k).indices
    weight_TK = torch.rand(tokens, k, generator=g)
    gate_up = torch.randn(experts, 2 * width, hidden, generator=g) * hidden**-0.5
    down = torch.randn(experts, hidden, width, generator=g) * width**-0.5
    x_TH, gate_up, down = (t.to(DEVICE, dtype) for t in (x_TH, gate_up, down))
    return x_TH, index_TK.to(DEVICE), weight_TK.to(DEVICE), gate_up, down


def plain(x_TH, index_TK, weight_TK, gate_up, down):
    experts = Experts.__new__(Experts)
    torch.nn.Module.__init__(experts)
    experts.gate_up_proj, experts.down_proj = gate_up, down
    return experts(x_TH, index_TK, weight_TK)


def fast(x_TH, index_TK, weight_TK, gate_up, down):
    matrices = kernel.Matrices(gate_up), kernel.Matrices(down)
    return weighted(kernel.answers(x_TH, None, index_TK, *matrices, x_TH.dtype), weight_TK)


def weighted(answers_RH, weight_TK):
    return (answers_RH.unflatten(0, weight_TK.shape) * weight_TK[..., None]).sum(1)


@pytest.mark.parametrize(
    "tokens, hidden, experts, k, width", [(5, 32, 4, 2, 32), (40, 64, 8, 3, 48), (33, 40, 3, 1, 24), (1, 32, 16, 8, 32)]
)
def test_the_kernels_compute_what_the_plain_version_does(tokens, hidden, experts, k, width):
    given = draw(tokens, hidden, experts, k, width)
    torch.testing.assert_close(fast(*given), plain(*given), rtol=1e-4, atol=1e-5)


def test_an_expert_nobody_chose_and_one_everybody_chose(monkeypatch):
    x_TH, index_TK, weight_TK, gate_up, down = draw(70, 32, 5, 2, 32)
    index_TK[:, 0], index_TK[:, 1] = 3, torch.arange(70) % 2  # 2 and 4 are left out
    given = x_TH, index_TK, weight_TK, gate_up, down
    torch.testing.assert_close(fast(*given), plain(*given), rtol=1e-4, atol=1e-5)


def test_pairs_stand_in_the_order_of_their_experts_and_every_tile_has_one_expert():
    index_TK = draw(200, 8, 7, 3, 8)[1]
    rows = 16
    groups = kernel.group(index_TK, 7, rows)
    flat = index_TK.flatten().cpu()
    assert groups.order_R.cpu().tolist() == flat.argsort(stable=True).tolist()
    assert groups.end_E.cpu().tolist() == flat.bincount(minlength=7).cumsum(0).tolist()
    covered = []
    for expert, first in zip(groups.expert_N.tolist(), groups.first_N.tolist(), strict=True):
        if expert >= 0:
            places = range(first, min(first + rows, groups.end_E[expert].item()))
            assert {flat[groups.order_R[place]].item() for place in places} == {expert}
            covered += places
    assert covered == list(range(len(flat))), "every pair once"


def test_a_tokens_answer_does_not_depend_on_the_others():
    x_TH, index_TK, weight_TK, gate_up, down = draw(30, 64, 6, 2, 32)
    whole = fast(x_TH, index_TK, weight_TK, gate_up, down)
    for part in (slice(0, 1), slice(7, 19)):
        alone = fast(x_TH[part], index_TK[part], weight_TK[part], gate_up, down)
        assert torch.equal(alone, whole[part])


def low(weight_EOI):
    scale_EO = weight_EOI.abs().amax(-1).clamp(min=1e-12) / 448
    return kernel.Matrices((weight_EOI / scale_EO[..., None]).to(kernel.FP8), scale_EO)


def test_low_precision_is_near_the_plain_version_of_the_same_weights():
    x_TH, index_TK, weight_TK, gate_up, down = draw(40, 128, 4, 2, 64)
    x_TH[3] *= 0.01  # every row has a scale of its own
    up8, down8 = low(gate_up), low(down)
    wide = [(m.weight_EOI.float() * m.scale_EO[..., None]) for m in (up8, down8)]
    expected = plain(x_TH, index_TK, weight_TK, *wide)
    found = weighted(kernel.answers(*quantize_rows(x_TH), index_TK, up8, down8, x_TH.dtype), weight_TK)
    error = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    # Three bits of mantissa cost some 5 %; the interpreter gets the carry of some roundings wrong, a GPU none.
    assert error.mean() < (0.06 if DEVICE == "cuda" else 0.1)
    assert error.min() > 1e-4, "it is low precision that was tested"


def test_a_row_of_zeros_stays_zero_in_low_precision():
    x_TH, index_TK, weight_TK, gate_up, down = draw(4, 64, 4, 2, 32)
    x_TH[1] = 0
    found = weighted(kernel.answers(*quantize_rows(x_TH), index_TK, low(gate_up), low(down), x_TH.dtype), weight_TK)
    assert found.isfinite().all() and not found[1].any() and found[0].any()
