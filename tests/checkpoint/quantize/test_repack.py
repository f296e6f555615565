"""Conversions to the formats of the kernels are exact where they say so, and within their bounds elsewhere."""

import pytest
import torch

from gesso.checkpoint.quantize import int4, matrices, nvfp4, uint4
from gesso.checkpoint.quantize.codes import e2m1, e8m0, pack_nibbles, scaled, unpack_bits
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.quantize.repack import to_fp8, to_fp8_by_powers_of_two, to_int4, to_nvfp4, to_uint4


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_codes_of_any_width_are_a_stream_of_bits(bits):
    code = torch.randint(0, 2**bits, (3, 64), dtype=torch.uint8)
    streams = [sum(int(value) << bits * i for i, value in enumerate(row)) for row in code]
    packed = torch.stack([torch.tensor(list(s.to_bytes(8 * bits, "little")), dtype=torch.uint8) for s in streams])
    assert torch.equal(unpack_bits(packed, bits), code)
    assert torch.equal(unpack_bits(packed.view(torch.int32), bits), code)


def test_e8m0_is_a_power_of_two_for_every_exponent():
    exponent = torch.arange(255, dtype=torch.uint8)
    assert e8m0(exponent).tolist() == [2.0 ** (i - 127) for i in range(255)]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_int4_and_uint4_have_the_given_values(groups):
    code = torch.randint(0, 16, (2, 5, 128), dtype=torch.uint8)
    scale, offset = torch.randn(2, 2, 5, groups).bfloat16()
    words = pack_nibbles(code)
    exact = scaled(code.float() - 8, scale.float())
    made = to_int4(words, scale)
    assert torch.equal(int4.unpack(made), exact)
    layout = int4.layout(exact.shape)
    assert {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in made.items()} == layout
    assert made["weight_shape"].tolist() == [[5, 128]] * 2
    exact = scaled(code.float(), scale.float()) + offset.float().repeat_interleave(128 // groups, -1)
    made = to_uint4(words, scale, offset)
    assert torch.equal(uint4.unpack(made), exact)
    assert {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in made.items()} == uint4.layout(exact.shape)


def test_rounded_scales_and_offsets_stay_within_their_bounds():
    code = torch.randint(0, 16, (64, 128), dtype=torch.uint8)
    scale, offset = torch.randn(2, 64, 4)
    exact = scaled(code.float(), scale) + offset.repeat_interleave(32, -1)
    error = (uint4.unpack(to_uint4(pack_nibbles(code), scale, offset)) - exact).abs()
    bound = 2**-8 * (15 * scale.abs() + offset.abs())
    assert (error <= bound.repeat_interleave(32, -1)).all()
    exact = scaled(code.float() - 8, scale)
    error = (int4.unpack(to_int4(pack_nibbles(code), scale)) - exact).abs()
    assert (error <= exact.abs() * 2**-8).all()


@pytest.mark.parametrize("low", [0, 8, 110, 237])
def test_mxfp4_is_exact_as_nvfp4_if_its_scales_span_17_powers_of_two(low):
    code = torch.randint(0, 16, (64, 128), dtype=torch.uint8)
    code[:, 31] = 1
    exponent = torch.randint(low, low + 18, (64, 4)).to(torch.uint8)
    exponent[0, 0], exponent[0, 1] = low, low + 17
    made = to_nvfp4(code, exponent)
    assert {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in made.items()} == nvfp4.layout(code.shape)
    assert torch.equal(nvfp4.unpack(made), scaled(e2m1(code), e8m0(exponent)))


def test_blocks_of_zeros_do_not_count_for_the_span():
    code = torch.randint(1, 8, (4, 64), dtype=torch.uint8)
    code[1, :32] = torch.tensor([0, 8]).repeat(16)
    exponent = torch.full((4, 2), 100, dtype=torch.uint8)
    exponent[1, 0] = 200
    assert torch.equal(nvfp4.unpack(to_nvfp4(code, exponent)), scaled(e2m1(code), e8m0(exponent)))


def test_mxfp4_with_a_larger_span_is_rounded_within_the_stated_bound():
    code = torch.randint(0, 16, (64, 128), dtype=torch.uint8)
    exponent = torch.randint(90, 130, (64, 4)).to(torch.uint8)
    exact = scaled(e2m1(code), e8m0(exponent))
    error = (nvfp4.unpack(to_nvfp4(code, exponent)) - exact).abs()
    assert 0 < error.max() <= exact.abs().max() * 2**-18
    near = exponent >= 129 - 17
    assert error.view(64, 4, 32)[near].max() == 0


def mx(code, exponent, unpack):
    tensors = {"code": code, "exponent": exponent}
    return Packed("mx", tuple(code.shape), tensors, lambda t: scaled(unpack(t["code"]), e8m0(t["exponent"])))


@pytest.mark.parametrize("shape", [(matrices.ROWS + 24, 32), (3, 40, 128)], ids=["tall", "experts"])
def test_powers_of_two_keep_microscaled_values_in_fp8(shape):
    code = torch.randint(0, 16, shape, dtype=torch.uint8)
    exponent = torch.randint(110, 120, (*shape[:-1], shape[-1] // 32), dtype=torch.uint8)
    packed = mx(code, exponent, e2m1)
    made = to_fp8_by_powers_of_two(packed)
    assert (made.format, made.shape) == ("fp8", shape)
    assert torch.equal(made.dense(), packed.dense())
    code = torch.randint(0, 127, shape, dtype=torch.uint8).view(torch.float8_e4m3fn)
    packed = mx(code.view(torch.uint8), exponent, lambda byte: byte.view(torch.float8_e4m3fn).float())
    exact, top = packed.dense(), packed.dense().abs().amax(-1, keepdim=True)
    error = (to_fp8_by_powers_of_two(packed).dense() - exact).abs()
    assert error[exact.abs() >= top * 2**-13].max() == 0
    assert (error <= top * 2**-17).all()


def test_rows_of_zeros_are_zeros_in_fp8():
    packed = mx(torch.zeros(4, 64, dtype=torch.uint8), torch.full((4, 2), 127, dtype=torch.uint8), e2m1)
    for made in (to_fp8_by_powers_of_two(packed), to_fp8(packed)):
        assert made.weight_scale.isfinite().all()
        assert (made.weight_scale > 0).all()
        assert (made.dense() == 0).all()


def test_a_large_table_is_converted_to_fp8_in_blocks_of_rows():
    code = torch.randint(0, 16, (matrices.ROWS + 24, 32), dtype=torch.uint8)
    exponent = torch.randint(120, 127, (matrices.ROWS + 24, 1), dtype=torch.uint8)
    whole = to_fp8(mx(code, exponent, e2m1)).dense()
    rows = slice(matrices.ROWS - 10, matrices.ROWS + 10)
    assert torch.equal(whole[rows], to_fp8(mx(code[rows], exponent[rows], e2m1)).dense())
