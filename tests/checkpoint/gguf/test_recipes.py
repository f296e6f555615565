"""Parameters from GGUF files: exact as stored, close to it in the formats of the kernels, with errors by name."""

import numpy as np
import pytest
import torch

from gesso.checkpoint.gguf import metadata
from gesso.checkpoint.gguf.blocks import is_finite, k_scales, split
from gesso.checkpoint.gguf.file import read
from gesso.checkpoint.gguf.native import NATIVE
from gesso.checkpoint.gguf.recipes import recipes
from gesso.checkpoint.gguf.types import BLOCKS, FLOATS, TYPES
from gesso.checkpoint.load import load
from gesso.checkpoint.parameters import assign, checkpoint_name, empty_model, parameters
from gesso.checkpoint.quantize.formats import is_expert
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.source import open_source
from gesso.checkpoint.stored import Inventory
from gesso.errors import CheckpointError
from tests.checkpoint.gguf import making

LAYER = "model.decoder.layers.0."


def opened(path):
    """Return the configuration, the recipes and the inventory of a file."""
    file = read(path)
    config = making.config(metadata.config(file, {}))
    inventory = Inventory(file.tensors)
    return config, recipes(config, inventory), inventory


def built(path):
    config, found, inventory = opened(path)
    assert inventory.report() == []
    assert found.keys() == parameters(config).keys()
    return config, found, making.weights(found)


def dense(weight):
    return weight.dense(torch.float32) if isinstance(weight, Packed) else weight.float()


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.int32), torch.from_numpy(np.array(b)).view(torch.int32))


def logits(config, weights):
    model = empty_model(config)
    ours = {checkpoint_name(name): name for name, _ in model.named_parameters()}
    for name, weight in weights.items():
        assign(model, ours[name], weight)
    generator = torch.Generator().manual_seed(1)
    ids, canvas = (torch.randint(0, making.VOCABULARY, (1, n), generator=generator) for n in (9, 6))
    cache = model.new_cache(1, 32)
    with torch.no_grad():
        model.encode(ids, cache)
        return model.denoise(canvas, cache, previous_logits=model.denoise(canvas, cache))


@pytest.fixture(scope="module", params=[*FLOATS, *BLOCKS])
def file(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return request.param, making.write(path, making.tensors(lambda name: request.param))


# --- as stored ----------------------------------------------------------------------------------------------------


def test_weights_equal_the_dequantization_of_the_package_and_give_the_logits_of_the_plain_model(file):
    kind, path = file
    config, found, weights = built(path)
    expected = making.dequantized(path)
    for name, recipe in found.items():
        assert same_bits(dense(weights[name]), expected[recipe.parts[0].name]), name
        assert tuple(weights[name].shape) == recipe.shape
    assert found[LAYER + "experts.gate_up_proj"].format == kind
    plain = {name: dense(weight) for name, weight in weights.items()}
    as_stored = {name: weight if isinstance(weight, Packed) else weight.float() for name, weight in weights.items()}
    assert torch.equal(logits(config, as_stored), logits(config, plain))


def test_split_experts_are_fused_with_the_gate_first(tmp_path):
    for kinds in (("Q4_K", "Q4_K"), ("Q5_K", "Q6_K"), ("F16", "Q8_0"), ("BF16", "BF16")):
        given = making.tensors(lambda name: "Q8_0")
        generator = np.random.default_rng(1)
        for i in range(2):
            del given[f"blk.{i}.ffn_gate_up_exps.weight"]
            for half, kind in zip(("gate", "up"), kinds, strict=True):
                shape = (making.EXPERTS, making.EXPERT, making.HIDDEN)
                values = generator.normal(0, 0.1, shape).astype(np.float32)
                data = values if kind in FLOATS else making.random_blocks(kind, shape, generator)
                given[f"blk.{i}.ffn_{half}_exps.weight"] = (data, kind)
        path = making.write(tmp_path / "split.gguf", given)
        _, found, weights = built(path)
        expected = making.dequantized(path)
        name = LAYER + "experts.gate_up_proj"
        halves = [expected[f"blk.0.ffn_{half}_exps.weight"] for half in ("gate", "up")]
        assert same_bits(dense(weights[name]), np.concatenate(halves, 1)), kinds
        assert found[name].native == ("uint4" if kinds[0] == "Q4_K" else "BF16" if kinds[0] == "BF16" else "fp8")
        one = weights[name].unbind()[2] if isinstance(weights[name], Packed) else weights[name][2]
        assert torch.equal(dense(one), dense(weights[name])[2])


def test_early_files_use_the_old_name_and_the_scalars_of_the_decoder(tmp_path):
    given = making.tensors(lambda name: "Q8_0")
    given["self_cond_norm.weight"] = given.pop("self_cond_pre_norm.weight")
    for i in range(2):
        del given[f"blk.{i}.enc_layer_output_scale.weight"]
    _, _, weights = built(making.write(tmp_path / "early.gguf", given))
    for i in range(2):
        decoder = weights[f"model.decoder.layers.{i}.layer_scalar"]
        assert torch.equal(weights[f"model.encoder.language_model.layers.{i}.layer_scalar"], decoder)


def nvfp4_with_scales(path):
    """Write NVFP4 as the converter does: split experts, a scale beside each weight, and unused scales of inputs."""
    given = making.tensors(lambda name: "NVFP4" if name != "token_embd.weight" else "F16")
    generator = np.random.default_rng(2)
    for name in [name for name, (_, kind) in given.items() if kind == "NVFP4"]:
        length = making.EXPERTS if "exps" in name else 1
        scale = generator.uniform(0.5, 2, length).astype(np.float32)
        if "gate_up" not in name:
            given.setdefault(name.replace("weight", "scale"), (scale, "F32"))
            given[name.replace("weight", "input_scale")] = (scale, "F32")
            continue
        data, kind = given.pop(name)
        for half, part in zip(("gate", "up"), np.split(data, 2, axis=1), strict=True):
            given[name.replace("gate_up", half)] = (part, kind)
            given[name.replace("gate_up", half).replace("weight", "scale")] = (scale * (1 + (half == "up")), "F32")
    return making.write(path, given)


def test_scales_of_nvfp4_weights_are_applied_per_expert_and_per_half(tmp_path):
    path = nvfp4_with_scales(tmp_path / "nvfp4.gguf")
    config, found, weights = built(path)
    raw = making.dequantized(path)

    def scaled(name):
        factor = raw[name.replace("weight", "scale")]
        return raw[name] * (factor[:, None, None] if "exps" in name else factor)

    halves = [scaled(f"blk.0.ffn_{half}_exps.weight") for half in ("gate", "up")]
    assert same_bits(dense(weights[LAYER + "experts.gate_up_proj"]), np.concatenate(halves, 1))
    assert same_bits(dense(weights[LAYER + "mlp.up_proj.weight"]), scaled("blk.0.ffn_up.weight"))
    # The scale of the second matrices includes that of each expert, and is the parameter.
    assert same_bits(dense(weights[LAYER + "experts.down_proj"]), raw["blk.0.ffn_down_exps.weight"])
    assert same_bits(weights[LAYER + "router.per_expert_scale"], raw["blk.0.ffn_down_exps.scale"])
    rows = weights[LAYER + "mlp.up_proj.weight"].rows(torch.tensor([3, 1]))
    assert torch.equal(rows, dense(weights[LAYER + "mlp.up_proj.weight"])[[3, 1]])
    repacked = found[LAYER + "experts.gate_up_proj"].repack(weights[LAYER + "experts.gate_up_proj"])
    assert repacked.format == found[LAYER + "experts.gate_up_proj"].native == "nvfp4"
    assert repacked.tensors["weight_global_scale"].shape == (making.EXPERTS, 2)
    stored = dense(weights[LAYER + "experts.gate_up_proj"])
    assert (dense(repacked) - stored).abs().le(stored.abs() * 2**-22).all()


# --- in the formats of the kernels --------------------------------------------------------------------------------


def test_experts_are_repacked_within_the_stated_bound_and_everything_else_to_fp8(file):
    kind, path = file
    _, found, weights = built(path)
    for name, recipe in found.items():
        if recipe.repack is None:
            assert recipe.format == recipe.native and recipe.format in FLOATS
            continue
        assert recipe.native == (NATIVE.get(recipe.format, "fp8") if is_expert(name) else "fp8"), name
        if name.startswith(LAYER + "experts"):
            stored, repacked = weights[name], recipe.repack(weights[name])
            assert repacked.format == recipe.native and repacked.shape == stored.shape
            error = (dense(repacked) - dense(stored)).abs()
            assert error.le(bound(stored)).all(), f"{name}: {error.max()}"


def bound(stored):
    """Return the largest error of each value that `native` and `repack` state."""
    value = dense(stored)
    if stored.format == "Q4_0":
        return value.abs() * 2**-8
    if stored.format == "Q4_K":
        _, minimum = (
            part.flatten(-2).repeat_interleave(32, -1) for part in k_scales(split("Q4_K", stored.tensors["blocks"]))
        )
        return 2**-8 * ((value + minimum).abs() + minimum.abs()) + value.abs() * 2**-22  # sums are rounded, too
    if stored.format in ("MXFP4", "NVFP4"):
        return torch.zeros(())
    return value.abs() / 16 + value.abs().amax(-1, keepdim=True) / 448 * 2**-10


def test_mxfp4_beyond_the_range_of_nvfp4_loses_only_the_smallest_blocks(tmp_path):
    given = making.tensors(lambda name: "MXFP4")
    data, _ = given["blk.0.ffn_down_exps.weight"]
    blocks = data.reshape(making.EXPERTS, making.HIDDEN, -1, TYPES["MXFP4"].bytes)
    blocks[..., 0] = np.random.default_rng(3).integers(90, 124, blocks.shape[:-1])
    blocks[0, ..., 0] = 0  # 2^-127: an expert of zeros, as the package stores it
    blocks[0, ..., 1:] = 0
    blocks[1, ..., 0] = 254
    blocks[1, ..., 1:] &= 0x33  # at most 1.5: larger values times 2^127 are infinite
    _, found, weights = built(making.write(tmp_path / "wide.gguf", given))
    name = LAYER + "experts.down_proj"
    stored, repacked = dense(weights[name]), dense(found[name].repack(weights[name]))
    below = blocks[..., 0].max((1, 2), keepdims=True) - blocks[..., 0]
    kept = torch.from_numpy(below <= 17).repeat_interleave(32, -1)
    assert not kept.all() and torch.equal(repacked[kept], stored[kept])
    assert (repacked - stored)[~kept].abs().max() <= 6 * 2.0 ** (123 - 18 - 127)
    assert not repacked[0].any()


# --- errors -------------------------------------------------------------------------------------------------------


def test_missing_surplus_and_wrong_tensors_are_all_reported_by_name(tmp_path):
    given = making.tensors(lambda name: "Q8_0")
    del given["blk.0.attn_v.weight"]
    del given["blk.1.ffn_gate_up_exps.weight"]
    given["blk.1.attn_v.weight"] = given["blk.1.attn_k.weight"]  # a global layer has none
    given["output.weight"] = given["token_embd.weight"]
    given["blk.0.ffn_gate_inp.weight"] = given["blk.0.ffn_up.weight"]
    given["blk.1.layer_output_scale.weight"] = (np.ones(2, np.float32), "F32")
    _, found, inventory = opened(making.write(tmp_path / "wrong.gguf", given))
    report = "\n".join(inventory.report())
    for expected in (
        "missing tensors: blk.0.attn_v.weight, blk.1.ffn_gate_exps.weight, blk.1.ffn_up_exps.weight",
        "surplus tensors that this configuration does not have: blk.1.attn_v.weight, output.weight",
        "tensor blk.0.ffn_gate_inp.weight has shape [256, 256], expected [4, 256]",
        "tensor blk.0.ffn_gate_inp.weight is stored as Q8_0, expected F32, F16 or BF16",
        "tensor blk.1.layer_output_scale.weight has shape [2], expected [1]",
    ):
        assert expected in report, report
    assert LAYER + "self_attn.v_proj.weight" not in found


def test_one_scale_of_two_is_reported_as_missing(tmp_path):
    path = nvfp4_with_scales(tmp_path / "nvfp4.gguf")
    tensors = {name: stored for name, stored in read(path).tensors.items() if name != "blk.0.ffn_up_exps.scale"}
    inventory = Inventory(tensors)
    found = recipes(making.config(metadata.config(read(path), {})), inventory)
    assert inventory.report() == ["missing tensors: blk.0.ffn_up_exps.scale"]
    assert LAYER + "experts.gate_up_proj" not in found


@pytest.mark.parametrize("type", sorted(BLOCKS))
def test_damaged_scales_are_found(type):
    """Q6_K has its scale at the end; MXFP4 has an exponent, and the NaN of NVFP4 counts as zero."""
    raw = torch.zeros(2, 256 // TYPES[type].values * TYPES[type].bytes, dtype=torch.uint8)
    assert is_finite(type, raw)
    at = TYPES[type].bytes - 2 if type == "Q6_K" else 0
    raw[1, at : at + 2] = torch.tensor([0xFF, 0xFF], dtype=torch.uint8)
    assert is_finite(type, raw) == (type == "NVFP4")


def test_a_block_that_is_not_finite_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = making.write(tmp_path / "model.gguf", making.tensors(lambda name: "Q8_0"))
    part = read(path).tensors["blk.0.ffn_down.weight"]
    with path.open("r+b") as file:
        file.seek(part.offset)
        file.write(b"\x00\x7e")
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_down\.weight contains NaN"):
        load(open_source(path), torch.device("cpu"), torch.float32)
