"""Quantized checkpoints: written atomically, loaded without unpacking, equal to their dequantized values."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import gesso
from gesso.checkpoint import write
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.parameters import assign, checkpoint_name, empty_model, is_vision
from gesso.checkpoint.quantize import convert
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.checkpoint.quantize.packed import TABLE_ROWS, Packed
from gesso.checkpoint.safetensors import INDEX, SINGLE, weight_files
from gesso.checkpoint.source import open_source
from gesso.errors import CheckpointError, InputError
from gesso.info.report import describe
from gesso.model.config import Config
from gesso.model.quantization_config import LAYERS, QUANTIZATIONS, quantization_config
from gesso.model.transformer import DiffusionGemma
from tests import tiny
from tests.tiny import randomise

CPU = torch.device("cpu")
TABLE = "model.decoder.embed_tokens.weight"


def load(directory, dtype=torch.float32, quantize=None):
    return load_weights(open_source(directory), CPU, dtype, quantize)


def stored(directory):
    return {name: t for file in weight_files(directory) for name, t in load_file(file).items()}


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def logits(model, dtype=torch.float32):
    """Return the logits of a canvas after a prompt, with self-conditioning: they depend on every matrix."""
    generator = torch.Generator().manual_seed(1)
    ids, canvas = (torch.randint(0, 384, (2, n), generator=generator) for n in (9, 6))
    cache = model.new_cache(2, 32)
    with torch.no_grad():
        model.encode(ids, cache)
        first = model.denoise(canvas, cache)
        return model.denoise(canvas, cache, previous_logits=first)


# --- directory ----------------------------------------------------------------------------------------------------


def test_quantize_copies_everything_but_the_matrices_exactly(source, quantized):
    name, target, report = quantized
    before, after = stored(source), stored(target)
    untouched = before.keys() - report.errors.keys()
    assert any(map(is_vision, untouched))
    assert any("router" in key for key in untouched)
    assert all(same(before[key], after[key]) for key in untouched)
    for file in ("tokenizer.json", "generation_config.json", "chat_template.jinja"):
        assert (target / file).read_text() == (source / file).read_text()


def test_quantize_packs_exactly_the_matrices_and_embeddings(source, quantized):
    name, target, report = quantized
    parts = {"self_attn", "mlp", "experts", "self_conditioning", "embed_tokens"}
    matrices = {key for key, t in stored(source).items() if t.ndim > 1 and not is_vision(key)}
    matrices = {key for key in matrices if parts & set(key.split("."))}
    assert report.errors.keys() == matrices
    packed = {name for name, module in load(target).named_modules() if isinstance(module, Packed)}
    assert {checkpoint_name(name) for name in packed} == matrices


def test_stored_tensors_have_the_names_of_compressed_tensors(quantized):
    """Experts have four bits; the other matrices are FP8."""
    name, target, _ = quantized
    keys = {
        "fp8": {"weight", "weight_scale"},
        "int4": {"weight_packed", "weight_scale", "weight_shape"},
        "nvfp4": {"weight_packed", "weight_scale", "weight_global_scale"},
    }
    prefix = "model.decoder.layers.0.self_attn.q_proj."
    assert {key.removeprefix(prefix) for key in stored(target) if key.startswith(prefix)} == keys["fp8"]
    prefix = "model.decoder.layers.0.experts.down_proj"
    found = {"weight" + key.removeprefix(prefix) for key in stored(target) if key.startswith(prefix)}
    assert found == keys[name]


def test_quantized_config_names_the_format_and_keeps_the_rest(source, quantized):
    name, target, _ = quantized
    before, after = (json.loads((d / "config.json").read_text()) for d in (source, target))
    given = after.pop("quantization_config")
    assert after == before
    assert given["quant_method"] == "compressed-tensors"
    formats = [group["format"] for group in given["config_groups"].values()]
    assert formats == [QUANTIZATIONS[kind][0] for kind in ([name] if name == "fp8" else [name, "fp8"])]
    assert given["format"] == (formats[0] if len(formats) == 1 else "mixed-precision")
    assert Config.from_directory(target).quantization == name


def test_reported_errors_match_the_stored_values(source, quantized):
    name, target, report = quantized
    before, model = stored(source), load(target)
    for path in ("decoder.layers.0.self_attn.k_proj.weight", "decoder.layers.1.experts.gate_up_proj"):
        exact = before[checkpoint_name(path)].float()
        off = (model.get_submodule(path).dense(torch.float32) - exact).norm() / exact.norm()
        assert report.errors[checkpoint_name(path)] == pytest.approx(off.item(), rel=1e-4)
    assert all(0 < error < 0.12 for error in report.errors.values())
    assert report.bytes == sum(file.stat().st_size for file in weight_files(target))
    assert report.bytes < 0.75 * report.source_bytes


def test_shards_contain_the_same_tensors_and_have_an_index(source, quantized, tmp_path):
    name, target, _ = quantized
    convert.quantize(source, tmp_path / "sharded", name, shard_bytes=50_000)
    files = weight_files(tmp_path / "sharded")
    assert len(files) > 3
    index = json.loads((tmp_path / "sharded" / INDEX).read_text())
    one, many = stored(target), stored(tmp_path / "sharded")
    assert one.keys() == many.keys() == index["weight_map"].keys()
    assert all(same(one[key], many[key]) for key in one)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in many.values())
    assert torch.equal(logits(load(target)), logits(load(tmp_path / "sharded")))


# --- loading ------------------------------------------------------------------------------------------------------


def plain(model):
    """Return the same model with every packed matrix replaced by its dequantized values."""
    config = replace(model.config, quantization=None, raw={**model.config.raw, "quantization_config": None})
    dense = empty_model(config)
    for name, parameter in model.named_parameters():
        assign(dense, name, parameter.detach())
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            assign(dense, name, module.dense(model.dtype))
    return dense.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_equal_those_of_the_dequantized_weights(quantized, dtype):
    model = load(quantized[1], dtype)
    assert torch.equal(logits(model), logits(plain(model)))


def test_large_vocabulary_is_unpacked_in_chunks():
    packed = FORMATS["fp8"].quantize("table", torch.randn(TABLE_ROWS + 100, 32))
    table = packed.dense()
    hidden_TH = torch.randn(7, 32)
    logits_TV = F.linear(hidden_TH, packed)
    torch.testing.assert_close(logits_TV, F.linear(hidden_TH, table))
    probability_TV = logits_TV.softmax(-1)
    torch.testing.assert_close(torch.matmul(probability_TV, packed), torch.matmul(probability_TV, table))


@pytest.fixture
def layers(source, quantized, tmp_path):
    """The quantized checkpoint with unpacked embeddings, as other tools write it."""
    name, packed, _ = quantized
    target = tmp_path / "layers"
    shutil.copytree(packed, target)
    tensors = {key: tensor for key, tensor in stored(packed).items() if not key.startswith(TABLE)}
    save_file(tensors | {TABLE: stored(source)[TABLE]}, target / SINGLE, metadata={"format": "pt"})
    raw = json.loads((target / "config.json").read_text())
    raw["quantization_config"] = quantization_config(name + LAYERS)
    (target / "config.json").write_text(json.dumps(raw))
    return target


def test_a_stored_model_with_unpacked_embeddings_is_read_and_saved(source, quantized, layers, tmp_path):
    name = quantized[0]
    model = load(layers, torch.bfloat16)
    assert model.config.quantization == name + LAYERS
    write.save(model, tmp_path / "saved", source=layers)
    assert same(stored(tmp_path / "saved")[TABLE], stored(source)[TABLE])
    assert torch.equal(logits(load(tmp_path / "saved")), logits(load(layers)))
    # Loading with the format of a checkpoint whose embeddings are not packed changes nothing.
    assert load(layers, quantize=name).config.quantization == name + LAYERS


def test_unpacked_embeddings_are_no_choice(source, quantized, tmp_path):
    name = quantized[0] + LAYERS
    message = f"quantization {name} was removed; use {quantized[0]}"
    with pytest.raises(InputError, match=message):
        convert.quantize(source, tmp_path / "layers", name)
    with pytest.raises(InputError, match=message):
        load(source, quantize=name)


def test_embeddings_are_packed_only_if_a_config_group_names_them(quantized, layers):
    """Only the targets count: other programs write other `ignore` lists, or none."""
    raw = json.loads((layers / "config.json").read_text())
    for ignore in ([], ["re:.*lm_head.*", "re:.*embed_tokens.*"]):
        raw["quantization_config"]["ignore"] = ignore
        assert Config.from_dict(raw).quantization == quantized[0] + LAYERS


def test_loaded_weights_stay_packed_in_memory(source, quantized):
    name, target, _ = quantized
    model, dense = load(target, torch.bfloat16), load(source, torch.bfloat16)
    kept = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    assert kept < (0.6 if name == "fp8" else 0.5) * sum(p.nbytes for p in dense.parameters())
    text = sum(t.nbytes for key, t in stored(target).items() if not is_vision(key))
    assert kept == text
    promised = {cell.precision: cell.weight_bytes for cell in describe(open_source(source), "source").memory}
    if name != "nvfp4":  # 4-bit is counted as int4
        assert kept == promised["fp8" if name == "fp8" else "4-bit"]


def test_quantize_on_load_equals_quantized_directory(source, quantized):
    name, target, _ = quantized
    on_the_fly, from_disk = load(source, quantize=name), load(target)
    packed = dict(from_disk.named_buffers())
    assert packed
    assert packed.keys() == dict(on_the_fly.named_buffers()).keys()
    assert all(same(tensor, packed[key]) for key, tensor in on_the_fly.named_buffers())
    assert torch.equal(logits(on_the_fly), logits(from_disk))


def test_quantized_directory_generates_the_same_text(source, quantized):
    name, target, _ = quantized
    if name == "int4":
        pytest.skip("a CPU packs more matrices while it loads: tests/checkpoint/test_on_cpu.py")
    texts = {
        g.generate("def", max_new_tokens=12, steps=6, seed=3).text
        for g in (gesso.load(target), gesso.load(source, quantize=name))
    }
    assert len(texts) == 1


def test_quantized_model_saves_and_loads_again(source, quantized, tmp_path):
    name, target, _ = quantized
    for i, model in enumerate((load(target, torch.bfloat16), load(source, torch.bfloat16, quantize=name))):
        write.save(model, tmp_path / str(i), source=source)
        first, again = stored(target), stored(tmp_path / str(i))
        assert first.keys() == again.keys()
        assert all(same(first[key], again[key]) for key in first)
        assert Config.from_directory(tmp_path / str(i)).quantization == name


def test_untied_model_can_be_quantized(tmp_path):
    config = Config.from_dict({**tiny.CONFIG, "tie_word_embeddings": False})
    model = DiffusionGemma(config)
    randomise(model, 0, std=0.2)
    write.save(model, tmp_path / "untied", files={"tokenizer.json": tiny.tokenizer_json()})
    report = convert.quantize(tmp_path / "untied", tmp_path / "small", "int4")
    assert sum(name.startswith("model.encoder.") for name in report.errors) == 2 * 9 - 1 + 1
    assert "lm_head.weight" in report.errors
    quantized = load(tmp_path / "small")
    assert torch.equal(logits(quantized), logits(plain(quantized)))


def test_quantize_again_is_accepted_only_in_the_same_format(quantized):
    name, target, _ = quantized
    assert load(target, quantize=name).config.quantization == name
    other = next(format for format in QUANTIZATIONS if format != name)
    with pytest.raises(InputError, match=f"already quantized to {name}"):
        load(target, quantize=other)
    with pytest.raises(InputError, match="fp8, int4, nvfp4"):
        load(target, quantize="q4_0")


def test_info_reports_no_problems_of_a_quantized_checkpoint(quantized, main):
    name, target, _ = quantized
    found = main("info", str(target), "--json")
    report = json.loads(found.out)
    assert (found.code, report["problems"]) == (0, [])
    assert report["weights"]["quantization"] == name
    assert name in main("info", str(target)).out


# --- damage -------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(quantized, tmp_path):
    """Return a function that copies the checkpoint and changes its tensors."""
    name, target, _ = quantized
    model = load(target, torch.bfloat16)
    write.save(model, tmp_path / "copy", source=target)

    def change(act):
        tensors = stored(tmp_path / "copy")
        act(tensors)
        save_file(tensors, tmp_path / "copy" / SINGLE, metadata={"format": "pt"})
        return tmp_path / "copy"

    return change


SCALE = "model.decoder.layers.1.experts.down_proj_scale"


def test_missing_scale_is_named(damaged):
    with pytest.raises(CheckpointError, match=f"missing tensors: {SCALE}"):
        load(damaged(lambda tensors: tensors.pop(SCALE)))


def test_scale_of_the_wrong_shape_is_named(damaged):
    with pytest.raises(CheckpointError, match=f"tensor {SCALE} has shape"):
        load(damaged(lambda tensors: tensors.update({SCALE: tensors[SCALE][:-1].contiguous()})))


def test_codes_of_the_wrong_dtype_are_named(damaged, quantized):
    name = SCALE.replace("_scale", "" if quantized[0] == "fp8" else "_packed")
    with pytest.raises(CheckpointError, match=f"tensor {name} is stored as F16"):
        load(damaged(lambda tensors: tensors.update({name: torch.zeros(tensors[name].shape, dtype=torch.float16)})))


def test_nan_scale_is_named(damaged):
    def poison(tensors):
        scale = tensors[SCALE].float()
        scale[1, 0, 0] = float("nan")
        tensors[SCALE] = scale.to(tensors[SCALE].dtype)

    with pytest.raises(CheckpointError, match=f"tensor {SCALE} .* NaN"):
        load(damaged(poison))


@pytest.mark.parametrize(
    "change",
    [
        lambda given: given.update(quant_method="gptq"),
        lambda given: given["config_groups"]["group_0"]["weights"].update(num_bits=3),
        lambda given: given["config_groups"]["group_0"]["weights"].update(symmetric=False),
        lambda given: given["config_groups"].update(group_1={}),
        lambda given: given["config_groups"].pop("group_1"),
        lambda given: given.clear(),
    ],
)
def test_quantization_config_that_does_not_describe_the_weights_is_rejected(source, tmp_path, change):
    convert.quantize(source, tmp_path / "int4", "int4")
    raw = json.loads((tmp_path / "int4" / "config.json").read_text())
    change(raw["quantization_config"])
    (tmp_path / "int4" / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="quantization_config"):
        load(tmp_path / "int4")
