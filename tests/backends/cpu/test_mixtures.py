"""Weighted sums of the rows of a packed table against those of the unpacked one."""

import pytest
import torch

pytest.importorskip("numba")
from gesso.backends.cpu import mixtures, use_kernels  # noqa: E402
from gesso.backends.cpu.formats import KERNELS  # noqa: E402
from gesso.backends.cpu.products import PackedMatrix  # noqa: E402
from tests.backends.cpu.test_products import packed  # noqa: E402


@pytest.mark.parametrize("format", sorted(KERNELS))
@pytest.mark.parametrize("sharpness", [0.1, 20.0])
def test_sums_equal_those_of_the_unpacked_table(format, sharpness):
    table = packed(format, mixtures.ROWS + 50, 96)
    weight_TV = (torch.randn(5, mixtures.ROWS + 50) * sharpness).softmax(-1)
    found_TH = mixtures.mixture(PackedMatrix.of(table), weight_TV)
    torch.testing.assert_close(found_TH, weight_TV @ table.dense(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("format", sorted(KERNELS))
def test_a_row_alone_has_its_exact_values(format):
    table = packed(format, 40, 96)
    assert torch.equal(mixtures.mixture(PackedMatrix.of(table), torch.eye(40)[[7, 39]]), table.dense()[[7, 39]])


def test_only_rows_with_some_weight_are_unpacked(monkeypatch):
    unpacked = []

    def run(kernel, matrix, index, rows, out, threads):
        unpacked.append(rows)

    monkeypatch.setattr(mixtures.threads, "run", run)  # the result does not tell which rows were unpacked
    weight_TV = torch.full((3, 500), 2.0**-50)
    weight_TV[0, 17], weight_TV[1, 400], weight_TV[2, 17] = 1.0, -0.5, 2.0**-30
    mixtures.mixture(PackedMatrix.of(packed("int4", 500, 64)), weight_TV)
    assert sum(unpacked) == 500, "small weights count beside small ones: those of the last token"
    weight_TV[2, 17] = 1.0
    mixtures.mixture(PackedMatrix.of(packed("int4", 500, 64)), weight_TV)
    assert sum(unpacked) == 502


def test_invalid_weights_are_not_hidden_and_gradients_use_the_plain_product():
    table = packed("int8", 40, 64)
    use_kernels(torch.nn.ModuleList([table]))
    weight_TV = torch.rand(2, 40)
    with torch.no_grad():
        assert torch.matmul(torch.full((1, 40), torch.nan), table).isnan().all()
    weight_TV.requires_grad_(True)
    torch.matmul(weight_TV, table).sum().backward()
    torch.testing.assert_close(weight_TV.grad, table.dense().sum(-1).expand(2, -1))
