"""Quantized checkpoints: written atomically, loaded without unpacking, equal to their dequantized values."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import gesso
from gesso import adapters
from gesso.adapters.attach import split_encoder
from gesso.checkpoint import write
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.parameters import assign, checkpoint_name, empty_model, is_vision
from gesso.checkpoint.quantize import convert
from gesso.checkpoint.quantize import packed as packed_module
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.safetensors import INDEX, SINGLE, weight_files
from gesso.checkpoint.source import open_source
from gesso.errors import CheckpointError, InputError
from gesso.info.report import describe
from gesso.model.config import Config
from gesso.model.quantization_config import LAYERS, QUANTIZATIONS
from gesso.model.transformer import DiffusionGemma
from gesso.train.recipe import load as load_recipe
from gesso.train.run import train
from tests import tiny
from tests.tiny import randomise

CPU = torch.device("cpu")


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


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A tiny checkpoint in bfloat16, like published ones, with a template and a vision tower that is not zero."""
    made = tmp_path_factory.mktemp("quantize")
    tiny.make(made / "float32")
    write.save(load(made / "float32", torch.bfloat16), made / "source", source=made / "float32")
    tensors = load_file(made / "source" / SINGLE)
    tensors |= {name: torch.randn_like(t) for name, t in tensors.items() if is_vision(name)}
    save_file(tensors, made / "source" / SINGLE, metadata={"format": "pt"})
    (made / "source" / "chat_template.jinja").write_text("{{ messages }}")
    return made / "source"


@pytest.fixture(scope="module", params=list(QUANTIZATIONS))
def quantized(request, source, tmp_path_factory):
    target = tmp_path_factory.mktemp(request.param) / "quantized"
    report = convert.quantize(source, target, request.param)
    return request.param, target, report


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


def test_large_vocabulary_is_unpacked_in_chunks(quantized, monkeypatch):
    model = load(quantized[1])
    hidden_TH = torch.randn(7, model.config.hidden_size)
    whole = model.logits(hidden_TH)
    expected = model.soft_embedding(whole)
    monkeypatch.setattr(packed_module, "TABLE_ROWS", 100)
    torch.testing.assert_close(model.logits(hidden_TH), whole)
    torch.testing.assert_close(model.soft_embedding(whole), expected)


def test_layers_suffix_leaves_the_embeddings_unpacked(source, quantized, tmp_path):
    name = quantized[0] + LAYERS
    convert.quantize(source, tmp_path / "layers", name)
    key = "model.decoder.embed_tokens.weight"
    assert same(stored(source)[key], stored(tmp_path / "layers")[key])
    assert Config.from_directory(tmp_path / "layers").quantization == name
    assert torch.equal(logits(load(tmp_path / "layers")), logits(load(source, quantize=name)))
    # Loading with the format of a checkpoint whose embeddings are not packed changes nothing.
    assert load(tmp_path / "layers", quantize=quantized[0]).config.quantization == name
    with pytest.raises(InputError, match="already"):
        load(quantized[1], quantize=name)


def test_embeddings_are_packed_only_if_a_config_group_names_them(source, quantized, tmp_path):
    """Only the targets count: other programs write other `ignore` lists, or none."""
    convert.quantize(source, tmp_path / "layers", quantized[0] + LAYERS)
    raw = json.loads((tmp_path / "layers" / "config.json").read_text())
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
    if name == "fp8":
        assert kept == promised["fp8"]
    else:  # plus a global scale or a shape per matrix, which is negligible at a real size
        assert 0 <= kept - promised["4-bit"] <= 16 * 9 * 8 * 5


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


# --- command ------------------------------------------------------------------------------------------------------


def test_quantize_command_prints_every_layer_and_the_size(source, tmp_path, main):
    shown = main("quantize", str(source), str(tmp_path / "out"), "--to", "nvfp4")
    assert shown.code == 0
    for row in ("layer 0", "layer 1", "conditioning", "MB, from"):
        assert row in shown.out
    data = json.loads(main("quantize", str(source), str(tmp_path / "json"), "--to", "nvfp4", "--json").out)
    assert data["errors"].keys() == convert.quantize(source, tmp_path / "again", "nvfp4").errors.keys()
    assert data["format"] == "nvfp4"


def test_quantize_command_rejects_bad_arguments_before_writing(source, quantized, tmp_path, main):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, word in [
        ((str(source), str(tmp_path / "out"), "--to", "int3"), "int4"),
        ((str(source), str(tmp_path / "full"), "--to", "fp8"), "not empty"),
        ((str(source), str(source), "--to", "fp8"), "not empty"),
        ((str(quantized[1]), str(tmp_path / "out"), "--to", "fp8"), "already"),
    ]:
        found = main("quantize", *arguments)
        assert (found.code, word in found.err) == (2, True), found.err
    assert main("quantize", str(tmp_path / "nowhere"), str(tmp_path / "out"), "--to", "fp8").code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_interrupted_quantize_leaves_nothing_behind(source, tmp_path, monkeypatch, error):
    written = []

    def save_some(*arguments, **options):
        if len(written) == 2:
            raise error
        written.append(save_file(*arguments, **options))

    monkeypatch.setattr("safetensors.torch.save_file", save_some)
    with pytest.raises(type(error)):
        convert.quantize(source, tmp_path / "out", "fp8", shard_bytes=50_000)
    assert len(written) == 2
    assert list(tmp_path.iterdir()) == []


def test_infinite_weight_is_rejected_by_name(source, tmp_path):
    name = "model.decoder.layers.1.experts.down_proj"
    model = load(source)
    model.decoder.layers[1].experts.down_proj.data[3, 2, 1] = float("inf")
    write.save(model, tmp_path / "bad", source=source)
    for attempt in (
        lambda: convert.quantize(tmp_path / "bad", tmp_path / "out", "int4"),
        lambda: load(tmp_path / "bad", quantize="int4"),
    ):
        with pytest.raises(gesso.GessoError, match=name):
            attempt()
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_sizes_that_do_not_fit_the_blocks_are_rejected_by_name(tmp_path):
    text = {**tiny.CONFIG["text_config"], "moe_intermediate_size": 24}
    model = DiffusionGemma(Config.from_dict({**tiny.CONFIG, "text_config": text}))
    randomise(model, 0)
    write.save(model, tmp_path / "odd", files={"tokenizer.json": tiny.tokenizer_json()})
    for attempt in (
        lambda: convert.quantize(tmp_path / "odd", tmp_path / "out", "int4"),
        lambda: load(tmp_path / "odd", quantize="int4"),
    ):
        with pytest.raises(InputError, match=r"layers\.0\.experts\.down_proj .* blocks of 32"):
            attempt()
    assert [path.name for path in tmp_path.iterdir()] == ["odd"]
    convert.quantize(tmp_path / "odd", tmp_path / "out", "fp8")


PEAK = """
import sys
from pathlib import Path
import safetensors.torch
from gesso.checkpoint.quantize import convert
from gesso.checkpoint.quantize.formats import Format

def resident(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024

convert.quantize(Path(sys.argv[1]), Path(sys.argv[3]), "fp8")  # a small one first, so that all imports are done
before = resident("RssAnon")
peak = before
save = safetensors.torch.save_file
quantize = Format.quantize

def watched(act):
    def run(*arguments, **options):
        global peak
        made = act(*arguments, **options)
        peak = max(peak, resident("RssAnon"))
        return made
    return run

safetensors.torch.save_file, Format.quantize = watched(save), watched(quantize)
convert.quantize(Path(sys.argv[2]), Path(sys.argv[4]), "fp8", shard_bytes=2**22)
print(peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_quantize_memory_is_a_shard_and_a_tensor(source, tmp_path):
    text = {**tiny.CONFIG["text_config"], "hidden_size": 256, "moe_intermediate_size": 128, "num_experts": 32,
            "num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}  # fmt: skip
    model = DiffusionGemma(Config.from_dict({**tiny.CONFIG, "text_config": text})).to(torch.bfloat16)
    randomise(model, 0)
    write.save(model, tmp_path / "large", files={"tokenizer.json": tiny.tokenizer_json()})
    largest = max(p.nbytes for p in model.parameters()) / 2**20
    whole = sum(p.nbytes for p in model.parameters()) / 2**20
    paths = (source, tmp_path / "large", tmp_path / "small out", tmp_path / "large out")
    arguments = [sys.executable, "-c", PEAK, *map(str, paths)]
    grown = float(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
    # The tensor before is still in memory while the next is read.
    assert grown < 8 + 3 * largest, f"{grown:.0f} MB for a model of {whole:.0f} MB"


# --- training -----------------------------------------------------------------------------------------------------


def test_adapter_on_quantized_weights_gets_dequantized_gradients(quantized):
    packed = load(quantized[1])
    before, gradients = logits(packed), []
    ids = torch.randint(0, 384, (1, 12))
    for model in (packed, plain(packed)):
        adapters.add(model, adapters.LoraSettings(rank=2, targets=tuple(adapters.TARGETS)), "small")
        assert torch.equal(logits(model), before), "B is initially zero"
        cache = model.new_cache(1, 16)
        model.encode(ids[:, :4], cache)
        torch.nn.functional.cross_entropy(model.denoise(ids[:, 4:], cache)[0], ids[0, 4:]).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert len(gradients[0]) > 20
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradient, gradients[1][name]) for name, gradient in gradients[0].items())


def test_adapter_on_quantized_weights_is_saved_and_loaded_but_not_merged(quantized, tmp_path):
    settings = adapters.LoraSettings(rank=2, targets=tuple(adapters.TARGETS))
    model, again = load(quantized[1]), load(quantized[1])
    adapters.add(model, settings)
    for name, parameter in model.named_parameters():
        if name.endswith(".B"):
            parameter.data.normal_(0, 0.1)
    adapters.save(model, tmp_path / "adapter", settings)
    adapters.load(again, tmp_path / "adapter", "default")
    assert torch.equal(logits(again), logits(model))
    with pytest.raises(InputError, match="merge.*quantize"):
        adapters.merge(again)


def test_recipe_trains_an_adapter_but_rejects_quantized_weights(quantized, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    recipe = tmp_path / "recipe.toml"
    whole = (
        f'[model]\npath = "{quantized[1]}"\n[data]\nfiles = ["{tmp_path}/rows.jsonl"]\nmax_length = 300\n'
        f'[run]\nout = "{tmp_path}/out"\nsteps = 1\nbatch_size = 1\n'
    )
    recipe.write_text(whole)
    with pytest.raises(InputError, match=f"quantized to {quantized[0]} cannot be trained.*lora"):
        train(load_recipe(recipe))
    recipe.write_text(whole + "[lora]\nrank = 2\n")
    seen = []
    train(load_recipe(recipe), report=seen.append)
    assert len(seen) == 1
    adapters.load(load(quantized[1]), tmp_path / "out" / "adapter", "learnt")


def test_split_encoder_and_decoder_share_packed_weights(quantized):
    model = load(quantized[1])
    before = logits(model)
    split_encoder(model)
    encoder, decoder = (stack.layers[0] for stack in (model.encoder, model.decoder))
    assert encoder is not decoder
    assert encoder.self_attn.q_proj.weight is decoder.self_attn.q_proj.weight
    assert encoder.experts.down_proj is decoder.experts.down_proj
    assert torch.equal(logits(model), before)
