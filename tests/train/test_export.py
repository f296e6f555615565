"""The checkpoints that a training run exports."""

import json
from dataclasses import replace

import torch

import gesso
from gesso.train.recipe import load
from gesso.train.run import train
from tests.train.test_trainer import losses, metrics, write_recipe


def test_export_has_requested_dtype_and_shards(tmp_path, rows, small):
    recipe = load(write_recipe(tmp_path, rows, small, steps=1))
    train(replace(recipe, run=replace(recipe.run, export_dtype="bfloat16", export_shard=100_000)), lambda _: None)
    found = tmp_path / "out" / "model"
    assert json.loads((found / "config.json").read_text())["dtype"] == "bfloat16"
    files = list(found.glob("model-*.safetensors"))
    assert len(files) > 1 and max(file.stat().st_size for file in files) < 120_000
    gesso.load(found)


def test_export_contains_the_average(tmp_path, rows, small):
    recipe = load(write_recipe(tmp_path, rows, small, steps=4))
    for name, ema in (("plain", 0.0), ("average", 0.9)):
        run = replace(recipe.run, out=str(tmp_path / name), ema=ema)
        train(replace(recipe, run=run), report=lambda _: None)
    assert losses(tmp_path / "plain") == losses(tmp_path / "average")
    plain, average = (gesso.load(tmp_path / name / "model").model.head for name in ("plain", "average"))
    assert not torch.equal(plain, average)


def test_adapter_trains_and_is_exported(tmp_path, rows, small):
    lora = '\n[lora]\nrank = 4\ntargets = ["attention", "experts"]\n'
    path = write_recipe(tmp_path, rows, small, steps=40, extra=lora)
    path.write_text(path.read_text().replace("scratch = true", "scratch = false"))
    train(load(path), report=lambda _: None)
    found = [line["loss"] for line in metrics(tmp_path / "out")]
    assert sum(found[-8:]) < 0.9 * sum(found[:8])
    assert not (tmp_path / "out" / "model").exists()
    assert {p.name for p in (tmp_path / "out" / "adapter").iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    base = gesso.load(small)
    tuned = gesso.load(small, adapter=tmp_path / "out" / "adapter")
    assert (
        base.generate("1: ", seed=1, max_new_tokens=16, steps=4).tokens
        != tuned.generate("1: ", seed=1, max_new_tokens=16, steps=4).tokens
    )


def test_longer_run_exports_again(tmp_path, rows, small):
    recipe = load(write_recipe(tmp_path, rows, small, steps=4))
    heads = []
    for steps in (4, 4, 8):
        train(replace(recipe, run=replace(recipe.run, steps=steps)), report=lambda _: None)
        heads.append(gesso.load(tmp_path / "out" / "model").model.head)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[1], heads[2])
    assert len(metrics(tmp_path / "out")) == 8
