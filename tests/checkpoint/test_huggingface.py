"""Load and save checkpoints: round trips through `transformers`, errors, generation defaults."""

import io
import json
import logging
import os
import subprocess
import sys
from contextlib import redirect_stderr

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DiffusionGemmaForBlockDiffusion

import gesso
from gesso.checkpoint import transfer, write
from gesso.checkpoint.find import find
from gesso.checkpoint.generation import GenerationDefaults
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.parameters import is_vision
from gesso.checkpoint.safetensors import INDEX, SINGLE, weight_files
from gesso.checkpoint.source import open_source
from gesso.errors import CheckpointError, InputError
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from gesso.settings import Diffusion
from tests import oracle, tiny
from tests.full_disk import full_disk

CPU = torch.device("cpu")


def load(directory, dtype=torch.float32):
    return load_weights(open_source(directory), CPU, dtype)


@pytest.fixture
def directory(tmp_path):
    """A checkpoint that a test may damage."""
    return tiny.make(tmp_path / "model")


def damage(directory, change):
    """Rewrite the weights after `change(tensors)`."""
    tensors = load_file(directory / SINGLE)
    change(tensors)
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})


def edit_config(directory, change):
    raw = json.loads((directory / "config.json").read_text())
    change(raw)
    (directory / "config.json").write_text(json.dumps(raw))


# --- save and load ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 2, 9])
@pytest.mark.parametrize("shard_bytes", [10**9, 20_000])
def test_saved_checkpoint_loads_and_computes_the_same_in_transformers(tmp_path, seed, shard_bytes):
    oracle.checkpoint(tmp_path / "from", seed)
    ours = load(tmp_path / "from")
    write.save(ours, tmp_path / "to", source=tmp_path / "from", shard_bytes=shard_bytes)
    theirs, report = DiffusionGemmaForBlockDiffusion.from_pretrained(tmp_path / "to", output_loading_info=True)
    assert {key: list(value) for key, value in report.items() if value} == {}
    theirs.eval()
    prompt, canvas = torch.randint(0, 60, (2, 13)), torch.randint(0, 60, (2, 8))
    kv, cache = oracle.new_cache(theirs), ours.new_cache(2, 64)
    with torch.no_grad():
        theirs.model.encoder(input_ids=prompt, past_key_values=kv)
        ours.encode(prompt, cache)
        expected = theirs(decoder_input_ids=canvas, past_key_values=kv).logits
        assert (expected - ours.denoise(canvas, cache)).abs().max() < 1e-4
    before, after = (load_tensors(tmp_path / name) for name in ("from", "to"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before), "the vision tower is copied exactly"


def load_tensors(directory):
    return {name: t for file in weight_files(directory) for name, t in load_file(file).items()}


def test_checkpoint_without_source_loads_in_transformers(directory):
    _, report = DiffusionGemmaForBlockDiffusion.from_pretrained(directory, output_loading_info=True)
    assert {key: list(value) for key, value in report.items() if value} == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtype_applies_to_every_tensor_and_the_saved_config(directory, tmp_path, dtype):
    model = load(directory, dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}
    write.save(model, tmp_path / "half", source=directory)
    saved = json.loads((tmp_path / "half" / "config.json").read_text())
    assert saved["dtype"] == str(dtype).removeprefix("torch.")
    assert torch.equal(load(tmp_path / "half", dtype).head, model.head)


def test_save_keeps_tokenizer_template_and_unknown_fields(directory, tmp_path):
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    edit_config(directory, lambda raw: raw.update(image_token_id=258_880, someone_elses={"a": 1}))
    write.save(load(directory), tmp_path / "copy", source=directory)
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "copy" / name).read_text() == (directory / name).read_text()
    raw = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert (raw["image_token_id"], raw["someone_elses"]) == (258_880, {"a": 1})


def test_failed_save_leaves_nothing_behind(directory, tmp_path):
    model = load(directory)
    with full_disk(20_000), pytest.raises(CheckpointError, match="File too large"):
        write.save(model, tmp_path / "out", source=directory)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_other_users_can_read_a_saved_checkpoint(directory):
    files = ("config.json", "generation_config.json", SINGLE, "tokenizer.json")
    assert {file.name: file.stat().st_mode & 0o777 for file in directory.iterdir()} == dict.fromkeys(files, 0o644)


def test_save_to_nonempty_directory_is_rejected(directory):
    before = sorted(path.name for path in directory.iterdir())
    with pytest.raises(InputError, match="not empty"):
        write.save(load(directory), directory)
    assert sorted(path.name for path in directory.iterdir()) == before


@pytest.mark.parametrize("text_only", [False, True])
def test_a_saved_tower_is_the_loaded_one_also_by_a_model_without(tmp_path, text_only):
    directory = tiny.make(tmp_path / "model", sees=True)
    model = load_weights(open_source(directory), torch.device("cpu"), torch.float32, text_only=text_only)
    assert (model.vision is None) is text_only
    write.save(model, tmp_path / "copy", source=directory)
    saved, copied = load_file(directory / SINGLE), load_file(tmp_path / "copy" / SINGLE)
    assert saved.keys() == copied.keys() and all(torch.equal(saved[name], copied[name]) for name in saved)
    assert any(is_vision(name) and tensor.any() for name, tensor in saved.items())


def test_a_damaged_tower_is_named_and_can_be_left_out(tmp_path):
    directory = tiny.make(tmp_path / "model", sees=True)
    tensors = load_file(directory / SINGLE)
    lost = tensors.pop("model.encoder.embed_vision.embedding_projection.weight")
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="vision tower .* text_only leaves it out(.|\n)*embedding_projection"):
        load(directory)
    tensors["model.encoder.embed_vision.embedding_projection.weight"] = lost * torch.nan
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="embedding_projection.weight .* NaN"):
        load(directory)
    assert load_weights(open_source(directory), torch.device("cpu"), torch.float32, text_only=True).vision is None


def test_a_tower_of_zeros_stands_for_none(directory, caplog):
    with caplog.at_level(logging.WARNING, logger="gesso"):
        assert load(directory).vision is None
    assert caplog.records == []


def test_long_load_shows_progress_only_on_a_terminal(directory, monkeypatch):
    shown = {}
    for terminal in (True, False):
        screen = io.StringIO()
        screen.isatty = lambda terminal=terminal: terminal  # type: ignore[method-assign]
        monkeypatch.setattr(transfer, "LONG_LOAD", 1)  # instead of a gigabyte
        with redirect_stderr(screen):
            load(directory)
        shown[terminal] = screen.getvalue()
    assert "loading weights" in shown[True]
    assert "GB" in shown[True]
    assert shown[False] == ""


PEAK = """
import resource, sys, threading, time
from pathlib import Path
import torch
from gesso.checkpoint.load import load
from gesso.checkpoint.source import open_source
source = open_source(Path(sys.argv[1]))
source.check()

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

peak = before = rss()
done = False
def watch():
    global peak
    while not done:
        peak = max(peak, rss())
        time.sleep(0.0005)
watcher = threading.Thread(target=watch); watcher.start()
model = load(source, torch.device("cpu"), torch.float32)
done = True; watcher.join()
sizes = {p.data_ptr(): p.nbytes for p in model.parameters()}
print(peak - before, sum(sizes.values()), max(sizes.values()))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads the process's memory from /proc")
def test_load_memory_peaks_at_the_model_plus_one_tensor(tmp_path):
    """300 MB, bfloat16 on disk and float32 in memory: a second copy or a mapped file would exceed the limit."""
    raw = json.loads(json.dumps(tiny.CONFIG))
    raw["text_config"] |= {"hidden_size": 512, "moe_intermediate_size": 768, "num_experts": 16, "dtype": "bfloat16",
                           "num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}  # fmt: skip
    model = DiffusionGemma(Config.from_dict(raw)).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    write.save(model, tmp_path / "large")
    run = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "large")], capture_output=True, text=True, check=True
    )
    grown, total, largest = map(int, run.stdout.split())
    assert total > 250 * 10**6
    # One tensor exists twice: as read (bfloat16, half the size) and as converted.
    assert grown < total + 1.6 * largest + 30 * 10**6


# --- errors -------------------------------------------------------------------------------------------------------


def refused(directory, *words):
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


def test_truncated_file_is_named(directory):
    path = directory / SINGLE
    path.write_bytes(path.read_bytes()[:-100])
    refused(directory, SINGLE, "corrupt or truncated")


def test_corrupt_file_is_named(directory):
    (directory / SINGLE).write_bytes(b"\xff" * 1000)
    refused(directory, SINGLE, "corrupt")


def test_pickle_is_never_opened(directory):
    (directory / SINGLE).rename(directory / "pytorch_model.bin")
    refused(directory, "no weights", SINGLE)


def test_a_missing_shard_is_named(tmp_path):
    oracle.checkpoint(tmp_path / "model", 0, max_shard_size="20KB")
    gone = weight_files(tmp_path / "model")[1]
    gone.unlink()
    refused(tmp_path / "model", gone.name, "missing")


def test_missing_and_surplus_tensors_are_named(directory):
    def change(tensors):
        tensors["model.decoder.layers.9.mlp.up_proj.weight"] = tensors.pop("model.decoder.norm.weight")

    damage(directory, change)
    refused(directory, "model.decoder.norm.weight", "model.decoder.layers.9.mlp.up_proj.weight", "surplus")


def test_wrong_shape_is_named_with_both_shapes(directory):
    damage(directory, lambda t: t.update({"model.decoder.norm.weight": torch.ones(63)}))
    refused(directory, "model.decoder.norm.weight", "[63]", "[64]")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinite_weights_are_named(directory, bad):
    def change(tensors):
        tensors["model.decoder.layers.1.experts.down_proj"][3, 5, 7] = bad

    damage(directory, change)
    refused(directory, "model.decoder.layers.1.experts.down_proj", "NaN or infinite")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw.update(model_type="llama"), ["'llama'", "diffusion_gemma"]),
        (lambda raw: raw.pop("text_config"), ["text_config"]),
        (lambda raw: raw["text_config"].pop("num_experts"), ["num_experts"]),
        (lambda raw: raw["text_config"].update(top_k_experts=9), ["top_k_experts 9", "num_experts 4"]),
        (lambda raw: raw["text_config"].update(num_key_value_heads=3), ["3 key/value heads", "4 query heads"]),
        (lambda raw: raw["text_config"].update(hidden_size=0), ["hidden_size", "from 1 to"]),
        (lambda raw: raw["text_config"].update(hidden_activation="silu"), ["hidden_activation", "'silu'"]),
        (lambda raw: raw["text_config"].update(use_bidirectional_attention="all"), ["use_bidirectional_attention"]),
        (lambda raw: raw["text_config"].update(attention_bias=True), ["attention_bias"]),
        (lambda raw: raw["text_config"].update(num_kv_shared_layers=2), ["num_kv_shared_layers"]),
        (lambda raw: raw["text_config"].update(layer_types=["full_attention"]), ["layer_types", "2"]),
        (lambda raw: raw["text_config"].update(layer_types=["mamba"] * 2), ["mamba"]),
        (lambda raw: raw["text_config"].update(num_hidden_layers="4"), ["num_hidden_layers", "'4'"]),
        (lambda raw: raw["text_config"].update(sliding_window="128"), ["sliding_window", "'128'"]),
        (lambda raw: raw["text_config"].update(num_key_value_heads=0), ["num_key_value_heads"]),
        (lambda raw: raw["text_config"].update(rms_norm_eps="small"), ["rms_norm_eps"]),
        (lambda raw: raw["text_config"].update(rope_parameters={"rope_theta": 5.0}), ["rope_parameters", "layer type"]),
        (lambda raw: raw.update(eos_token_id="<eos>"), ["eos_token_id", "'<eos>'"]),
        (
            lambda raw: raw["text_config"].update(rope_parameters={"full_attention": {"rope_type": "yarn"}}),
            ["rope_type 'yarn'"],
        ),
    ],
)
def test_unsupported_config_is_rejected_by_name(directory, change, words):
    edit_config(directory, change)
    refused(directory, *words)


def test_unknown_config_field_is_named_in_a_warning(directory, caplog):
    edit_config(directory, lambda raw: raw["text_config"].update(novelty=3))
    with caplog.at_level(logging.WARNING, logger="gesso"):
        Config.from_directory(directory)
    assert "novelty" in caplog.text


@pytest.mark.parametrize("text", ["{", "[]", "\udcff"])
def test_config_that_is_no_json_object_is_named(directory, text):
    (directory / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(directory, "config.json")


@pytest.mark.parametrize("name", ["/etc/passwd", "../elsewhere.safetensors", 3, ""])
def test_index_with_a_path_outside_its_directory_is_rejected(tmp_path, name):
    oracle.checkpoint(tmp_path / "model", 0, max_shard_size="20KB")
    index = json.loads((tmp_path / "model" / INDEX).read_text())
    index["weight_map"]["model.decoder.norm.weight"] = name
    (tmp_path / "model" / INDEX).write_text(json.dumps(index))
    refused(tmp_path / "model", INDEX, repr(name))


def test_missing_path_is_rejected_with_the_alternatives(tmp_path):
    for name in (tmp_path / "nowhere", "just-a-word", "", "./nothing", "../nothing", "a--b/c d"):
        with pytest.raises(CheckpointError, match="no directory"):
            find(name)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="is not a GGUF file"):
        find(tmp_path / "file")


def test_hub_name_offline_names_the_setting(own_cache, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(own_cache / "hub"))
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE"):
        find("nobody/nothing-at-all")


def test_hub_name_is_found_in_the_local_cache_offline(directory, tmp_path, hub):
    """The cache has the layout of huggingface_hub: refs/main names the snapshot."""
    hub.status["/"] = 503
    repo = tmp_path / "hub" / "models--someone--small"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    (repo / "snapshots").mkdir()
    directory.rename(repo / "snapshots" / ("0" * 40))
    assert load(find("someone/small")).config.vocab_size == 384


# --- generation defaults ------------------------------------------------------------------------------------------


def test_generation_config_sets_the_defaults(directory):
    raw = {
        "max_new_tokens": 99, "max_denoising_steps": 7, "t_min": 0.1, "t_max": 0.9, "stability_threshold": 2,
        "confidence_threshold": 0.5, "eos_token_id": [1, 5], "sampler_config":
        {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.3},
    }  # fmt: skip
    (directory / "generation_config.json").write_text(json.dumps(raw))
    defaults = GenerationDefaults.from_directory(directory, Config.from_directory(directory))
    settings = Diffusion(steps=7, t_min=0.1, t_max=0.9, stability=2, confidence=0.5, entropy_bound=0.3)
    assert defaults == GenerationDefaults(diffusion=settings, max_new_tokens=99, eos_token_ids=(1, 5))
    g = gesso.load(directory)
    assert g.generate("a", seed=0, stopping="fixed", max_new_tokens=4).usage.denoising_steps in (7, 14)


def test_defaults_without_generation_config_are_those_of_the_reference(directory):
    (directory / "generation_config.json").unlink()
    defaults = GenerationDefaults.from_directory(directory, Config.from_directory(directory))
    assert defaults == GenerationDefaults(eos_token_ids=(1, 106, 50))


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        ({"sampler_config": {"_cls_name": "NovelSamplerConfig"}}, "NovelSamplerConfig"),
        ({"sampler_config": "Novel"}, "Novel"),
        ({"max_new_tokens": "many"}, "max_new_tokens"),
        ({"eos_token_id": "<eos>"}, "eos_token_id"),
        ({"t_max": "hot"}, "t_max"),
    ],
)
def test_unsupported_generation_config_is_rejected(directory, raw, word):
    (directory / "generation_config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=word):
        gesso.load(directory)
