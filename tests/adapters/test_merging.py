"""`gesso merge`: a checkpoint with the adapter in its weights, written one tensor at a time."""

import json
import shutil
import weakref

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file
from transformers import DiffusionGemmaForBlockDiffusion

import gesso
from gesso import adapters
from gesso.adapters import TARGETS, LoraSettings, merging
from gesso.adapters.files import WEIGHTS
from gesso.checkpoint import write
from gesso.checkpoint.load import load
from gesso.checkpoint.quantize import convert
from gesso.checkpoint.safetensors import weight_files
from gesso.checkpoint.source import open_source
from gesso.errors import CheckpointError, InputError
from tests import tiny
from tests.adapters.test_adapters import TIED, UNTIED, fill, furthest, outputs, relative
from tests.model.test_parity import load_pair

SETTINGS = LoraSettings(rank=16, alpha=32.0, targets=tuple(TARGETS))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny.make(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory):
    """An adapter of the base on all targets, with random values."""
    model = load(open_source(base), torch.device("cpu"), torch.float32)
    adapters.add(model, SETTINGS)
    fill(model)
    directory = tmp_path_factory.mktemp("adapter") / "adapter"
    adapters.save(model, directory, SETTINGS)
    return directory


@pytest.mark.parametrize("seed", [TIED[0], UNTIED])
def test_merged_files_give_the_logits_of_the_unmerged_adapter(tmp_path, seed):
    _, model = load_pair(tmp_path, seed, near_identity=True)
    adapters.add(model, SETTINGS)
    fill(model)
    adapters.save(model, tmp_path / "adapter", SETTINGS)
    report = merging.merge_files(tmp_path / "model", tmp_path / "adapter", tmp_path / "out", shard_bytes=20_000)
    assert report.merged > 10 and len(weight_files(tmp_path / "out")) > 3
    with torch.no_grad():
        unmerged = outputs(model)
        merged = outputs(load(open_source(tmp_path / "out"), model.device, torch.float32))
    assert relative(unmerged, merged) < 1e-4
    theirs, info = DiffusionGemmaForBlockDiffusion.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert furthest(theirs.eval(), model) < 1e-4


@pytest.mark.parametrize("targets", [("attention", "mlp"), ("experts",), ("router", "self_conditioning")], ids="+".join)
def test_merged_files_equal_the_merged_model_in_bfloat16(tmp_path, base, targets):
    model = load(open_source(base), torch.device("cpu"), torch.bfloat16)
    write.save(model, tmp_path / "bf16", source=base)
    settings = LoraSettings(rank=16, alpha=32.0, targets=targets)
    adapters.add(model, settings)
    fill(model)
    adapters.save(model, tmp_path / "adapter", settings)
    merging.merge_files(tmp_path / "bf16", tmp_path / "adapter", tmp_path / "out")
    adapters.merge(model)
    write.save(model, tmp_path / "expected", source=base)
    before, found, expected = (load_file(tmp_path / n / "model.safetensors") for n in ("bf16", "out", "expected"))
    assert found.keys() == expected.keys() and {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert any(not torch.equal(found[name], before[name]) for name in found)


def test_the_merged_checkpoint_has_tokenizer_and_template_and_generates(tmp_path, base, adapter):
    shutil.copytree(base, tmp_path / "base")
    (tmp_path / "base" / "chat_template.jinja").write_text("{{ messages }}")
    merging.merge_files(tmp_path / "base", adapter, tmp_path / "out")
    for name in ("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "base" / name).read_text(), name
    answers = [
        model.generate("1: ", seed=1, max_new_tokens=8, steps=4).tokens
        for model in (gesso.load(tmp_path / "out"), gesso.load(base, adapter=adapter))
    ]
    assert answers[0] == answers[1]


def test_merging_holds_a_shard_and_a_tensor_in_memory(tmp_path, base, adapter, monkeypatch):
    read, most_read, shards = weakref.WeakSet(), [0], []
    fetched, save = merging.stored_tensors, safetensors.torch.save_file

    def watched(source, label):
        for name, tensor in fetched(source, label):
            read.add(tensor)
            most_read[0] = max(most_read[0], sum(one.nbytes for one in read))
            yield name, tensor
            del tensor

    def saved(tensors, *arguments, **options):
        shards.append(sum(tensor.nbytes for tensor in tensors.values()))
        save(tensors, *arguments, **options)

    # The tensors of a file that live at the same time have no other sign.
    monkeypatch.setattr(merging, "stored_tensors", watched)
    monkeypatch.setattr(safetensors.torch, "save_file", saved)  # nor have those of a shard
    merging.merge_files(base, adapter, tmp_path / "out", shard_bytes=10_000)
    sizes = [tensor.nbytes for tensor in load_file(base / "model.safetensors").values()]
    assert max(shards) <= max(10_000, *sizes), "tensors that wait to be written"
    assert most_read[0] <= 2 * max(sizes), "tensors that were read: this one, and the one before"
    assert sum(sizes) > 6 * max(sizes)


@pytest.mark.parametrize("format", ["fp8", "int4"])
def test_a_quantized_base_is_rejected_with_advice(tmp_path, base, adapter, format):
    convert.quantize(base, tmp_path / "packed", format)
    with pytest.raises(InputError, match="Merge it into the checkpoint that was quantized, then quantize"):
        merging.merge_files(tmp_path / "packed", adapter, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_changes_that_differ_between_encoder_and_decoder_are_rejected(tmp_path, base, adapter):
    shutil.copytree(adapter, tmp_path / "adapter")
    tensors = load_file(adapter / WEIGHTS)
    changed = {name: tensor + ("encoder" in name) for name, tensor in tensors.items()}
    save_file(changed, tmp_path / "adapter" / WEIGHTS)
    with pytest.raises(InputError, match="encoder and decoder differently"):
        merging.merge_files(base, tmp_path / "adapter", tmp_path / "out")


def test_an_adapter_of_another_model_and_an_existing_target_are_rejected(tmp_path, base, adapter):
    other = tiny.make(tmp_path / "other", hidden_size=32)
    with pytest.raises(CheckpointError, match="this model expects"):
        merging.merge_files(other, adapter, tmp_path / "out")
    with pytest.raises(InputError, match="not empty"):
        merging.merge_files(base, adapter, other)


def test_the_command_merges_and_reports(tmp_path, base, adapter, main):
    done = main("merge", str(base), str(adapter), str(tmp_path / "out"), "--json")
    report = json.loads(done.out)
    assert done.code == 0 and (report["rank"], report["alpha"]) == (16, 32.0)
    assert report["merged"] > 10 and set(report["targets"]) == set(TARGETS)
    again = main("merge", str(base), str(adapter), str(tmp_path / "out"))
    assert again.code == 2 and "not empty" in again.err
