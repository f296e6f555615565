"""Adapters that cannot be loaded or saved are rejected by name, and nothing is attached."""

import json
import os
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from gesso import adapters
from gesso.adapters import LoraSettings, files
from gesso.adapters.sites import attached
from gesso.checkpoint import write
from gesso.errors import CheckpointError, InputError
from tests.adapters.test_adapters import ALL, SETTINGS, TIED
from tests.model.test_parity import load_pair


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a model without adapters, and a directory with an adapter for it."""
    directory = tmp_path_factory.mktemp("saved")
    _, model = load_pair(directory, TIED[0])
    adapters.add(model, SETTINGS)
    adapters.save(model, directory / "adapter", SETTINGS)
    adapters.merge(model)
    return model, directory / "adapter"


def broken(directory, change):
    config = json.loads((directory / files.CONFIG).read_text())
    tensors = load_file(directory / files.WEIGHTS)
    change(config, tensors)
    (directory / files.CONFIG).write_text(json.dumps(config))
    save_file(tensors, directory / files.WEIGHTS)


Q = "base_model.model.model.decoder.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda c, t: t.pop(Q), f"missing tensors: {re.escape(Q)}"),
        (lambda c, t: t.update({"base_model.model.lm_head.lora_A.weight": torch.zeros(3, 2)}), "surplus.*lm_head"),
        (lambda c, t: t.update({Q: t[Q][:, 1:].clone()}), f"{re.escape(Q)} has shape"),
        (lambda c, t: t.update({Q: t[Q] * float("nan")}), f"{re.escape(Q)} holds NaN"),
        (lambda c, t: c.update(target_modules=["embed_tokens"]), "target_modules: 'embed_tokens' matches nothing"),
        (lambda c, t: c["target_parameters"].append("experts.up"), "target_parameters: 'experts.up' matches nothing"),
        (lambda c, t: c.update(target_modules="(", target_parameters=[]), "target_modules"),
        (lambda c, t: c.update(target_modules=[1]), "target_modules"),
        (lambda c, t: c.update(target_modules=None, target_parameters=None), "no targets"),
        (lambda c, t: c.update(r=4), "has shape"),
        (lambda c, t: c.update(r="many"), "r = 'many'"),
        (lambda c, t: c.pop("lora_alpha"), "no lora_alpha"),
        (lambda c, t: c.update(peft_type="LOHA"), "LOHA"),
        (lambda c, t: c.update(use_dora=True), "use_dora"),
        (lambda c, t: c.update(rank_pattern={"q_proj": 2}), "rank_pattern"),
        (lambda c, t: c.update(modules_to_save=["lm_head"]), "modules_to_save"),
        (lambda c, t: c.update(init_lora_weights="pissa"), "init_lora_weights"),
        (lambda c, t: c.update(target_modules=[{}]), "target_modules"),
        (lambda c, t: c.update(target_modules={"q_proj": 1}), "target_modules"),
        (lambda c, t: c.update(target_parameters=5), "target_parameters"),
        (lambda c, t: c.update(exclude_modules=5), "exclude_modules"),
        (lambda c, t: c.update(target_modules="q" * 100_000), "target_modules"),
        (lambda c, t: c.update(r=10**400, use_rslora=True), "r = "),
        (lambda c, t: c.update(lora_alpha=10**400), "alpha"),
        (lambda c, t: c.update(lora_alpha=float("nan")), "alpha"),
        (lambda c, t: t.update({Q: t[Q].to(torch.int16)}), f"{re.escape(Q)} is stored as int16"),
        (lambda c, t: t.update({Q: t[Q].to(torch.float8_e4m3fn)}), f"{re.escape(Q)} is stored as float8_e4m3fn"),
    ],
)
def test_an_invalid_adapter_is_rejected_by_name_and_not_attached(tmp_path, saved, change, words):
    model, directory = saved
    shutil.copytree(directory, tmp_path / "adapter")
    broken(tmp_path / "adapter", change)
    with pytest.raises(CheckpointError, match=words):
        adapters.load(model, tmp_path / "adapter", "wrong")
    assert attached(model) == []


def test_a_pattern_that_backtracks_exponentially_is_rejected_in_time(tmp_path, saved, monkeypatch):
    monkeypatch.setattr(files, "PATTERN_SECONDS", 1.0)  # each pattern below takes all of it
    model, directory = saved
    for field in ("target_modules", "target_parameters", "exclude_modules"):
        shutil.copytree(directory, tmp_path / field)
        broken(tmp_path / field, lambda c, t, field=field: c.update({field: "((.+)+)+(.*.*)*!"}))
        with pytest.raises(CheckpointError, match=f"{field}.*takes longer than 1 s"):
            adapters.load(model, tmp_path / field, "slow")
    assert attached(model) == []


def test_a_named_pipe_in_an_adapter_is_rejected_without_waiting(tmp_path, saved):
    model, directory = saved
    for name in (files.CONFIG, files.WEIGHTS):
        shutil.copytree(directory, tmp_path / name)
        (tmp_path / name / name).unlink()
        os.mkfifo(tmp_path / name / name)
        with pytest.raises(CheckpointError, match=f"{name} cannot be read: it is a named pipe"):
            adapters.load(model, tmp_path / name, "piped")


def test_saving_follows_no_planted_link(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, SETTINGS)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".adapter.partial").symlink_to(tmp_path / "elsewhere")
    adapters.save(model, tmp_path / "adapter", SETTINGS)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (tmp_path / "adapter" / files.WEIGHTS).is_file()


def test_an_adapter_of_another_model_is_rejected(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    _, other = load_pair(tmp_path / "other", TIED[1])
    adapters.add(other, SETTINGS)
    adapters.save(other, tmp_path / "adapter", SETTINGS)
    with pytest.raises(CheckpointError, match="missing tensors|surplus tensors|has shape"):
        adapters.load(model, tmp_path / "adapter", "theirs")


def test_missing_and_damaged_files_are_named(tmp_path, saved):
    model, directory = saved
    shutil.copytree(directory, tmp_path / "adapter")
    weights = tmp_path / "adapter" / files.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=f"{files.WEIGHTS} is corrupt"):
        adapters.load(model, tmp_path / "adapter", "theirs")
    weights.unlink()
    with pytest.raises(CheckpointError, match=f"{files.WEIGHTS} does not exist"):
        adapters.load(model, tmp_path / "adapter", "theirs")
    shutil.rmtree(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=files.CONFIG):
        adapters.load(model, tmp_path / "adapter", "theirs")


def test_saving_rejects_existing_directories_and_other_settings(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, SETTINGS)
    with pytest.raises(InputError, match="not empty"):
        adapters.save(model, tmp_path / "model", SETTINGS)
    with pytest.raises(InputError, match="rank 3 and alpha 5.0"):
        adapters.save(model, tmp_path / "adapter", LoraSettings(rank=3, alpha=6.0, targets=ALL))


def test_saving_a_model_with_attached_adapters_is_rejected(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, SETTINGS)
    with pytest.raises(InputError, match="merge one first"):
        write.save(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    adapters.merge(model)
    write.save(model, tmp_path / "out")
