"""The quantization formats: exact bits, error bounds, rejected input."""

import pytest
import torch

from gesso.checkpoint.quantize import fp8, int4, int8, matrices, nvfp4, uint4
from gesso.checkpoint.quantize.formats import FORMATS, format_of, stored_name
from gesso.errors import InputError
from gesso.model.quantization_config import LAYERS, QUANTIZATIONS

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
HEAVY = torch.distributions.StudentT(3.0)


def weights(*shape: int) -> torch.Tensor:
    return HEAVY.sample(shape) * 0.03


def hostile() -> dict[str, torch.Tensor]:
    """Return matrices [6, 64] that are difficult to scale."""
    rows = torch.randn(6, 64)
    with_zeros = rows.clone()
    with_zeros[2], with_zeros[4, :32] = 0, 0
    return {
        "zeros": torch.zeros(6, 64),
        "rows and blocks of zeros": with_zeros,
        "tiny": rows * 1e-38,
        "subnormal in float32": rows * 1e-42,
        "huge": (rows * 1e37).clamp(-3e38, 3e38),
        "one outlier": torch.cat([rows.flatten()[:-1] * 1e-4, torch.tensor([1e4])]).view(6, 64),
        "one value": torch.full((6, 64), -0.37),
    }


# --- bits ---------------------------------------------------------------------------------------------------------


def test_fp8_stores_e4m3_and_one_scale_per_row():
    row = torch.tensor([[448.0, -224.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-896.0, 2.0, 896.0, 4.0]])
    packed = fp8.pack(row)
    assert packed["weight_scale"].tolist() == [[1.0], [fp8.TINY], [2.0]]
    assert packed["weight"].view(torch.uint8).tolist() == [
        [0x7E, 0xF6, 0x38, 0x00],  # sign, four bits of exponent with bias 7, three of fraction
        [0x00] * 4,
        [0xFE, 0x38, 0x7E, 0x40],
    ]
    assert torch.equal(fp8.unpack(packed), row)


def test_int4_stores_value_plus_eight_with_even_values_in_the_low_half():
    values = torch.arange(64) % 16 - 8
    row = torch.cat([values[:32] * 0.5, values[32:] * 2.0])[None]
    packed = int4.pack(row)
    assert packed["weight_packed"].dtype == torch.int32
    assert packed["weight_packed"].view(torch.uint8).tolist() == [[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 4]
    assert packed["weight_packed"][0, 0].item() == 0x76543210, "value k of a word is at bit 4k"
    assert packed["weight_scale"].dtype == torch.bfloat16
    assert packed["weight_scale"].tolist() == [[0.5, 2.0]]
    assert packed["weight_shape"].tolist() == [1, 64]
    assert torch.equal(int4.unpack(packed), row)


def test_int8_stores_integers_and_one_scale_per_32_values():
    values = torch.arange(64) * 4 - 127
    row = torch.cat([values[:32] * 0.5, values[:32].flip(0) * 2.0])[None]
    packed = int8.pack(row)
    assert packed["weight"].tolist() == [[*values[:32].tolist(), *values[:32].flip(0).tolist()]]
    assert packed["weight_scale"].dtype == torch.bfloat16
    assert packed["weight_scale"].tolist() == [[0.5, 2.0]]
    assert torch.equal(int8.unpack(packed), row)


def test_uint4_stores_codes_and_pairs_of_scale_and_offset():
    values = torch.arange(64) % 16
    row = torch.cat([values[:32] * 0.5 - 3, values[32:] * 2.0 + 1])[None]
    packed = uint4.pack(row)
    assert packed["weight_packed"].dtype == torch.int32
    assert packed["weight_packed"][0, 0].item() == 0x76543210, "value k of a word is at bit 4k"
    assert packed["weight_scale_offset"].tolist() == [[[0.5, -3.0], [2.0, 1.0]]]
    word = packed["weight_scale_offset"].view(torch.int32).flatten()
    assert word.tolist() == [0xC0403F00 - 2**32, 0x3F804000], "the scale is in the low half of a word"
    assert torch.equal(uint4.unpack(packed), row)


def test_nvfp4_stores_e2m1_codes_and_a_dividing_global_scale():
    values = torch.tensor([*E2M1, *(-v for v in E2M1)])
    row = torch.cat([values * 448, values])[None]
    packed = nvfp4.pack(row)
    assert packed["weight_packed"].dtype == torch.uint8
    # Minus zero is stored as zero.
    assert packed["weight_packed"].tolist() == [[0x10, 0x32, 0x54, 0x76, 0x90, 0xBA, 0xDC, 0xFE] * 2]
    assert packed["weight_scale"].dtype == torch.float8_e4m3fn
    assert packed["weight_scale"].float().tolist() == [[448.0, 1.0]]
    assert packed["weight_global_scale"].tolist() == [1.0], "448 · 6 / the largest value"
    assert torch.equal(nvfp4.unpack(packed), row)
    assert nvfp4.pack(row / 4)["weight_global_scale"].tolist() == [4.0]


def test_nvfp4_matrix_may_have_one_global_scale_per_half():
    gate, up = weights(3, 4, 64), weights(3, 4, 64) * 100
    parts = [nvfp4.pack(gate), nvfp4.pack(up)]
    both = {key: torch.cat([part[key].float() for part in parts], 1).to(parts[0][key].dtype) for key in parts[0]}
    assert both["weight_global_scale"].shape == (3, 2)
    expected = torch.cat([nvfp4.unpack(part) for part in parts], 1)
    assert torch.equal(nvfp4.unpack(both), expected)
    experts = FORMATS["nvfp4"].packed(expected.shape, both).unbind()
    assert torch.equal(torch.stack([expert.dense() for expert in experts]), expected)


def test_e2m1_rounds_to_nearest_and_ties_to_the_even_code():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 9.0])
    assert nvfp4._round(ties).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]
    x = torch.randn(20_000) * 3
    grid = torch.tensor(E2M1)
    nearest = grid[(x.abs()[:, None] - grid).abs().argmin(1)].copysign(x)
    assert torch.equal(nvfp4._round(x), nearest)


@pytest.mark.parametrize("name", FORMATS)
def test_experts_are_packed_one_by_one(name):
    format = FORMATS[name]
    stack = weights(3, 5, 64) * torch.tensor([1.0, 100.0, 0.01])[:, None, None]
    packed = format.pack(stack)
    for expert in range(3):
        alone = format.pack(stack[expert])
        assert all(torch.equal(packed[key][expert].float(), alone[key].float()) for key in alone)
    parts = format.packed(stack.shape, packed).unbind()
    assert torch.equal(torch.stack([part.dense(torch.float32) for part in parts]), format.unpack(packed))


@pytest.mark.parametrize("shape", [(7, 64), (3, 5, 96)])
@pytest.mark.parametrize("name", FORMATS)
def test_layout_matches_packed_tensors(name, shape):
    format = FORMATS[name]
    packed = format.pack(weights(*shape).bfloat16())
    assert {key: (tuple(t.shape), t.dtype) for key, t in packed.items()} == format.layout(shape)
    assert format.unpack(packed).shape == shape


# --- errors -------------------------------------------------------------------------------------------------------


def bound(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Return the largest error of each value with the first scale of the format."""
    if name == "fp8":  # half a step: 2^-4 of the value, or 2^-10 of the scale where e4m3 is subnormal
        scale = weight.abs().amax(-1, keepdim=True) / 448
        return torch.maximum(weight.abs() / 16, scale * 2**-10)
    if name == "int4":  # half a step, and a bfloat16 scale that may be 2^-8 off
        return (weight.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True) / 14 * (1 + 2**-7)).expand(-1, -1, 32)
    if name == "int8":  # half a step, of a bfloat16 scale that may be 2^-8 off
        return (weight.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True) / 254 * (1 + 2**-7)).expand(-1, -1, 32)
    if name == "uint4":  # half a step; scale and offset may be 2^-9 off, at code 15 and at the smallest value
        group = weight.unflatten(-1, (-1, 32))
        span, top = group.amax(-1, keepdim=True) - group.amin(-1, keepdim=True), group.abs().amax(-1, keepdim=True)
        return (span / 30 * (1 + 2**-8) + (span + top) * 2**-9).expand(-1, -1, 32)
    # Half of the widest step, 2 of 6, and an e4m3 scale that may be 2^-4 off.
    return (weight.unflatten(-1, (-1, 16)).abs().amax(-1, keepdim=True) / 6 * (1 + 2**-3)).expand(-1, -1, 16)


@pytest.mark.parametrize("name", FORMATS)
def test_error_is_within_the_bound_of_the_format(name):
    weight = weights(64, 256)
    off = (FORMATS[name].unpack(FORMATS[name].pack(weight)) - weight).abs()
    limit = bound(name, weight).reshape(weight.shape)
    if name == "fp8":
        assert (off <= limit * 1.0001).all()
        return
    # The search may raise the error of one value to lower those of its neighbours, but never the sum of squares.
    size = 16 if name == "nvfp4" else 32
    squares = (t.unflatten(-1, (-1, size)).square().sum(-1) for t in (off, limit))
    assert torch.less_equal(*squares).all()


@pytest.mark.parametrize(
    ("name", "most"), [("fp8", 0.028), ("int4", 0.092), ("int8", 0.006), ("nvfp4", 0.087), ("uint4", 0.081)]
)
def test_normal_values_lose_a_known_part(name, most):
    weight = torch.randn(128, 512)
    error = (FORMATS[name].unpack(FORMATS[name].pack(weight)) - weight).norm() / weight.norm()
    assert 0.5 * most < error < most


@pytest.mark.parametrize(("module", "most"), [(int4, 0.94), (nvfp4, 0.92)])
@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_scale_search_lowers_the_error(module, most, kind):
    weight = torch.randn(128, 512) if kind == "normal" else weights(128, 512)
    searched = (module.unpack(module.pack(weight)) - weight).norm()
    plain = module.pack(weight, divisors=module.DIVISORS[:1])
    assert searched < (most if kind == "normal" else 0.98) * (module.unpack(plain) - weight).norm()


@pytest.mark.parametrize("name", FORMATS)
def test_packing_twice_changes_little(name):
    once = FORMATS[name].unpack(FORMATS[name].pack(weights(16, 64)))
    twice = FORMATS[name].unpack(FORMATS[name].pack(once))
    assert (twice - once).norm() <= 0.03 * once.norm()


@pytest.mark.parametrize("kind", hostile())
@pytest.mark.parametrize("name", FORMATS)
def test_scales_are_positive_and_finite_and_zeros_stay_zeros(name, kind):
    weight = hostile()[kind]
    packed = FORMATS[name].pack(weight)
    for key, tensor in packed.items():
        if "scale" in key:
            assert tensor.float().isfinite().all(), key
            scale = tensor[..., 0] if key == "weight_scale_offset" else tensor
            assert (scale.float() > 0).all(), key
    back = FORMATS[name].unpack(packed)
    assert back.isfinite().all()
    assert (back[weight == 0] == 0).all()
    if "float32" not in kind and "tiny" not in kind:
        assert (back - weight).norm() <= 0.12 * weight.norm()


# --- rejected input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_values_that_are_not_finite_are_rejected_by_name(name, bad):
    weight = weights(2, 4, 64)
    weight[1, 2, 3] = bad
    with pytest.raises(InputError, match=f"layers.0.experts.down_proj cannot be stored as {name}.*NaN or infinite"):
        FORMATS[name].quantize("layers.0.experts.down_proj", weight)


@pytest.mark.parametrize(("name", "block"), [("int4", 32), ("int8", 32), ("nvfp4", 16), ("uint4", 32)])
def test_inputs_that_do_not_fill_blocks_are_rejected(name, block):
    for act in (FORMATS[name].pack, lambda weight: FORMATS[name].layout(weight.shape)):
        with pytest.raises(InputError, match=f"{block + 8} inputs cannot be divided into blocks of {block}"):
            act(weights(4, block + 8))
    assert fp8.pack(weights(4, 13))["weight"].shape == (4, 13), "fp8 has no blocks"


def test_vectors_empty_and_integer_tensors_are_rejected():
    for wrong in (torch.ones(32), torch.ones(0, 32), torch.ones(4, 32, dtype=torch.int8)):
        for format in FORMATS.values():
            with pytest.raises(InputError):
                format.pack(wrong)
    for unknown in ("int3", "int8", "uint4"):  # no model is stored in the last two
        with pytest.raises(InputError, match=f"{unknown}.*fp8, int4, nvfp4$"):
            format_of("decoder.norm.weight", (8,), unknown)


def test_stored_names_extend_the_parameter_name():
    assert stored_name("a.q_proj.weight", "weight_packed") == "a.q_proj.weight_packed"
    assert stored_name("a.q_proj.weight", "weight") == "a.q_proj.weight"
    assert stored_name("a.experts.down_proj", "weight_global_scale") == "a.experts.down_proj_global_scale"


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_router_and_norms_are_not_packed(name):
    assert format_of("decoder.layers.0.router.proj.weight", (8, 8), name) is None
    assert format_of("decoder.layers.0.self_attn.q_norm.weight", (8,), name) is None


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_embeddings_are_fp8_unless_a_stored_model_left_them_unpacked(name):
    for table in ("decoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head", "lm_head.weight"):
        assert format_of(table, (8, 8), name) is FORMATS["fp8"]
        assert format_of(table, (8, 8), name + LAYERS) is None
    matrix = "decoder.layers.0.experts.gate_up_proj", (2, 8, 8)
    assert format_of(*matrix, name + LAYERS) is format_of(*matrix, name) is FORMATS[name]


@pytest.mark.parametrize("name", ["fp8", "int4", "int8"])
def test_tall_matrix_packs_to_the_same_numbers_in_chunks(name):
    weight = torch.randn(matrices.ROWS + 20, 32)
    tall = FORMATS[name].quantize("a", weight).dense()
    for rows in (slice(0, 20), slice(matrices.ROWS - 10, matrices.ROWS + 10)):
        assert torch.equal(tall[rows], FORMATS[name].quantize("a", weight[rows]).dense())


def test_experts_are_four_bit_and_other_matrices_fp8():
    for name in QUANTIZATIONS:
        assert format_of("decoder.layers.0.experts.down_proj", (2, 8, 8), name) is FORMATS[name]
        assert format_of("decoder.layers.0.mlp.down_proj.weight", (8, 8), name) is FORMATS["fp8"]
        assert format_of("decoder.layers.0.router.proj.weight", (8, 8), name) is None


def test_moving_to_another_dtype_keeps_the_codes():
    for name, format in FORMATS.items():
        packed = format.quantize("w", weights(4, 64))
        before = packed.dense(torch.float32)
        packed.to(torch.bfloat16)
        assert torch.equal(packed.dense(torch.float32), before), name
        assert packed.dense(torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["fp8", "int4", "int8", "uint4"])
def test_rows_and_blocks_of_rows_are_those_of_the_whole_matrix(name):
    packed = FORMATS[name].quantize("w", weights(2, 64).repeat(5, 1) * torch.arange(1.0, 11.0)[:, None])
    whole, index = packed.dense(), torch.tensor([[7, 0], [9, 7]])
    assert torch.equal(packed.rows(index), whole[index])
    assert torch.equal(torch.cat([part.dense() for part in packed.split(4)]), whole)
