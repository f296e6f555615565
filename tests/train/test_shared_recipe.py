"""The recipe beside an exported model: complete, and without local paths."""

from dataclasses import replace

import pytest

from gesso.adapters import LoraSettings
from gesso.train.recipe import ContinuedLora, EvalSettings, HeldOutSettings, load
from gesso.train.run import train
from gesso.train.shared_recipe import shared_recipe
from tests.train.test_trainer import write_recipe


@pytest.fixture
def recipe(tmp_path, rows, small):
    return load(write_recipe(tmp_path, rows, small, steps=1))


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=16), ContinuedLora(adapter="someone/adapter")])
@pytest.mark.parametrize("evaluated", [False, True])
def test_the_shared_recipe_has_all_settings_and_names_for_paths(tmp_path, recipe, lora, evaluated):
    recipe = replace(recipe, lora=lora, eval=EvalSettings(task="sudoku", every=5) if evaluated else None)
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, clip=float("inf"), eps=1e-12))
    text = shared_recipe(recipe)
    assert str(tmp_path) not in text
    (tmp_path / "shared.toml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "shared.toml") == replace(
        recipe,
        model=replace(recipe.model, path="small"),
        data=replace(recipe.data, files=("rows.jsonl",)),
        run=replace(recipe.run, out="out"),
    )


def test_the_base_of_a_shared_recipe_is_its_hub_name(recipe):
    for given, shown in (("diffusiongemma", "google/diffusiongemma-26B-A4B-it"), (None, "gesso-mini")):
        text = shared_recipe(replace(recipe, model=replace(recipe.model, path=given)))
        assert f'path = "{shown}"\n' in text
    text = shared_recipe(replace(recipe, lora=ContinuedLora(adapter="/home/someone/runs/x/adapter")))
    assert 'from = "adapter"\n' in text


def test_an_export_has_its_recipe(tmp_path, recipe):
    train(recipe, lambda _: None)
    assert (tmp_path / "out" / "model" / "recipe.toml").read_text() == shared_recipe(recipe)


def test_hub_datasets_keep_their_names_and_held_out_files_lose_their_paths(tmp_path, recipe):
    local = tmp_path / "private.jsonl"
    local.write_text("")
    data = replace(recipe.data, files=("owner/name:test", *recipe.data.files))
    text = shared_recipe(replace(recipe, data=data, held_out=HeldOutSettings(every=1, files=(str(local),))))
    assert '"owner/name:test", "rows.jsonl"' in text and 'files = ["private.jsonl"]' in text
    assert str(tmp_path) not in text
