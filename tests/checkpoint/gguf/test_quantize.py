"""Rounding to GGUF blocks: at most the error of the `gguf` package's quantizers, also for unusual values."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from gesso.checkpoint.gguf.quantize import ROWS, pack
from gesso.checkpoint.gguf.types import FLOATS, TYPES
from gesso.errors import InputError

# Relative errors of normal values. The package cannot quantize to Q4_K and Q6_K; Q4_0 is as large as Q4_K.
MOST = {"Q8_0": 0.0054, "Q5_0": 0.0412, "Q4_0": 0.083, "Q4_K": 0.0725, "Q6_K": 0.0175}


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def unpacked(type, raw):
    """Return the values that the package reads."""
    return torch.from_numpy(np.array(gguf.quants.dequantize(raw.numpy(), Kind[type])))


def relative(found, exact):
    return ((found - exact).square().sum() / exact.square().sum()).sqrt().item()


@pytest.mark.parametrize("type", MOST)
def test_the_error_is_small_and_no_larger_than_that_of_the_package(type):
    for weight in (normal(64, 1024), normal(64, 1024) * normal(64, 1024).square()):  # the second has heavy tails
        error = relative(unpacked(type, pack(type, weight)), weight)
        if type not in ("Q4_K", "Q6_K"):
            theirs = gguf.quants.quantize(weight.numpy(), Kind[type])
            assert error <= relative(unpacked(type, torch.from_numpy(theirs)), weight) * 1.001
    assert relative(unpacked(type, pack(type, normal(64, 1024))), normal(64, 1024)) < MOST[type]


@pytest.mark.parametrize("type", MOST)
def test_groups_with_other_sizes_and_offsets_keep_their_relative_error(type):
    """Groups of a K block share a factor: those of very different size or mean test its rounding."""
    sizes = torch.logspace(-2, 0, 8).repeat_interleave(32).repeat(4)
    for weight in (
        normal(16, 1024) * sizes,
        normal(16, 1024) * 0.1 + 1,
        normal(16, 1024) * 0.1 - 1,
        normal(16, 1024).abs(),
    ):
        assert relative(unpacked(type, pack(type, weight)), weight) < 2 * MOST[type]


@pytest.mark.parametrize("type", MOST)
def test_constant_zero_and_tiny_values_become_finite_numbers(type):
    for value in (0.0, 1.0, -1.0, 0.1, 1e-9, -1e-30, 1e4):
        weight = torch.full((2, 512), value)
        found = unpacked(type, pack(type, weight))
        assert (found - weight).abs().max() <= max(abs(value) * 2**-9, 1e-7), value
    mixed = torch.zeros(1, 512)
    mixed[0, 7] = -3.0
    assert (unpacked(type, pack(type, mixed)) - mixed).abs().max() < 0.02


def test_experts_and_long_matrices_are_rounded_as_single_matrices():
    experts = normal(3, 4, 256)
    for type in MOST:
        assert torch.equal(pack(type, experts), torch.stack([pack(type, one) for one in experts]))
    weight = normal(ROWS + 5, 32)
    assert torch.equal(pack("Q4_0", weight)[ROWS:], pack("Q4_0", weight[ROWS:]))
    assert pack("Q4_0", weight).shape == (ROWS + 5, TYPES["Q4_0"].bytes)


@pytest.mark.parametrize("type", FLOATS)
def test_floats_are_rounded_to_nearest_and_overflow_is_rejected(type):
    weight = normal(4, 64)
    expected = gguf.quants.quantize(weight.numpy(), Kind[type])
    assert pack(type, weight).numpy().tobytes() == expected.tobytes()
    with pytest.raises(InputError, match="cannot represent"):
        pack(type, torch.tensor([float("inf")]))


def test_nan_and_rows_of_partial_blocks_are_rejected():
    with pytest.raises(InputError, match="NaN"):
        pack("Q4_0", torch.full((1, 32), float("nan")))
    with pytest.raises(InputError, match="blocks of 256"):
        pack("Q4_K", torch.zeros(1, 320))
