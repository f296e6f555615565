"""Products of the CPU kernels against those of the unpacked matrices."""

import ctypes
import mmap
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("numba")
from gesso.backends.cpu.formats import KERNELS, for_cpu  # noqa: E402
from gesso.backends.cpu.products import MANY, PackedMatrix, Pairs  # noqa: E402
from gesso.checkpoint.quantize.formats import FORMATS  # noqa: E402
from gesso.checkpoint.quantize.packed import Packed  # noqa: E402

# Blocks of 128 inputs that are missing, whole and cut after one, two and three groups; outputs that fill no tile.
INPUTS, OUTPUTS = (32, 96, 128, 192, 704), (1, 37, 70)
ROWS = (1, MANY - 1, MANY, 9)  # few and many, with a tile that is not full


def packed(format: str, *shape: int) -> Packed:
    torch.manual_seed(0)
    return FORMATS[format].quantize("w", torch.randn(*shape))


def rounded(x_TI: Tensor) -> Tensor:
    """Return the rows as the kernels see them: 8 bits, and one scale per 32 values."""
    x_TGN = x_TI.unflatten(-1, (-1, 32))
    top_TG1 = x_TGN.abs().amax(-1, keepdim=True)
    steps_TGN = (x_TGN * (torch.full_like(top_TG1, 127) / top_TG1)).nan_to_num().round()
    return (steps_TGN * top_TG1 / 127).flatten(-2)


def bound(x_TI: Tensor, weight_OI: Tensor) -> Tensor:
    """Return the largest error of a product [T, O]: half a step for each value of the rows."""
    half_TI = (x_TI.unflatten(-1, (-1, 32)).abs().amax(-1) / 254).repeat_interleave(32, -1)
    return F.linear(half_TI, weight_OI.abs()) * 1.0001


@pytest.mark.parametrize("format", sorted(KERNELS))
@pytest.mark.parametrize("inputs", INPUTS)
def test_products_equal_those_of_the_unpacked_matrix_within_the_rounding_of_rows(format, inputs):
    for outputs in OUTPUTS:
        weight = packed(format, outputs, inputs)
        dense_OI = weight.dense()
        for rows in ROWS:
            x_TI = torch.randn(rows, inputs) * torch.logspace(-3, 3, inputs)
            found_TO, expected_TO = PackedMatrix.of(weight)(x_TI), F.linear(x_TI, dense_OI)
            assert ((found_TO - expected_TO).abs() <= bound(x_TI, dense_OI)).all()
            exact_TO = F.linear(rounded(x_TI).double(), dense_OI.double()).float()
            torch.testing.assert_close(found_TO, exact_TO, rtol=1e-5, atol=1e-5 * exact_TO.abs().max().item())


@pytest.mark.parametrize("format", sorted(KERNELS))
def test_rows_do_not_depend_on_other_rows(format):
    matrix, x_TI = PackedMatrix.of(packed(format, 70, 704)), torch.randn(11, 704)
    together = matrix(x_TI)
    for rows in (slice(0, MANY), slice(3, 9), slice(7, 11)):
        assert torch.equal(matrix(x_TI[rows]), together[rows])
    for row in range(MANY - 1):
        assert torch.equal(matrix(x_TI[row : row + 1]), matrix(x_TI[: MANY - 1])[row : row + 1])


def test_rows_are_rounded_again_for_another_format_and_after_a_change():
    matrices, x_TI = [PackedMatrix.of(packed(format, 5, 96)) for format in sorted(KERNELS)], torch.randn(2, 96)
    for _ in range(2):
        expected = [matrix(x_TI.clone()) for matrix in matrices]
        for matrix, each in zip(matrices, expected, strict=True):
            assert torch.equal(matrix(x_TI), each)
        x_TI.mul_(-2)


@pytest.mark.parametrize("format", sorted(KERNELS))
@pytest.mark.parametrize("rows", [3, 20])
def test_threads_do_not_change_a_bit(format, rows):
    matrix, x_TI = PackedMatrix.of(packed(format, 200, 160)), torch.randn(rows, 160)
    before, one = torch.get_num_threads(), matrix(x_TI)
    torch.set_num_threads(2)
    try:
        two = matrix(x_TI)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)


def test_without_the_threads_of_torch_kernels_have_their_own(own_threads):
    matrix, x_TI = PackedMatrix.of(packed("int4", 200, 160)), torch.randn(20, 160)
    one = matrix(x_TI)
    own_threads(3)
    assert torch.equal(matrix(x_TI), one)


@pytest.mark.parametrize("rows", [2, 40])
def test_grouped_products_take_each_row_to_its_expert(rows):
    weight = packed("int4", 5, 48, 96)
    x_TI, source_R = torch.randn(rows, 96), torch.arange(2 * rows) % rows
    expert_G, end_G = torch.tensor([0, 3, 4]), torch.tensor([1, rows, 2 * rows])
    found_RO = PackedMatrix.of(weight).grouped(x_TI, Pairs(source_R, expert_G, end_G))
    begin = 0
    for expert, end in zip(expert_G.tolist(), end_G.tolist(), strict=True):
        expected_RO = F.linear(rounded(x_TI[source_R[begin:end]]), weight.unbind()[expert].dense())
        torch.testing.assert_close(found_RO[begin:end], expected_RO, rtol=1e-4, atol=1e-4)
        begin = end


def test_rows_of_zeros_and_of_tiny_values_are_zeros_and_invalid_ones_are_not_hidden():
    matrix = PackedMatrix.of(packed("int8", 5, 64))
    for rows in (1, MANY):
        assert matrix(torch.zeros(rows, 64)).eq(0).all()
        assert matrix(torch.full((rows, 64), 1e-38)).abs().max() < 1e-30
        for wrong in (torch.nan, torch.inf):
            x_TI = torch.ones(rows, 64)
            x_TI[0, 40] = wrong
            assert not matrix(x_TI)[0].isfinite().any()


def test_weights_need_not_be_aligned():
    weight = packed("int4", 9, 96)
    buffer = torch.empty(1 + weight.weight_packed.nbytes, dtype=torch.uint8)
    codes = buffer[1:]
    codes.copy_(weight.weight_packed.view(torch.uint8).flatten())
    matrix, x_TI = PackedMatrix.of(weight), torch.randn(MANY, 96)
    shifted = PackedMatrix(matrix.format, codes, matrix.scales, matrix.outputs, matrix.inputs)
    assert torch.equal(shifted(x_TI), matrix(x_TI))


def before_forbidden_memory(tensor: Tensor) -> Tensor:
    """Return a copy that ends where memory does: reading a byte more ends the process."""
    pages = -(-tensor.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    buffer = mmap.mmap(-1, pages + mmap.PAGESIZE)
    whole = torch.frombuffer(buffer, dtype=torch.uint8)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.data_ptr() + pages), mmap.PAGESIZE, 0) == 0
    return whole[pages - tensor.nbytes : pages].copy_(tensor.view(torch.uint8).flatten())


@pytest.mark.skipif(sys.platform == "win32", reason="mprotect")
@pytest.mark.parametrize("format", sorted(KERNELS))
def test_nothing_is_read_after_the_last_weight(format):
    for inputs in (32, 64, 96, 128, 160):
        matrix = PackedMatrix.of(packed(format, 17, inputs))
        codes, scales = before_forbidden_memory(matrix.codes), before_forbidden_memory(matrix.scales)
        for rows in (1, MANY):
            x_TI = torch.randn(rows, inputs)
            assert torch.equal(PackedMatrix(format, codes, scales, 17, inputs)(x_TI), matrix(x_TI))


def test_fp8_becomes_int8_for_a_cpu():
    for shape in ((40, 96), (3, 8, 64)):
        weight = packed("fp8", *shape)
        found = for_cpu(weight)
        assert found.format == "int8" and found.shape == shape
        error = (found.dense() - weight.dense()).norm() / weight.dense().norm()
        assert error < 0.007
    for kept in (packed("int4", 4, 32), packed("fp8", 4, 33)):
        assert for_cpu(kept) is kept
