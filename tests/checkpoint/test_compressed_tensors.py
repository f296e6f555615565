"""Checkpoints of compressed-tensors are read as the library itself decompresses them."""

import json
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file

from gesso.checkpoint import compressed_tensors
from gesso.checkpoint.load import load
from gesso.checkpoint.parameters import checkpoint_name, parameters
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.checkpoint.source import open_source
from gesso.errors import CheckpointError
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from tests import tiny
from tests.checkpoint.reading import dense, inventory, linears, logits, model_of, weights

SIZES = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 128, "num_experts": 4,
         "top_k_experts": 2, "vocab_size": 128, "num_attention_heads": 2, "head_dim": 64,
         "global_head_dim": 64}  # fmt: skip
CONFIG = Config.from_dict({**tiny.CONFIG, "text_config": tiny.CONFIG["text_config"] | SIZES})

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "symmetric": True}
CHANNEL = {"strategy": "channel", "symmetric": True}
FLOAT, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
# Each with the library's name of the format, its description of the weights, and the dtype of scales.
SCHEMES = {
    "fp8": ("float-quantized", {"num_bits": 8, "type": "float"} | CHANNEL, BRAIN),
    "fp8-tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}, FLOAT),
    "int8": ("int-quantized", {"num_bits": 8, "type": "int"} | CHANNEL, BRAIN),
    "int4": ("pack-quantized", INT4 | {"group_size": 32}, BRAIN),
    "int4-f16": ("pack-quantized", INT4 | {"group_size": 32}, HALF),
    "int4-g128": ("pack-quantized", INT4 | {"group_size": 128}, BRAIN),
    "int4-g64-f32": ("pack-quantized", INT4 | {"group_size": 64}, FLOAT),
    "int4-channel": ("pack-quantized", {"num_bits": 4, "type": "int"} | CHANNEL, HALF),
    "int4-asymmetric": ("pack-quantized", INT4 | {"group_size": 64, "symmetric": False}, HALF),
    "nvfp4": ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
              torch.float8_e4m3fn),
}  # fmt: skip
# What each becomes on a GPU: experts, other matrices.
NATIVE = {
    "fp8": ("fp8", "fp8"), "fp8-tensor": ("fp8", "fp8"), "int8": ("fp8", "fp8"), "int4": ("int4", "fp8"),
    "int4-f16": ("int4", "fp8"), "int4-g128": ("int4", "fp8"), "int4-g64-f32": ("int4", "fp8"),
    "int4-channel": ("int4", "fp8"), "int4-asymmetric": ("uint4", "fp8"), "nvfp4": ("nvfp4", "fp8"),
}  # fmt: skip


def compress(weight, scheme):
    """Return the tensors of a matrix as the library stores them, and the values that it makes of them."""
    format, args, dtype = SCHEMES[scheme]
    described = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    compressor = BaseCompressor.get_value_from_registry(format)
    size = args.get("group_size", weight.shape[1])
    groups = weight.reshape(1, -1) if args["strategy"] == "tensor" else weight.unflatten(1, (-1, size))
    low, high = groups.amin(-1), groups.amax(-1)
    most = torch.maximum(high, -low)
    state = {"weight": weight}
    if scheme == "nvfp4":
        state["weight_global_scale"] = 2688 / most.max().reshape(1)
        state["weight_scale"] = (most / 6 * state["weight_global_scale"]).to(dtype).float()
    elif args.get("symmetric", True):
        state["weight_scale"] = (most / {4: 7, 8: 448 if args["type"] == "float" else 127}[args["num_bits"]]).to(dtype)
    else:
        state["weight_scale"] = ((high - low) / 15).to(dtype)
        zero = (-8 - low / state["weight_scale"].float()).round().clamp(-8, 7)
        state["weight_zero_point"] = zero.to(torch.int8)
    if args["strategy"] == "tensor":
        state["weight_scale"] = state["weight_scale"].reshape(1)
    stored = {key: t.contiguous() for key, t in compressor.compress(state, described).items()}
    return stored, compressor.decompress(stored, described)["weight"]


def is_quantized(name):
    return any(part in name for part in ("self_attn", "mlp", "experts")) and "norm" not in name


def settings(scheme):
    format, args, _ = SCHEMES[scheme]
    group = {"targets": ["Linear"], "weights": args, "format": format, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}}


def make(directory, scheme):
    """Write a checkpoint and return the values of its parameters according to the library."""
    torch.manual_seed(0)
    model = DiffusionGemma(CONFIG)
    tiny.randomise(model, 0, std=0.2)
    tensors, expected = {}, {}
    for path, parameter in model.named_parameters():
        name, weight = checkpoint_name(path), parameter.detach().bfloat16()
        if not is_quantized(name):
            tensors[name] = expected[name] = weight
            continue
        values = []
        for linear, matrix in linears(name, weight).items():
            stored, value = compress(matrix.float(), scheme)
            module = linear.removesuffix("weight")
            tensors |= {module + key: tensor for key, tensor in stored.items()}
            tensors[module + "input_global_scale"] = torch.tensor(3.0)  # not needed for weights
            values.append(value)
        expected[name] = torch.cat(values).view(weight.shape)
    for name in [name for name in tensors if "self_attn.q_proj" in name]:  # again under the encoder's name
        tensors[name.replace("model.decoder.", "model.encoder.language_model.")] = tensors[name].clone()
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    return expected


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that makes the checkpoint of a scheme once."""

    @cache
    def once(scheme):
        directory = tmp_path_factory.mktemp("ct") / "checkpoint"
        return SimpleNamespace(scheme=scheme, directory=directory, expected=make(directory, scheme))

    return once


@pytest.fixture(params=list(SCHEMES))
def checkpoint(request, made):
    return made(request.param)


def read(directory, scheme, change=None):
    given = json.loads(json.dumps(settings(scheme)))
    if change:
        change(given)
    found = inventory(directory)
    config = Config.from_dict({**CONFIG.raw, "quantization_config": given})
    return compressed_tensors.recipes(config, found), found.report()


def test_weights_equal_the_decompressed_weights_of_the_library(checkpoint):
    recipes, problems = read(checkpoint.directory, checkpoint.scheme)
    assert problems == []
    assert recipes.keys() == parameters(CONFIG).keys()
    for name, weight in weights(recipes).items():
        expected = checkpoint.expected[name]
        assert tuple(weight.shape) == recipes[name].shape == parameters(CONFIG)[name]
        assert torch.equal(dense(weight).to(expected.dtype), expected), name


def test_logits_equal_those_of_the_unpacked_weights(checkpoint):
    found = weights(read(checkpoint.directory, checkpoint.scheme)[0])
    plain = {name: dense(weight) for name, weight in found.items()}
    expected = logits(model_of(CONFIG, plain))
    assert torch.equal(logits(model_of(CONFIG, found)), expected)
    # The configuration of some is the same as that of `gesso quantize`, whose experts are fused.
    raw = {**CONFIG.raw, "quantization_config": settings(checkpoint.scheme)}
    (checkpoint.directory / "config.json").write_text(json.dumps(raw))
    assert torch.equal(logits(load(open_source(checkpoint.directory), torch.device("cpu"), FLOAT)), expected)


def test_repacked_weights_stay_within_the_stated_bounds(checkpoint):
    recipes, _ = read(checkpoint.directory, checkpoint.scheme)
    experts, others = NATIVE[checkpoint.scheme]
    for name, weight in weights(recipes).items():
        recipe = recipes[name]
        if not is_quantized(name):
            assert (recipe.native, recipe.repack) == (recipe.format, None)
            continue
        assert recipe.native == (experts if len(recipe.shape) == 3 else others)
        if recipe.repack is None:
            assert weight.format == recipe.format == recipe.native
            continue
        native, exact = recipe.repack(weight), dense(weight)
        assert (native.format, native.shape) == (recipe.native, recipe.shape)
        error = (dense(native) - exact).abs()
        if recipe.native == "fp8":
            row = exact.abs().amax(-1, keepdim=True)
            assert (error <= exact.abs() / 16 + row / 448 * 2**-10).all()
        elif recipe.native == "int4":
            assert (error <= exact.abs() * 2**-8).all()
        else:
            step = weight.tensors["weight_scale"].float().repeat_interleave(64, -1)
            assert (error <= step / 8).all()


@pytest.mark.parametrize("scheme", ["int4", "int4-g128"])
def test_int4_with_bfloat16_scales_is_exact_in_the_format_of_the_kernels(scheme, made):
    recipes, _ = read(made(scheme).directory, scheme)
    experts = {name: recipe for name, recipe in recipes.items() if len(recipe.shape) == 3}
    for name, weight in weights(experts).items():
        assert (recipes[name].format, recipes[name].repack) == ("int4", None)
        assert weight.tensors.keys() == FORMATS["int4"].layout(recipes[name].shape).keys()
        for key, (shape, dtype) in FORMATS["int4"].layout(recipes[name].shape).items():
            assert (weight.tensors[key].shape, weight.tensors[key].dtype) == (shape, dtype)


def test_gate_and_up_keep_their_own_global_scales(made):
    found = weights(read(made("nvfp4").directory, "nvfp4")[0])
    both = found["model.decoder.layers.0.experts.gate_up_proj"].weight_global_scale
    assert both.shape == (4, 2)
    assert (both[:, 0] != both[:, 1]).all()
    assert found["model.decoder.layers.0.experts.down_proj"].weight_global_scale.shape == (4, 1)


def test_rows_of_every_scheme_can_be_looked_up(checkpoint):
    """A table of embeddings is used by rows and by blocks of rows."""
    found = weights(read(checkpoint.directory, checkpoint.scheme)[0])
    table = found["model.decoder.layers.0.mlp.up_proj.weight"]
    index = torch.tensor([5, 0, 127])
    assert torch.equal(table.rows(index), table.dense()[index])
    assert torch.equal(torch.cat([part.dense() for part in table.split(50)]), table.dense())


# --- damage -------------------------------------------------------------------------------------------------------

few = pytest.mark.parametrize("checkpoint", ["fp8", "int4-asymmetric", "nvfp4"], indirect=True)
EXPERT = "model.decoder.layers.1.experts.2.up_proj."
QUERY = "model.decoder.layers.0.self_attn.q_proj."


def main_tensor(scheme):
    return "weight_packed" if "4" in scheme else "weight"


def damaged(checkpoint, tmp_path, act):
    """Return the problems of a copy of the checkpoint after a change of its tensors."""
    tensors = load_file(checkpoint.directory / "model.safetensors")
    act(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    recipes, problems = read(tmp_path, checkpoint.scheme)
    return "\n".join(problems)


@few
@pytest.mark.parametrize("module", [EXPERT, QUERY])
def test_every_missing_tensor_is_named_first(checkpoint, tmp_path, module):
    tensors = load_file(checkpoint.directory / "model.safetensors")
    needed = {name for name in tensors if name.startswith(module)} - {f"{module}input_global_scale"}
    needed -= {f"{module}weight_zero_point"}  # without it, the weights are symmetric
    for name in needed:
        found = damaged(checkpoint, tmp_path, lambda tensors, name=name: tensors.pop(name))
        assert found.split("\n")[0] == f"missing tensors: {name}"


@few
def test_a_missing_matrix_of_an_expert_is_named(checkpoint, tmp_path):
    def remove(tensors):
        for name in [name for name in tensors if name.startswith(EXPERT)]:
            del tensors[name]

    assert damaged(checkpoint, tmp_path, remove) == f"missing tensors: {EXPERT}{main_tensor(checkpoint.scheme)}"


@few
def test_a_missing_stack_of_experts_is_named(checkpoint, tmp_path):
    def remove(tensors):
        for name in [name for name in tensors if ".layers.1.experts." in name]:
            del tensors[name]

    found = damaged(checkpoint, tmp_path, remove)
    assert found.startswith("missing tensors: model.decoder.layers.1.experts.0.down_proj.weight")
    assert "\n" not in found


@few
def test_a_surplus_tensor_is_named(checkpoint, tmp_path):
    name = f"{EXPERT}weight_g_idx"  # another order of the columns: the weights would be wrong
    found = damaged(checkpoint, tmp_path, lambda tensors: tensors.update({name: torch.zeros(128, dtype=torch.int32)}))
    assert found == f"surplus tensors that this configuration does not have: {name}"


@few
@pytest.mark.parametrize("module", [EXPERT, QUERY])
def test_wrong_shapes_are_named(checkpoint, tmp_path, module):
    for key in (main_tensor(checkpoint.scheme), "weight_scale"):
        name = module + key
        found = damaged(checkpoint, tmp_path, lambda t, name=name: t.update({name: t[name][1:].contiguous()}))
        assert found.startswith(f"tensor {name} has shape"), found


@few
@pytest.mark.parametrize("module", [EXPERT, QUERY])
def test_wrong_dtypes_are_named(checkpoint, tmp_path, module):
    for key in (main_tensor(checkpoint.scheme), "weight_scale"):
        name = module + key
        found = damaged(checkpoint, tmp_path, lambda t, name=name: t.update({name: t[name].to(torch.int16)}))
        assert f"tensor {name} is" in found
        assert "\n" not in found


@few
def test_matrices_of_different_formats_in_one_parameter_are_named(checkpoint, tmp_path):
    def mix(tensors):
        for name in [name for name in tensors if name.startswith(EXPERT)]:
            del tensors[name]
        tensors[f"{EXPERT}weight"] = torch.zeros(128, 128, dtype=torch.bfloat16)

    found = damaged(checkpoint, tmp_path, mix)
    assert found.startswith(f"tensor {EXPERT}weight is not quantized, but ")
    assert "\n" not in found


def test_experts_that_are_not_quantized_are_fused(tmp_path):
    """Whatever is quantized is determined by the tensors, whichever modules `ignore` names."""
    expected = make(tmp_path / "made", "fp8")
    tensors = load_file(tmp_path / "made" / "model.safetensors")
    prefix = "model.decoder.layers.1.experts."
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
    for leaf in ("gate_up_proj", "down_proj"):
        tensors |= {name: t.contiguous() for name, t in linears(prefix + leaf, expected[prefix + leaf]).items()}
    save_file(tensors, tmp_path / "made" / "model.safetensors")
    recipes, problems = read(tmp_path / "made", "fp8")
    assert problems == []
    found = weights(recipes)
    for leaf in ("gate_up_proj", "down_proj"):
        assert torch.equal(found[prefix + leaf], expected[prefix + leaf])


@pytest.mark.parametrize(
    ("scheme", "field", "value"),
    [
        ("fp8", "type", "int"),
        ("fp8", "num_bits", 4),
        ("int8", "symmetric", False),
        ("int4", "group_size", 64),
        ("int4", "symmetric", False),
        ("int4-asymmetric", "symmetric", True),
        ("int4-channel", "num_bits", 8),
        ("nvfp4", "type", "int"),
        ("nvfp4", "group_size", 32),
    ],
)
def test_a_configuration_that_contradicts_the_tensors_is_rejected(made, scheme, field, value):
    change = {field: value}
    _, problems = read(
        made(scheme).directory, scheme, lambda given: given["config_groups"]["group_0"]["weights"].update(change)
    )
    assert problems[0].startswith("tensor model.decoder.layers.0.self_attn.q_proj.weight")
    assert "config_groups" in problems[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given.pop("config_groups"), "config_groups is missing"),
        (lambda given: given.update(config_groups=[1]), "config_groups"),
        (lambda given: given["config_groups"].update(group_0=3), "group_0"),
        (lambda given: given["config_groups"]["group_0"].update(weights="int4"), "weights"),
        (lambda given: given.update(transform_config={"config_groups": {}}), "transform_config"),
    ],
)
def test_a_malformed_configuration_is_rejected(tmp_path, change, message):
    (tmp_path / "made").mkdir()
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path / "made", "fp8", change)
